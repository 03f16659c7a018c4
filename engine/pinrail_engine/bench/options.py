"""The flags that say which workload, shared by `pinrail simulate` and `pinrail bench run`, and what they come to."""

import argparse
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from math import inf, isfinite
from pathlib import Path
from typing import Self, TypeVar

from pinrail_contract.progress import ProgressBar

from . import synthetic
from .plot import FORMATS
from .slo import Slo
from .synthetic import MIXES
from .traces import read_trace
from .workload import Shape, Workload, at_rate, shaped

_T = TypeVar("_T")
_Word = TypeVar("_Word", bound=StrEnum)
_PROGRESS_UNIT = 10**6  # what `ProgressBar` shows as 1


def checked(parse: Callable[[str], _T]) -> Callable[[str], _T]:
    """A type for argparse, whose message is the ValueError's."""

    def convert(text: str) -> _T:
        try:
            return parse(text)
        except ValueError as e:
            raise argparse.ArgumentTypeError(str(e)) from e

    return convert


def integer(least: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        value = int(text) if text.removeprefix("-").isdecimal() else None
        if value is None or value < least:
            raise ValueError(f"got {text}, want an integer, {least} or more")
        return value

    return checked(parse)


def _number(text: str) -> float:
    """Also a fraction such as 1/16; nan where it is none."""
    above, _, below = text.partition("/")
    try:
        return float(above) / float(below or 1)
    except (ValueError, ZeroDivisionError):
        return float("nan")


def number(*, least: float = 0.0, above: bool = False, infinite: bool = False) -> Callable[[str], float]:
    """Args: above: `least` itself is refused; infinite: `inf` is allowed."""

    def parse(text: str) -> float:
        value = _number(text)
        if (value > least if above else value >= least) and (isfinite(value) or (infinite and value == inf)):
            return value
        wanted = f"a number above {least:g}" if above else f"a number, {least:g} or more"
        raise ValueError(f"got {text}, want {wanted}{' or inf' if infinite else ''}")

    return checked(parse)


def one_of(kind: type[_Word]) -> Callable[[str], _Word]:
    def parse(text: str) -> _Word:
        if text not in list(kind):
            raise ValueError(f"got {text}, want {', '.join(kind)}")
        return kind(text)

    return checked(parse)


def _picture(text: str) -> Path:
    path = Path(text)
    if path.suffix not in FORMATS:
        raise ValueError(f"got {text}, want a name that ends in {' or '.join(FORMATS)}")
    return path


def add_flags(parser: argparse.ArgumentParser) -> None:
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--trace", type=Path, help="file of an Azure, BurstGPT, Mooncake or Bailian trace")
    which.add_argument("--mix", choices=list(MIXES), help="synthetic requests")
    parser.add_argument("--skip", type=integer(0), default=0, help="requests left out at the beginning")
    parser.add_argument("--limit", type=integer(1), default=0, help="requests at most; of a mix: as many are made")
    parser.add_argument("--time-scale", type=number(), default=1.0, help="times between arrivals are multiplied by it")
    scale = "lengths are multiplied by it, such as 1/16 to replay a GPU's trace on a CPU"
    parser.add_argument("--length-scale", type=number(above=True), default=1.0, help=scale)
    rate = "requests per second, instead of the workload's own arrivals; inf: all at once"
    parser.add_argument("--rate", type=number(above=True, infinite=True), help=rate)
    burstiness = "shape of the gamma distribution of gaps, with --rate or --mix: 1 is Poisson, less is burstier"
    parser.add_argument("--burstiness", type=number(above=True), default=0.0, help=burstiness)
    parser.add_argument("--concurrency", type=integer(1), default=0, help="requests at once, instead of arrivals")
    parser.add_argument("--seed", type=integer(0), default=0, help="of tokens, lengths and arrivals")
    slo = "what counts as good, such as ttft:500ms,itl:50ms (itl: 99 %% of a request's own gaps)"
    parser.add_argument("--slo", type=checked(Slo.parse), help=slo)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    parser.add_argument("--plot", type=checked(_picture), help="write a picture too: a .png or .svg file")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the flags above say."""

    trace: Path | None
    mix: str | None
    shape: Shape
    rate: float | None  # per second; None: the workload's own arrivals
    burstiness: float  # 0: the mix's own; Poisson for a trace
    seed: int
    slo: Slo | None
    json: bool
    plot: Path | None

    @classmethod
    def of(cls, args: argparse.Namespace) -> Self:
        return cls(
            trace=args.trace,
            mix=args.mix,
            shape=Shape(skip=args.skip, limit=args.limit, time_scale=args.time_scale, length_scale=args.length_scale),
            rate=args.rate,
            burstiness=args.burstiness,
            seed=args.seed,
            slo=args.slo,
            json=args.json,
            plot=args.plot,
        )

    def workload(self, max_len: int) -> Workload:
        """Args: max_len: tokens that prompt and output may have together; 0: any. Raises TraceError, OSError."""
        shape = replace(self.shape, max_len=max_len)
        if self.trace is not None:
            workload = shaped(self.trace.name, read_trace(self.trace), shape)
            if self.rate is None:
                return workload
            return at_rate(workload, synthetic.arrivals(self.seed, self.rate, self.burstiness or 1.0))
        assert self.mix is not None, "the flags ask for one of both"
        mix = MIXES[self.mix]
        made = shape.skip + (shape.limit or mix.requests)
        jobs = synthetic.jobs(mix, self.seed, requests=made, rate=self.rate, burstiness=self.burstiness)
        return shaped(self.mix, jobs, shape)


class RequestBar:
    """A progress bar that counts requests, or something else."""

    def __init__(self, label: str, requests: int, unit: str = "requests") -> None:
        self.bar = ProgressBar(label, requests * _PROGRESS_UNIT, unit)

    def __call__(self, n: int) -> None:
        self.bar(n * _PROGRESS_UNIT)
