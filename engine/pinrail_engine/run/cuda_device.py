"""A GPU, by way of torch.cuda: a stream of its own, results that come back on their own, recorded graphs.

What goes there is staged in pinned memory by `on_device`, and comes back into pinned memory, so the host never waits
but in the function that `copy_back` returns: the next step is launched meanwhile. Torch's allocator keeps pinned memory
until the copies out of it are done.

Nothing here has run on a GPU yet: it is written from the documentation of torch.cuda, and tests check order alone.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from .device import Replay


class CudaDevice:
    def __init__(self) -> None:
        self.place = torch.device("cuda", torch.cuda.current_device())
        self._pool = torch.cuda.graph_pool_handle()  # of all graphs: no two of them are replayed at once

    def begin(self) -> None:
        own = torch.cuda.Stream(self.place)  # type: ignore[no-untyped-call]
        torch.cuda.set_stream(own)  # of the calling thread, from now on

    def copy_back(self, numbers: Tensor) -> Callable[[], list[int]]:
        host = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True)
        host.copy_(numbers, non_blocking=True)
        copied = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]  # who waits sleeps
        copied.record()

        def wait() -> list[int]:
            copied.synchronize()  # raises what went wrong on the device
            values: list[int] = host.tolist()
            return values

        return wait

    def record(self, work: Callable[[], Tensor]) -> tuple[Replay, Tensor]:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            out = work()
        return graph.replay, out

    def measure(self, work: Callable[[], object]) -> tuple[int, int]:
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        work()
        peak = torch.cuda.max_memory_allocated() - before
        torch.cuda.empty_cache()  # or what `work` gave back would not count as free
        free, _ = torch.cuda.mem_get_info()
        return peak, free
