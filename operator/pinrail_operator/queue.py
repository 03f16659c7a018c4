"""A queue of keys whose work may be due: each at most once, each in at most one task, with back-off. I/O of time alone.

It knows nothing of what the work is.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from .errors import Conflict, Ending, NotLeader, Refused, Unavailable

log = logging.getLogger("pinrail.operator")

Key = TypeVar("Key", bound=Hashable)
FIRST_DELAY = 0.5  # seconds before the first retry; each one after waits twice as long
LONGEST_DELAY = 60.0  # seconds
LONGEST_OUTAGE_DELAY = 20.0  # seconds; an outage is no key's fault, and ends for all of them at once
FOLLOWER_DELAY = 2.0  # seconds; keys stay, so that a follower that takes over has work at once


@dataclass(slots=True)
class KeyQueue(Generic[Key]):
    """Level-triggered: a key says that its object may have changed, never how."""

    concurrency: int
    turned_at: float = 0.0  # the loop's time when the queue last looked at itself
    _due: dict[Key, float] = field(default_factory=dict)  # key -> the loop's time
    _running: set[Key] = field(default_factory=set)
    _failures: dict[Key, int] = field(default_factory=dict)  # in a row
    _not_before: dict[Key, float] = field(default_factory=dict)  # the end of a back-off
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def add(self, key: Key, delay: float = 0.0) -> None:
        """Ask for work on `key` after `delay` seconds, or when it was due anyway, whichever is sooner."""
        due = max(self._now() + delay, self._not_before.get(key, 0.0))
        self._due[key] = min(due, self._due.get(key, due))
        self._changed.set()

    def waiting(self) -> tuple[float, ...]:
        """How long each key that is due has waited for its turn, in seconds."""
        now = self._now()
        return tuple(now - at for key, at in list(self._due.items()) if self._is_due(key, at))

    async def run(self, work: Callable[[Key], Awaitable[float | None]]) -> None:
        """Work for ever; `work` returns the seconds until the key is due again, or None to forget it."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                self._changed.clear()
                self.turned_at = self._now()
                for key in self._ready():
                    del self._due[key]
                    self._running.add(key)
                    tasks.create_task(self._work(key, work))
                await self._wait()

    async def _work(self, key: Key, work: Callable[[Key], Awaitable[float | None]]) -> None:
        try:
            again = await work(key)
            self._failures.pop(key, None)
            self._not_before.pop(key, None)
        except NotLeader:
            again = FOLLOWER_DELAY
        except Ending:
            again = None
        except (Conflict, Refused, Unavailable) as e:
            again = self._back_off(key, e)
            log.warning("%s: %s; again in %.1f s", key, e, again)
        except Exception as e:
            again = self._back_off(key, e)
            log.exception("%s: a bug; again in %.1f s", key, again)
        self._running.discard(key)
        self._changed.set()
        if again is not None:
            self.add(key, again)

    def _back_off(self, key: Key, error: Exception) -> float:
        """The seconds to wait after one more failure; events that come meanwhile wait too."""
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        longest = LONGEST_OUTAGE_DELAY if isinstance(error, Unavailable) else LONGEST_DELAY
        delay = min(longest, FIRST_DELAY * float(2 ** min(failures - 1, 10)))
        delay = max(delay, error.retry_after) if isinstance(error, Unavailable) else delay
        self._not_before[key] = self._now() + delay
        if key in self._due:  # it changed while it ran
            self._due[key] = self._not_before[key]
        return delay

    def _ready(self) -> list[Key]:
        free = self.concurrency - len(self._running)
        due = sorted((at, i) for i, (key, at) in enumerate(self._due.items()) if self._is_due(key, at))
        keys = list(self._due)
        return [keys[i] for _, i in due[: max(0, free)]]

    def _is_due(self, key: Key, at: float) -> bool:
        return at <= self._now() and key not in self._running

    async def _wait(self) -> None:
        """Until something was added or has ended, or the next key is due."""
        waiting = [at for key, at in self._due.items() if key not in self._running]
        is_full = len(self._running) >= self.concurrency
        timeout = 10.0 if is_full or not waiting else min(10.0, max(0.0, min(waiting) - self._now()))
        try:
            async with asyncio.timeout(timeout):
                await self._changed.wait()
        except TimeoutError:
            return

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()
