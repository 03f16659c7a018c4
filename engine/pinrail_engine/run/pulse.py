"""Is the engine alive, and how fast do places in its queue come free? Pure: times are arguments.

All times are seconds on one monotonic clock.
"""

import math
from dataclasses import dataclass

_GRACE = 30.0  # seconds that a step may take at least
_PATIENCE = 20.0  # times the slowest step so far that one may take: a full budget of tokens may not have come yet
_WEIGHT = 0.1  # of the newest sample in a moving average
_LONGEST_RETRY = 60  # seconds


@dataclass(slots=True)
class Pulse:
    progress_at: float  # when a step last ended, or work came to an idle engine
    departure_at: float  # when a request last ended, or work came to an idle engine
    slowest_step: float = 0.0  # seconds
    departure_seconds: float | None = None  # moving average, between two ends of requests
    last_step_end: float | None = None  # since work last came to an idle engine

    def woke(self, now: float) -> None:
        """Work came to an idle engine."""
        self.progress_at = self.departure_at = now
        self.last_step_end = None

    def step_began(self, launched: float) -> tuple[float | None, float]:
        """How long the device had been idle before a step, with work there, and when it began to compute it.

        | the step before            | idle               | began            |
        |----------------------------|--------------------|------------------|
        | there was none to wait for | None               | at its launch    |
        | ended before the launch    | from that end      | at its launch    |
        | ended after the launch     | 0                  | at that end      |
        """
        if self.last_step_end is None:
            return None, launched
        began = max(launched, self.last_step_end)
        return began - self.last_step_end, began

    def step_ended(self, now: float, seconds: float) -> None:
        self.progress_at = self.last_step_end = now
        self.slowest_step = max(self.slowest_step, seconds)

    def request_ended(self, now: float) -> None:
        self.departure_seconds = _average(self.departure_seconds, now - self.departure_at)
        self.departure_at = now

    def is_late(self, now: float) -> bool:
        """A busy engine has made no step for longer than any step should take."""
        return now - self.progress_at > max(_GRACE, _PATIENCE * self.slowest_step)

    def retry_after(self, queued: int, now: float) -> int:
        """Seconds, 1 to 60, until half of a full queue should have gone: there is room again, and the engine not idle.

        Before any request has ended, the time that the first has taken so far stands for the average.
        """
        each = now - self.departure_at if self.departure_seconds is None else self.departure_seconds
        return max(1, min(_LONGEST_RETRY, math.ceil(each * queued / 2)))


def _average(old: float | None, new: float) -> float:
    return new if old is None else old + _WEIGHT * (new - old)
