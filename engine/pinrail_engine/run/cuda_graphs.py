"""Decode steps as recorded graphs: one launch in place of several hundred, which would take longer than the device.

A graph is a list of kernels with fixed arguments, so there is one for each of a few batch sizes: 1, 2, 4, 8, … rows. A
step takes the smallest that holds it. Rows that are left over are computed for a line of the table that no request ever
has; its blocks are one that nobody holds, so what they write there is read by no one else.

Which tokens, positions and blocks a row has, the graph reads from the table, so two numbers a row are all that a step
sends: its line and its position.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from .device import Record, Replay
from .penalties import on_device

Compute = Callable[[Tensor, Tensor], Tensor]
"""Lines [n] and positions [n], int64 on the device, to logits [n, vocab]; the same kernels for the same n."""


def sizes_up_to(most: int) -> list[int]:
    """Powers of two, and `most` itself."""
    return [2**i for i in range(most.bit_length()) if 2**i < most] + [most]


class DecodeGraphs:
    """Args: compute: What is recorded; nobody: The line of the table that no request has; most: Rows of a step."""

    def __init__(self, compute: Compute, nobody: int, most: int, place: torch.device) -> None:
        self._compute, self._nobody, self._place = compute, nobody, place
        self._sizes = sizes_up_to(most)
        self._graphs: dict[int, tuple[Tensor, Replay, Tensor]] = {}  # rows -> lines and positions [2, n], replay, out

    def record(self, record: Record) -> None:
        """The largest first: the others then live in the memory that it took."""
        for size in reversed(self._sizes):
            inputs = self._padded([], [], size)
            self._compute(*inputs)  # kernels are compiled and chosen, which must not happen while one is recorded
            replay, out = record(lambda inputs=inputs: self._compute(*inputs))  # type: ignore[misc]
            self._graphs[size] = inputs, replay, out

    def run(self, lines: Sequence[int], positions: Sequence[int]) -> Tensor:
        """Logits [n, vocab] of n decodes; their memory is written over by the next run."""
        size = next(size for size in self._sizes if size >= len(lines))
        inputs, replay, out = self._graphs[size]
        inputs.copy_(self._padded(lines, positions, size), non_blocking=True)
        replay()
        return out[: len(lines)]

    def _padded(self, lines: Sequence[int], positions: Sequence[int], size: int) -> Tensor:
        missing = size - len(lines)
        numbers = [[*lines, *[self._nobody] * missing], [*positions, *[0] * missing]]
        return on_device(numbers, torch.int64, self._place)
