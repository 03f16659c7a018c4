"""Where steps are carried out, one after another, while the host plans the next.

On a CPU that is a thread, which gives the interpreter up while it computes. It is the only thread that touches
weights, cache and table, so nothing there is locked. A CUDA stream with captured graphs takes this place.

All that computes has to come here: an OpenMP runtime keeps a team for each thread that ever did, and where teams have
more threads than there are processors, they no longer wait for work actively, which costs a third of the speed.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


class DeviceQueue:
    def __init__(self) -> None:
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="device")

    def launch(self, work: Callable[[], T]) -> Callable[[], T]:
        """Returns what waits for the result, or raises what `work` raised."""
        return self._worker.submit(work).result

    def run(self, work: Callable[[], T]) -> T:
        """As `launch`, and wait."""
        return self.launch(work)()

    def close(self) -> None:
        """After the last piece of work."""
        self._worker.shutdown()
