"""Plays a load to the engine in this process, without HTTP. Acts: submits, waits, cuts off.

Requests are sent at their arrivals, however slow the answers are, or so many at once.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue

from ..core.types import Engine, FinishReason, Refused, SamplingParams, TokenEvent
from .alone import Rates
from .load import Load, Progress, silent
from .records import Ending, Record

_ENDINGS = {
    FinishReason.STOP: Ending.FINISHED,
    FinishReason.LENGTH: Ending.FINISHED,
    FinishReason.REJECTED: Ending.REFUSED,
    FinishReason.ERROR: Ending.FAILED,
    FinishReason.ABORT: Ending.CUT,
}


def drive(
    engine: Engine,
    load: Load,
    name: str,
    *,
    rates: Rates | None = None,
    progress: Progress = silent,
    clock: Callable[[], float] = time.monotonic,
) -> list[Record]:
    """One record per job; returns when all have ended, or the time is over.

    Args:
        name: Of the run: request ids begin with it.
        clock: Seconds, monotonic.
    """
    return _Drive(engine, load, name, load.records(rates), progress, clock).run()


class _Drive:
    def __init__(
        self,
        engine: Engine,
        load: Load,
        name: str,
        records: list[Record],
        progress: Progress,
        clock: Callable[[], float],
    ) -> None:
        self._engine, self._load, self._name, self._records = engine, load, name, records
        self._progress, self._clock = progress, clock
        self._began = clock()
        self._events: SimpleQueue[tuple[int, float, TokenEvent]] = SimpleQueue()
        self._living: set[int] = set()
        self._next = 0  # job to be sent

    def run(self) -> list[Record]:
        self._send_due()
        while self._next < len(self._records) or self._living:
            if self._now() >= self._load.timeout:
                self._cut()
                break
            with suppress(Empty):
                self._take(*self._events.get(timeout=self._patience()))
            self._send_due()
        return self._records

    def _now(self) -> float:
        return self._clock() - self._began

    def _send_due(self) -> None:
        while self._next < len(self._records) and self._is_due():
            self._send(self._next)
            self._next += 1

    def _is_due(self) -> bool:
        if self._load.concurrency:
            return len(self._living) < self._load.concurrency
        return self._load.jobs[self._next].arrival <= self._now()

    def _patience(self) -> float:
        """Seconds until something is to be done if no event comes."""
        until = self._load.timeout
        if self._next < len(self._records) and not self._load.concurrency:
            until = min(until, self._load.jobs[self._next].arrival)
        return max(0.0, until - self._now())

    def _send(self, i: int) -> None:
        job, record = self._load.jobs[i], self._records[i]
        prompt = job.prompt_tokens(self._load.vocab_size, self._load.seed)
        params = SamplingParams(max_tokens=job.output_len, temperature=0)
        if self._load.concurrency:
            record.arrival = self._now()
        self._living.add(i)
        try:
            self._engine.submit(self._id(i), prompt, params, lambda event: self._events.put((i, self._now(), event)))
        except Refused as e:
            self._end(i, self._now(), Ending.REFUSED, str(e))

    def _id(self, i: int) -> str:
        return f"{self._name}-{i}"

    def _take(self, i: int, at: float, event: TokenEvent) -> None:
        record = self._records[i]
        if event.token_ids:
            record.token(at, len(event.token_ids))
            record.cached_tokens = event.cached_tokens
        if event.finish is not None and i in self._living:
            self._end(i, at, _ENDINGS[event.finish], event.error)

    def _end(self, i: int, at: float, ending: Ending, error: str = "") -> None:
        self._records[i].end(at, ending, error)
        self._living.remove(i)
        self._progress(1)

    def _cut(self) -> None:
        """The time is over: end whoever lives; those not sent yet stay as they are, which is cut off."""
        for i in sorted(self._living):
            self._engine.finish(self._id(i), FinishReason.ABORT)
            self._end(i, self._now(), Ending.CUT)
