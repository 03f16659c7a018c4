"""Ends the process where a step never ends: its thread cannot be stopped, but whoever runs the process starts another.

Knows nothing of how the engine tells; what it was doing is on stderr, why it ended in the termination message.
"""

import faulthandler
import os
import sys
import threading
from collections.abc import Callable
from typing import Protocol, Self

from pinrail_contract.termination import ExitCode, Reason, Termination, write

_INTERVAL = 5.0  # seconds between two looks
_STDERR = 2


class Watched(Protocol):
    """What is looked at; `loop.EngineLoop` is it."""

    @property
    def last_step_age(self) -> float:
        """Seconds since progress; 0 while idle."""

    def is_hung(self) -> bool:
        """There is work, and no step has ended for too long."""


class Watchdog:
    """Looks at the engine from a thread of its own, as long as the context lasts.

    Args:
        end: Ends the process with an exit code, whatever its other threads are doing.
    """

    def __init__(self, engine: Watched, end: Callable[[int], object] = os._exit) -> None:
        self._engine, self._end = engine, end
        self._was_hung = False
        self._stopped = threading.Event()

    def __enter__(self) -> Self:
        threading.Thread(target=self._run, name="watchdog", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()

    def look(self) -> None:
        """End the process at the second look in a row that finds the engine hung.

        One look is not enough: a process that was suspended finds all that time gone before its step can end.
        """
        was_hung, self._was_hung = self._was_hung, self._engine.is_hung()
        if not (was_hung and self._was_hung):
            return
        message = f"the engine hangs: no step has ended for {self._engine.last_step_age:.0f} seconds"
        faulthandler.dump_traceback(_STDERR)
        print(f"pinrail serve: {message}", file=sys.stderr, flush=True)
        write(Termination(Reason.FAILED, f"{message}; the log holds the tracebacks of all threads"))
        self._end(ExitCode.HUNG)

    def _run(self) -> None:
        while not self._stopped.wait(_INTERVAL):
            self.look()
