"""What computes steps: `torch_backend` or `native_backend`; tests have one that is arithmetic."""

from collections.abc import Callable
from typing import Protocol

from ..core.plan import StepPlan, StepResult

Wait = Callable[[], StepResult]
"""Blocks until a step has been computed; raises what went wrong in it."""


class Backend(Protocol):
    """Called from one thread, in the order load, [measure,] allocate, launch…, free."""

    @property
    def instructions(self) -> str:
        """What it computes with: a processor's instruction set, or an accelerator's name."""

    def load(self) -> None:
        """Read the weights; raises EngineError."""

    def measure(self, seqs: int, tokens: int) -> int:
        """Bytes that a KV cache may take beside a step of so many requests and tokens, which is tried out."""

    def allocate(self, kv_blocks: int, seqs: int, max_model_len: int) -> None:
        """Take the memory of the KV cache and of the table of `seqs` slots."""

    def launch(self, plan: StepPlan) -> Wait:
        """Begin to compute every row of a plan, after those launched before."""

    def free(self) -> None:
        """Give the memory back, after the last step launched."""
