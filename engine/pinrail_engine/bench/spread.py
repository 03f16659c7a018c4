"""Figures of the fixed workloads: out of each run's records, then over the runs. Pure.

A figure's name ends with its unit: tokens_per_second, seconds or bytes.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from .errors import BenchError
from .fixed import Fixed
from .records import Ending, Record
from .report import quantiles
from .workload import Job

Values = Mapping[str, float]
"""Figure -> its value in one run."""


@dataclass(frozen=True, slots=True)
class Spread:
    """One figure over the runs."""

    median: float
    least: float
    most: float

    def to_json(self) -> dict[str, float]:
        return {"median": round(self.median, 6), "min": round(self.least, 6), "max": round(self.most, 6)}


Spreads = Mapping[str, Spread]
"""Figure -> its values over the runs."""


@dataclass(frozen=True, slots=True)
class Column:
    """What was measured of one engine or server."""

    name: str
    about: Mapping[str, str]  # what it says of itself
    sections: Mapping[str, Spreads]  # workload, `start` or `end` -> its figures

    def to_json(self) -> dict[str, Any]:
        figures = {
            section: {figure: spread.to_json() for figure, spread in of_runs.items()}
            for section, of_runs in self.sections.items()
        }
        return {"name": self.name, "engine": dict(self.about), "figures": figures}


def spreads(runs: Sequence[Values]) -> Spreads:
    """Of the figures that every run has. Args: runs: at least one."""
    known = [figure for figure in runs[0] if all(figure in values for values in runs)]
    return {figure: _spread([values[figure] for values in runs]) for figure in known}


def _spread(values: Sequence[float]) -> Spread:
    return Spread(median(values), min(values), max(values))


def figures_of(workload: Fixed, records: Sequence[Record]) -> Values:
    """One run's figures; those that it has no value of are left out. Args: records: of requests that finished.

    | workload | figures                                                                                       |
    |----------|-----------------------------------------------------------------------------------------------|
    | single   | output after the first token per second between tokens; output per second of all; first token |
    | prefill  | prompt per second until the first token; first token                                          |
    | batch    | output per second until the last one ended; first token, and the gaps of all, by quantile     |
    | prefix   | seconds until the last one ended; first token, by quantile                                    |
    """
    return {figure: value for figure, value in _FIGURES[workload](records).items() if value is not None}


def _single(records: Sequence[Record]) -> Mapping[str, float | None]:
    (record,) = records
    tpot = record.tpot
    return {
        "decode_tokens_per_second": 1 / tpot if tpot else None,
        "output_tokens_per_second": record.output_len / _seconds(records),
        "first_token_seconds": record.ttft,
    }


def _prefill(records: Sequence[Record]) -> Mapping[str, float | None]:
    (record,) = records
    ttft = record.ttft
    return {"prompt_tokens_per_second": record.prompt_len / ttft if ttft else None, "first_token_seconds": ttft}


def _batch(records: Sequence[Record]) -> Mapping[str, float | None]:
    gaps = quantiles(gap for record in records for gap in record.gaps)
    return {
        "output_tokens_per_second": sum(r.output_len for r in records) / _seconds(records),
        **_first_tokens(records),
        "between_tokens_p50_seconds": gaps and gaps.p50,
        "between_tokens_p99_seconds": gaps and gaps.p99,
    }


def _prefix(records: Sequence[Record]) -> Mapping[str, float | None]:
    return {"seconds": _seconds(records), **_first_tokens(records)}


_FIGURES: Mapping[Fixed, Callable[[Sequence[Record]], Mapping[str, float | None]]] = {
    Fixed.SINGLE: _single,
    Fixed.PREFILL: _prefill,
    Fixed.BATCH: _batch,
    Fixed.PREFIX: _prefix,
}


def _first_tokens(records: Sequence[Record]) -> Mapping[str, float | None]:
    ttft = quantiles(r.ttft for r in records)
    return {"first_token_p50_seconds": ttft and ttft.p50, "first_token_max_seconds": ttft and ttft.max}


def _seconds(records: Sequence[Record]) -> float:
    """From the start to the last end."""
    return max(max(r.ended_at or 0.0 for r in records), 1e-9)


def require_all(name: str, jobs: Sequence[Job], records: Sequence[Record]) -> None:
    """Raises BenchError where a request did not end with as many tokens as were asked for: figures would mislead."""
    for job, record in zip(jobs, records, strict=True):
        if record.ending is not Ending.FINISHED:
            raise BenchError(f"{name}: a request was {record.ending}: {record.error or 'no reason was given'}")
        if record.output_len != job.output_len:
            wanted = f"{job.output_len}, with ignore_eos, and usage that counts them"
            raise BenchError(f"{name}: a request got {record.output_len} tokens, want {wanted}")
