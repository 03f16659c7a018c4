"""What is asked of an engine, and when. Pure.

A prompt is a recipe: a list of pieces, each of which stands for tokens that follow from its key. Prompts that begin
with the same pieces begin with the same tokens, so a trace that names blocks replays its prefix sharing exactly, and
a workload of millions of tokens takes memory for its recipes alone.
"""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import shake_128
from itertools import islice
from typing import NamedTuple

_TOKEN_BYTES = 4


class Piece(NamedTuple):
    """A run of tokens. Of the same key, a shorter one is the beginning of a longer one."""

    key: int
    length: int  # tokens, at least 1

    def tokens(self, vocab_size: int, seed: int) -> list[int]:
        data = shake_128(f"{seed}/{self.key}".encode()).digest(self.length * _TOKEN_BYTES)
        return [token % vocab_size for token in array("I", data)]


@dataclass(frozen=True, slots=True)
class Job:
    """One request."""

    arrival: float  # seconds from the start
    prompt: tuple[Piece, ...]
    output: Piece  # what a simulated model answers; a real one is asked for as many tokens

    @property
    def prompt_len(self) -> int:
        return sum(piece.length for piece in self.prompt)

    @property
    def output_len(self) -> int:
        return self.output.length

    def prompt_tokens(self, vocab_size: int, seed: int) -> list[int]:
        return [token for piece in self.prompt for token in piece.tokens(vocab_size, seed)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How a workload is changed before it is used, in this order."""

    skip: int = 0  # jobs left out at the beginning
    limit: int = 0  # jobs kept after those; 0: all
    time_scale: float = 1.0  # times between arrivals are multiplied by it
    length_scale: float = 1.0  # lengths are multiplied by it, and stay at least 1
    max_len: int = 0  # tokens that prompt and output may have together; 0: any

    def __post_init__(self) -> None:
        for name, value in (("skip", self.skip), ("limit", self.limit), ("max_len", self.max_len)):
            if value < 0:
                raise ValueError(f"{name}: got {value}, want 0 or more")
        if self.max_len == 1:
            raise ValueError("max_len: got 1, want at least 2: a token of prompt and one of output")
        if self.time_scale < 0 or self.length_scale <= 0:
            raise ValueError(
                f"scales: got {self.time_scale:g} and {self.length_scale:g}, want 0 or more (time) and above 0 (length)"
            )


@dataclass(frozen=True, slots=True)
class Workload:
    name: str
    jobs: tuple[Job, ...]  # by arrival
    cut: int = 0  # jobs shortened to fit `max_len`


def shaped(name: str, jobs: Iterable[Job], shape: Shape) -> Workload:
    """The first of the kept jobs arrives at 0. No more of `jobs` is read than is kept."""
    kept = islice(jobs, shape.skip, shape.skip + shape.limit if shape.limit else None)
    scaled = list(_scaled(kept, shape))
    fitting = [_fitted(job, shape.max_len) for job in scaled] if shape.max_len else scaled
    cut = sum(before is not after for before, after in zip(scaled, fitting, strict=True))
    return Workload(name, tuple(fitting), cut)


def _scaled(jobs: Iterable[Job], shape: Shape) -> Iterator[Job]:
    began: float | None = None
    for job in jobs:
        began = job.arrival if began is None else began
        yield Job(
            (job.arrival - began) * shape.time_scale,
            _resized(job.prompt, shape.length_scale),
            _resized((job.output,), shape.length_scale)[0],
        )


def _resized(pieces: Sequence[Piece], scale: float) -> tuple[Piece, ...]:
    """Scales where pieces end, so that no error adds up, and equal beginnings stay equal."""
    if scale == 1.0:
        return tuple(pieces)
    resized: list[Piece] = []
    before = after = 0
    for key, length in pieces:
        before += length
        end = max(1, round(before * scale))
        if end > after:
            resized.append(Piece(key, end - after))
        after = end
    return tuple(resized)


def _fitted(job: Job, max_len: int) -> Job:
    """The job where it fits; else the output keeps half, or what the prompt leaves, and the prompt's end is cut."""
    if job.prompt_len + job.output_len <= max_len:
        return job
    room = max(max_len // 2, max_len - job.prompt_len)
    output = job.output._replace(length=min(job.output_len, room))
    return replace(job, prompt=_head(job.prompt, max_len - output.length), output=output)


def _head(pieces: Sequence[Piece], tokens: int) -> tuple[Piece, ...]:
    head = []
    for piece in pieces:
        if tokens <= 0:
            break
        head.append(piece._replace(length=min(piece.length, tokens)))
        tokens -= piece.length
    return tuple(head)


def at_rate(workload: Workload, arrivals: Iterable[float]) -> Workload:
    """The same jobs at other times: `arrivals` in seconds, in order, at least one per job."""
    jobs = tuple(replace(job, arrival=at) for job, at in zip(workload.jobs, arrivals, strict=False))
    return replace(workload, jobs=jobs)
