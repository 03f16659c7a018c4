"""What one step computes: the scheduler's answer, complete enough for any backend or rank to carry out. Pure."""

from dataclasses import dataclass

from .types import SamplingParams


@dataclass(frozen=True, slots=True)
class Row:
    """Consecutive tokens of one request."""

    request_id: str
    start: int  # position of the first token
    token_ids: tuple[int, ...]  # at least one
    blocks: tuple[int, ...]  # the request's block table, covering position `end - 1`
    samples: bool  # True where these are the last known tokens, so that the next one is to be chosen
    params: SamplingParams

    @property
    def end(self) -> int:
        """The position after the last token: where a sampled token goes."""
        return self.start + len(self.token_ids)


@dataclass(frozen=True, slots=True)
class StepPlan:
    rows: tuple[Row, ...]  # rows of one token that continue a text come first
    preempted: tuple[str, ...] = ()  # ids that gave their blocks up for this step

    @property
    def tokens(self) -> int:
        return sum(len(row.token_ids) for row in self.rows)

    @property
    def sampled(self) -> tuple[Row, ...]:
        """The rows that a backend returns one token for, in this order."""
        return tuple(row for row in self.rows if row.samples)
