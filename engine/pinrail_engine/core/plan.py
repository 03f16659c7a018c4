"""What one step computes: the scheduler's answer, complete enough for any backend or rank to carry out. Pure.

A backend keeps a table with a line for each slot: the tokens of the request in it, its blocks, its parameters. A plan
says how the table changes (`begins`, `grown`), then which positions are computed (`rows`). A sampled token goes into
the table itself, so a plan can be carried out before the host knows what the one before it sampled.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from .types import SamplingParams, TokenLogprobs


class Row(NamedTuple):
    """Consecutive positions of one request."""

    request_id: str
    slot: int
    start: int  # the first position
    length: int  # positions, at least 1
    samples: bool  # True where these end the known tokens, so that the one at `end` is to be chosen

    @property
    def end(self) -> int:
        """The position after the last one: where a sampled token goes."""
        return self.start + self.length


class Begin(NamedTuple):
    """A request enters a slot: what stood there before is void."""

    request_id: str
    slot: int
    tokens: Sequence[int]  # known so far, from position 0; not to be changed
    prompt_len: int  # tokens; what comes after them is output
    params: SamplingParams


class Grown(NamedTuple):
    """A line of the block table gets longer: position p is in `blocks[slot][p // block_size]`."""

    slot: int
    at: int  # where in the line the first of `blocks` stands
    blocks: tuple[int, ...]


class StepWork(NamedTuple):
    """What the time of a step depends on."""

    tokens: int  # rows of the network's matrices
    sampled: int  # tokens chosen
    read: int  # cache positions that are read: every row's context, once
    pairs: int  # of a query and a key, in rows of more than one token


@dataclass(frozen=True)
class StepPlan:
    number: int  # 1, 2, 3 …
    rows: tuple[Row, ...]
    begins: tuple[Begin, ...] = ()
    grown: tuple[Grown, ...] = ()
    preempted: tuple[str, ...] = ()  # ids that gave their blocks up for this step
    recomputed: int = 0  # tokens of `rows` that had been computed before a preemption

    @cached_property
    def work(self) -> StepWork:
        return work_of(self.rows)

    @property
    def tokens(self) -> int:
        return self.work.tokens

    @cached_property
    def sampled(self) -> tuple[Row, ...]:
        """The rows that a backend returns one token for, in this order."""
        return tuple(row for row in self.rows if row.samples)


class StepResult(NamedTuple):
    """What a backend returns for a plan."""

    tokens: Sequence[int]  # one per row of `plan.sampled`
    logprobs: Sequence[TokenLogprobs | None]  # one per row of `plan.sampled`; None where not asked for
    prompt_logprobs: Mapping[str, Sequence[TokenLogprobs]]  # request -> of prompt positions start + 1 … end, if wanted


def work_of(rows: Sequence[Row]) -> StepWork:
    tokens = sampled = read = pairs = 0
    for _, _, start, length, samples in rows:
        tokens += length
        sampled += samples
        read += start + length
        if length > 1:
            pairs += length * (2 * start + length + 1) // 2
    return StepWork(tokens, sampled, read, pairs)
