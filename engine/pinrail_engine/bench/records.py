"""What happened to each request of a run, whoever served it. All times are seconds from the run's start."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum


class Ending(StrEnum):
    FINISHED = "finished"  # all of its output came
    REFUSED = "refused"  # not let in, or sent away from the queue
    FAILED = "failed"  # an error ended it
    CUT = "cut"  # the run's time was over


@dataclass(slots=True)
class Record:
    prompt_len: int  # tokens
    arrival: float  # when it was meant to be sent: a late driver counts against the server
    oracle_tokens: int = 0  # of the prompt, that a perfect cache would have had
    alone: float | None = None  # seconds that it would take on an idle engine; None: not known
    scheduled_at: float | None = None  # first in a step; None: never, or not told
    first_token_at: float | None = None
    last_token_at: float | None = None
    ended_at: float | None = None
    output_len: int = 0  # tokens that came
    gaps: "array[float]" = field(default_factory=lambda: array("d"))  # between one arrival of tokens and the next
    cached_tokens: int | None = None  # of the prompt, found in the cache; None: not told
    ending: Ending = Ending.CUT
    error: str = ""  # one sentence, where it was refused or failed

    @property
    def ttft(self) -> float | None:
        """Seconds to the first token."""
        return None if self.first_token_at is None else self.first_token_at - self.arrival

    @property
    def tpot(self) -> float | None:
        """Seconds per token after the first; None where there are none."""
        if self.first_token_at is None or self.last_token_at is None or self.output_len < 2:
            return None
        return (self.last_token_at - self.first_token_at) / (self.output_len - 1)

    @property
    def e2e(self) -> float | None:
        """Seconds to the end."""
        return None if self.ended_at is None else self.ended_at - self.arrival

    @property
    def queue(self) -> float | None:
        """Seconds to the first step that it is in."""
        return None if self.scheduled_at is None else self.scheduled_at - self.arrival

    @property
    def slowdown(self) -> float | None:
        """Times as long as on an idle engine."""
        return self.e2e / self.alone if self.e2e is not None and self.alone else None

    def token(self, now: float, n: int = 1) -> None:
        """Note that `n` tokens came."""
        if self.first_token_at is None:
            self.first_token_at = now
        elif self.last_token_at is not None:
            self.gaps.append(now - self.last_token_at)
        self.last_token_at = now
        self.output_len += n

    def end(self, now: float, ending: Ending, error: str = "") -> None:
        self.ended_at, self.ending, self.error = now, ending, error


@dataclass(frozen=True, slots=True)
class Sample:
    """The engine at one moment."""

    at: float
    waiting: int  # requests
    running: int  # requests
    kv_used: float  # share of the cache's blocks that requests hold, 0 to 1


class Series:
    """Samples of a run of any length: of too many, each second one goes, and later ones come half as often."""

    def __init__(self, most: int = 2048) -> None:
        self._most, self._every, self._seen = most, 1, 0
        self.samples: list[Sample] = []

    def step(self) -> bool:
        """Call once for each step, and `add` where True."""
        self._seen += 1
        return self._seen % self._every == 0

    def add(self, sample: Sample) -> None:
        self.samples.append(sample)
        if len(self.samples) >= self._most:
            del self.samples[::2]
            self._every *= 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One column of a report."""

    name: str  # of the policy or the server
    records: Sequence[Record]
    seconds: float  # from the start to the end of the last request
    samples: Sequence[Sample] = ()
    recomputed_tokens: int | None = None  # computed again after a preemption; None: not told
    surplus_rows: int | None = None  # rows of steps whose result nobody wanted any more; None: not told
    steps: int | None = None
    preemptions: int | None = None
