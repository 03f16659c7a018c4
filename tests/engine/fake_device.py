"""A device that is arithmetic: it keeps the tables of a backend and a cache of cells, and reads them as attention does.

A cell holds, as keys and values do, what a token is after those before it. The next token is a function of all cells
before it, each read back through the block table, and of the seed. So a text is right only if each position was written
into the right cell after the right ones, and nobody wrote over it.
"""

from collections.abc import Sequence
from hashlib import blake2b
from itertools import accumulate

from pinrail_engine.core.commit import BROKEN
from pinrail_engine.core.plan import Begin, Row, StepPlan, StepResult
from pinrail_engine.core.types import SamplingParams, TokenLogprobs

VOCAB = 100


def cell(before: int, token: int) -> int:
    """Args: before: the cell of the position before it; 0 at the beginning."""
    return (before * 1_000_003 + token + 1) % 2**61


def next_token(cells: Sequence[int], seed: int, vocab: int = VOCAB) -> int:
    return int.from_bytes(blake2b(repr((cells, seed)).encode(), digest_size=4).digest()) % vocab


def text(prompt: Sequence[int], params: SamplingParams, max_model_len: int, vocab: int = VOCAB) -> list[int]:
    """The output that a request must get, whatever else happens."""
    output: list[int] = []
    cells = list(accumulate(prompt, cell, initial=0))[1:]
    while len(output) < min(params.max_tokens, max_model_len - len(prompt)):
        output.append(next_token(cells, params.seed, vocab))
        cells.append(cell(cells[-1], output[-1]))
        if output[-1] in params.stop_token_ids:
            break
    return output


class FakeDevice:
    """Carries plans out in the order in which they are given. Cells that nobody wrote hold nothing."""

    def __init__(self, block_size: int, vocab: int = VOCAB) -> None:
        self.block_size, self.vocab = block_size, vocab
        self.cells: dict[int, int] = {}  # what is written in the cache, at block * block_size + offset
        self.slots: dict[int, Begin] = {}
        self.tokens: dict[int, list[int]] = {}  # by slot
        self.blocks: dict[int, list[int]] = {}  # by slot
        self.last = 0  # number of the newest plan
        self.computed = 0  # tokens, ever
        self.sick: set[str] = set()  # requests whose logits are not finite

    def step(self, plan: StepPlan) -> StepResult:
        assert plan.number > self.last, "plans come in order"
        self.last = plan.number
        for begin in plan.begins:
            self.slots[begin.slot] = begin
            self.tokens[begin.slot], self.blocks[begin.slot] = list(begin.tokens), []
        for slot, at, blocks in plan.grown:
            self.blocks[slot][at:] = blocks
        for row in plan.rows:
            self._write(row)
        sampled = [self._sample(row) for row in plan.sampled]
        prompts = {row.request_id: self._told(row) for row in plan.rows if self._asks(row)}
        return StepResult([token for token, _ in sampled], [told for _, told in sampled], prompts)

    def _cell(self, slot: int, position: int) -> int:
        return self.blocks[slot][position // self.block_size] * self.block_size + position % self.block_size

    def _write(self, row: Row) -> None:
        for position in range(row.start, row.end):
            before = self.cells[self._cell(row.slot, position - 1)] if position else 0
            self.cells[self._cell(row.slot, position)] = cell(before, self.tokens[row.slot][position])
        self.computed += row.length

    def _sample(self, row: Row) -> tuple[int, TokenLogprobs | None]:
        seen = [self.cells[self._cell(row.slot, position)] for position in range(row.end)]
        params = self.slots[row.slot].params
        sick = self.slots[row.slot].request_id in self.sick
        token = BROKEN if sick else next_token(seen, params.seed, self.vocab)
        del self.tokens[row.slot][row.end :]
        self.tokens[row.slot].append(token)
        return token, None if params.logprobs is None else _told(token, row.end)

    def _asks(self, row: Row) -> bool:
        begin = self.slots[row.slot]
        return begin.params.prompt_logprobs is not None and row.start + 1 < begin.prompt_len

    def _told(self, row: Row) -> list[TokenLogprobs]:
        last = min(row.end, self.slots[row.slot].prompt_len - 1)
        return [_told(self.tokens[row.slot][p + 1], p + 1) for p in range(row.start, last)]


def _told(token: int, position: int) -> TokenLogprobs:
    """Not probabilities, but recognisable: token and position."""
    return TokenLogprobs(-float(position), 1, ((token, -float(position)),))


def position_of(told: TokenLogprobs) -> int:
    return round(-told.logprob)
