"""A device that writes down what it is asked for and computes on the CPU. Order only: nothing here has run on a GPU."""

from collections.abc import Callable

import torch
from torch import Tensor

from pinrail_engine.run.device import Replay


class RecordingDevice:
    place = torch.device("cpu")

    def __init__(self) -> None:
        self.calls: list[str] = []

    def begin(self) -> None:
        self.calls.append("begin")

    def record(self, work: Callable[[], Tensor]) -> tuple[Replay, Tensor]:
        """As a graph does, a replay fills the same memory; it does not see what it is given afterwards."""
        out = work()
        self.calls.append(f"record {out.shape[0]}")

        def replay() -> None:
            self.calls.append(f"replay {out.shape[0]}")
            out.copy_(work())

        return replay, out

    def copy_back(self, numbers: Tensor) -> Callable[[], list[int]]:
        copy = numbers.clone()  # the memory may be written over by the next step
        self.calls.append(f"copy {copy.shape[0]}")

        def wait() -> list[int]:
            self.calls.append("wait")
            values: list[int] = copy.tolist()
            return values

        return wait

    def measure(self, work: Callable[[], object]) -> tuple[int, int]:
        self.calls.append("measure")
        work()
        return 0, 2**20
