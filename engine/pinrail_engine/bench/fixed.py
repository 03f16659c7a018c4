"""Four fixed workloads, whose figures are compared between machines and servers. Pure.

| workload | requests, all at once | tokens in each                     | out of each |
|----------|-----------------------|------------------------------------|-------------|
| single   | 1                     | 32                                 | 128         |
| prefill  | 1                     | 1024                               | 1           |
| batch    | 32                    | 64 to 256                          | 32 to 128   |
| prefix   | 32                    | 512 that all begin with, 32 of own | 32          |

Lengths are always the same. Tokens are random, and others in each run, so nothing of a run is found in a cache by the
next one: the prefix is new in each.
"""

from dataclasses import replace
from enum import StrEnum
from random import Random

from .workload import Job, Piece

_AT_ONCE = 32  # requests
_PREFIX = 512  # tokens
_WARM_UP_OUTPUT = 4  # tokens at most


class Fixed(StrEnum):
    SINGLE = "single"
    PREFILL = "prefill"
    BATCH = "batch"
    PREFIX = "prefix"


def _batch() -> list[tuple[int, int]]:
    dice = Random(0)
    return [(dice.randint(64, 256), dice.randint(32, 128)) for _ in range(_AT_ONCE)]


_LENGTHS = {  # of what a request has of its own, and of its output
    Fixed.SINGLE: [(32, 128)],
    Fixed.PREFILL: [(1024, 1)],
    Fixed.BATCH: _batch(),
    Fixed.PREFIX: [(32, 32)] * _AT_ONCE,
}


def jobs(workload: Fixed, run: int) -> tuple[Job, ...]:
    """Args: run: from 1; no two prompts of all workloads and runs begin alike, but for the prefix within a run."""
    common = (Piece(_key(f"{workload}/{run}"), _PREFIX),) if workload is Fixed.PREFIX else ()
    return tuple(
        _job(f"{workload}/{run}/{i}", common, own, output) for i, (own, output) in enumerate(_LENGTHS[workload])
    )


def warm_up(workload: Fixed) -> tuple[Job, ...]:
    """Prompts of yet another run, with outputs of a few tokens; what they take does not count."""
    return tuple(
        replace(job, output=job.output._replace(length=min(job.output_len, _WARM_UP_OUTPUT)))
        for job in jobs(workload, 0)
    )


def first_request() -> tuple[Job, ...]:
    """What a server that has just started is asked: 32 tokens in, one out."""
    return (_job("start", (), 32, 1),)


def _job(name: str, common: tuple[Piece, ...], own: int, output: int) -> Job:
    return Job(0.0, (*common, Piece(_key(name), own)), Piece(-_key(name), output))


def _key(name: str) -> int:
    return int.from_bytes(name.encode())
