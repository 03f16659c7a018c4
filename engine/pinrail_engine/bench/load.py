"""What the two drivers share: which jobs, how they are paced, and for how long. Pure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from .alone import Rates
from .oracle import oracle_tokens
from .records import Record
from .workload import Job, Piece

_WARM_UP_OUTPUT = 16  # tokens at most
_WARM_UP_KEYS = 2**40  # added to the keys, so that no warm-up leaves a prefix behind that the run would find


Progress = Callable[[int], None]
"""Called with 1 when a job has ended."""


def silent(_: int) -> None:
    """Shows no progress."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    jobs: Sequence[Job]  # by arrival
    vocab_size: int  # token ids are below it
    seed: int  # of the tokens
    timeout: float  # seconds, for all of it; what has not ended by then is cut off
    block_size: int = 16  # tokens, of the oracle's cache
    concurrency: int = 0  # requests at once, each sent when another has ended; 0: at their arrivals

    def records(self, rates: Rates | None = None) -> list[Record]:
        """One per job, of nothing that has happened yet."""
        hits = oracle_tokens(self.jobs, self.block_size)
        return [
            Record(job.prompt_len, job.arrival, hit, rates.alone(job) if rates else None)
            for job, hit in zip(self.jobs, hits, strict=True)
        ]

    def warm_up(self, requests: int) -> "Load":
        """So many of the first jobs with other tokens and short outputs, one at a time."""
        jobs = [_fresh(job) for job in self.jobs[:requests]]
        return replace(self, jobs=jobs, concurrency=1)


def _fresh(job: Job) -> Job:
    prompt = tuple(Piece(key + _WARM_UP_KEYS, length) for key, length in job.prompt)
    return replace(job, prompt=prompt, output=job.output._replace(length=min(job.output_len, _WARM_UP_OUTPUT)))
