"""What the device knows of each running request: its tokens, its blocks, its parameters.

A step's input is small because of it: for each row a slot, a position and a length. What a step samples is written
here by the step itself, so the next one can be launched before the host has seen it.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from ..core.plan import Begin, Row, StepPlan
from ..core.types import SamplingParams
from .penalties import on_device
from .sample import Draw

_NOBODY = SamplingParams(max_tokens=1)


class Table:
    """A line for each slot.

    Args:
        slots: Requests that run at once.
        max_model_len: Tokens.
        block_size: Tokens.
    """

    def __init__(self, slots: int, max_model_len: int, block_size: int, device: torch.device) -> None:
        self.block_size, self.device = block_size, device
        self.tokens = torch.zeros(slots, max_model_len, dtype=torch.int32, device=device)
        self.blocks = torch.zeros(slots, -(-max_model_len // block_size), dtype=torch.int64, device=device)
        self.params = [_NOBODY] * slots
        self.prompt_lens = [0] * slots  # tokens

    def apply(self, plan: StepPlan) -> None:
        """Take in who begins, and whose blocks are more."""
        for begin in plan.begins:
            self._begin(begin)
        writes = [(slot, at + i, block) for slot, at, blocks in plan.grown for i, block in enumerate(blocks)]
        if writes:
            slots, places, blocks = on_device(writes, torch.int64, self.device).unbind(1)
            self.blocks[slots, places] = blocks

    def draw(self, row: Row) -> Draw:
        """How the token after a row is to be chosen."""
        return Draw(self.params[row.slot], self.tokens[row.slot, : row.end], self.prompt_lens[row.slot])

    def put(self, rows: Sequence[Row], tokens: Tensor) -> None:
        """Write down what was sampled after each row; a token that is none stands as 0, and is never read."""
        slots, ends = on_device([(row.slot, row.end) for row in rows], torch.int64, self.device).unbind(1)
        self.tokens[slots, ends] = tokens.clamp(min=0).to(torch.int32)

    def _begin(self, begin: Begin) -> None:
        known = on_device(begin.tokens, torch.int32, self.device)
        self.tokens[begin.slot, : len(begin.tokens)] = known
        self.params[begin.slot] = begin.params
        self.prompt_lens[begin.slot] = begin.prompt_len
