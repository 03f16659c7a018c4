"""What computes a step. `torch_backend` is the one for now; tests have one that is arithmetic."""

from collections.abc import Sequence
from typing import Protocol

from ..core.plan import StepPlan


class Backend(Protocol):
    """Called from one thread, in the order load, step…, free."""

    def load(self) -> None:
        """Read the weights and take the memory; raises EngineError."""

    def step(self, plan: StepPlan) -> Sequence[int]:
        """Compute every row of a plan; one token id for each of `plan.sampled`, in that order."""

    def free(self) -> None:
        """Give the memory back."""
