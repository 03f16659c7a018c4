"""What the native backend knows of each running request: its tokens, its blocks, its parameters. See `table`."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..core.plan import Begin, Row, StepPlan
from ..core.types import SamplingParams
from .native_sample import Draw

_NOBODY = SamplingParams(max_tokens=1)


class NativeTable:
    """A line for each slot.

    Args:
        slots: Requests that run at once.
        max_model_len: Tokens.
        block_size: Tokens.
    """

    def __init__(self, slots: int, max_model_len: int, block_size: int) -> None:
        self.tokens = np.zeros((slots, max_model_len), np.int32)
        self.blocks = np.zeros((slots, -(-max_model_len // block_size)), np.int32)
        self.params = [_NOBODY] * slots
        self.prompt_lens = [0] * slots  # tokens

    def apply(self, plan: StepPlan) -> None:
        """Take in who begins, and whose blocks are more."""
        for begin in plan.begins:
            self._begin(begin)
        for slot, at, blocks in plan.grown:
            self.blocks[slot, at : at + len(blocks)] = blocks

    def draw(self, row: Row) -> Draw:
        """How the token after a row is to be chosen."""
        return Draw(self.params[row.slot], self.tokens[row.slot, : row.end], self.prompt_lens[row.slot])

    def put(self, rows: Sequence[Row], tokens: NDArray[np.int64]) -> None:
        """Write down what was sampled after each row; a token that is none stands as 0, and is never read."""
        slots, ends = [row.slot for row in rows], [row.end for row in rows]
        self.tokens[slots, ends] = tokens.clip(min=0)

    def _begin(self, begin: Begin) -> None:
        self.tokens[begin.slot, : len(begin.tokens)] = begin.tokens
        self.params[begin.slot] = begin.params
        self.prompt_lens[begin.slot] = begin.prompt_len
