"""What the torch backend asks of the place it computes on, beyond tensors; and the CPU's answers.

`cuda_device` has the GPU's, and tests have one that writes down what it is asked for.
"""

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from . import memory

Replay = Callable[[], object]
Record = Callable[[Callable[[], Tensor]], tuple[Replay, Tensor]]
"""Carries work out once in a way that can be repeated: what repeats it, and the tensor that each time fills anew."""


class Device(Protocol):
    """Called from the one thread that launches work."""

    place: torch.device
    record: Record | None  # None: what cannot be recorded is launched piece by piece each time

    def begin(self) -> None:
        """Before any other work of this thread."""

    def copy_back(self, numbers: Tensor) -> Callable[[], list[int]]:
        """Begin to copy whole numbers to the host; what is returned waits for them, and for all launched before."""

    def measure(self, work: Callable[[], object]) -> tuple[int, int]:
        """Bytes that `work` takes at its peak, and bytes that are free beside what was taken before."""


class HostDevice:
    place = torch.device("cpu")
    record = None

    def begin(self) -> None:
        pass

    def copy_back(self, numbers: Tensor) -> Callable[[], list[int]]:
        values: list[int] = numbers.tolist()
        return lambda: values

    def measure(self, work: Callable[[], object]) -> tuple[int, int]:
        return memory.peak_of(work), memory.free_bytes()
