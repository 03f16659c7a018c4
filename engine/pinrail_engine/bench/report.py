"""Figures out of records. Pure.

| figure   | of one request                                                                    |
|----------|-----------------------------------------------------------------------------------|
| ttft     | seconds from arrival to the first token                                           |
| itl      | each gap between two arrivals of tokens, seconds; all requests' gaps are pooled    |
| tpot     | seconds per token after the first: (last - first) / (tokens - 1)                   |
| e2e      | seconds from arrival to the end                                                   |
| queue    | seconds from arrival to the first step that it is in; where the engine tells       |
| slowdown | e2e / what it would take on an idle engine without cache                          |

All but ttft and itl are of finished requests alone; those two are of whatever came. A quantile is the smallest value
that at least that share of the values does not exceed (nearest rank).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .records import Ending, Record, Run
from .slo import Slo

_Values = NDArray[np.float64]

PROMPT_BOUNDS = (256, 1024, 4096, 16384)  # tokens, the last one included; what is longer is a bucket too
OUTPUT_BOUNDS = (16, 128, 512, 2048)


class Quantiles(NamedTuple):
    samples: int
    p50: float
    p90: float
    p99: float
    max: float


@dataclass(frozen=True, slots=True)
class Latencies:
    """Seconds; None where there is no value."""

    ttft: Quantiles | None
    itl: Quantiles | None
    tpot: Quantiles | None
    e2e: Quantiles | None
    queue: Quantiles | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Everything that is told of a run. None: not known."""

    name: str
    requests: int
    endings: Mapping[Ending, int]  # requests by how they ended
    errors: Mapping[str, int]  # what was said of those refused or failed, most frequent first
    seconds: float
    input_tokens_per_second: float  # of finished requests, as the three below
    output_tokens_per_second: float
    requests_per_second: float
    goodput: float | None  # requests per second that met every objective
    overall: Latencies
    by_prompt: Mapping[str, Latencies]  # bucket -> of the requests in it; empty buckets are left out
    by_output: Mapping[str, Latencies]
    fairness: float | None  # Jain's index of slowdowns, up to 1: all alike
    recomputed_tokens: int | None
    cancelled_tokens: int  # computed for requests that did not finish
    surplus_rows: int | None
    hit_rate: float | None  # share of prompt tokens found in the cache
    oracle_hit_rate: float  # the same, of a cache without bounds
    preemptions: int | None
    steps: int | None

    def to_json(self) -> dict[str, Any]:
        plain = _plain(self)
        assert isinstance(plain, dict)
        return plain


def figures(run: Run, slo: Slo | None = None) -> Figures:
    records, seconds = run.records, max(run.seconds, 1e-9)
    done = [r for r in records if r.ending is Ending.FINISHED]
    return Figures(
        name=run.name,
        requests=len(records),
        endings={ending: sum(r.ending is ending for r in records) for ending in Ending},
        errors=_errors(records),
        seconds=run.seconds,
        input_tokens_per_second=sum(r.prompt_len for r in done) / seconds,
        output_tokens_per_second=sum(r.output_len for r in done) / seconds,
        requests_per_second=len(done) / seconds,
        goodput=None if slo is None else sum(slo.is_met(r) for r in done) / seconds,
        overall=_latencies(records),
        by_prompt=_by(records, lambda r: r.prompt_len, PROMPT_BOUNDS),
        by_output=_by(done, lambda r: r.output_len, OUTPUT_BOUNDS),
        fairness=jain(r.slowdown for r in done),
        recomputed_tokens=run.recomputed_tokens,
        cancelled_tokens=sum(_computed(r) for r in records if r.ending is not Ending.FINISHED),
        surplus_rows=run.surplus_rows,
        hit_rate=_hit_rate(done),
        oracle_hit_rate=_share(sum(r.oracle_tokens for r in done), sum(r.prompt_len for r in done)),
        preemptions=run.preemptions,
        steps=run.steps,
    )


def quantiles(values: Iterable[float | None]) -> Quantiles | None:
    """Of the values that there are."""
    return _quantiles(np.fromiter((v for v in values if v is not None), np.float64))


def jain(values: Iterable[float | None]) -> float | None:
    """Jain's fairness index, (Σx)² / (n Σx²): 1 where all are equal, 1/n where one has everything; None of nothing.

    Source: Jain, Chiu & Hawe 1984, DEC-TR-301, https://arxiv.org/abs/cs/9809099.
    """
    x = [v for v in values if v is not None]
    squares = sum(v * v for v in x)
    return sum(x) ** 2 / (len(x) * squares) if squares else None


def bucket(value: int, bounds: Sequence[int]) -> str:
    """The name of the bucket, such as `≤256` or `>16384`."""
    return next((f"≤{bound}" for bound in bounds if value <= bound), f">{bounds[-1]}")


def buckets(bounds: Sequence[int]) -> list[str]:
    """Every bucket's name, in order."""
    return [*(f"≤{bound}" for bound in bounds), f">{bounds[-1]}"]


def _quantiles(values: _Values) -> Quantiles | None:
    if not values.size:
        return None
    p50, p90, p99, most = np.quantile(values, (0.5, 0.9, 0.99, 1.0), method="inverted_cdf").tolist()
    return Quantiles(values.size, p50, p90, p99, most)


def _latencies(records: Sequence[Record]) -> Latencies:
    done = [r for r in records if r.ending is Ending.FINISHED]
    gaps = [np.frombuffer(r.gaps, np.float64) for r in records if r.gaps]
    return Latencies(
        ttft=quantiles(r.ttft for r in records),
        itl=_quantiles(np.concatenate(gaps)) if gaps else None,
        tpot=quantiles(r.tpot for r in done),
        e2e=quantiles(r.e2e for r in done),
        queue=quantiles(r.queue for r in done),
    )


def _by(records: Sequence[Record], size: Callable[[Record], int], bounds: Sequence[int]) -> dict[str, Latencies]:
    groups: dict[str, list[Record]] = {name: [] for name in buckets(bounds)}
    for record in records:
        groups[bucket(size(record), bounds)].append(record)
    return {name: _latencies(group) for name, group in groups.items() if group}


def _errors(records: Iterable[Record]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for record in records:
        if record.error:
            counts[record.error] = counts.get(record.error, 0) + 1
    return dict(sorted(counts.items(), key=lambda item: -item[1]))


def _computed(record: Record) -> int:
    """Tokens, as far as they are known to have been computed."""
    if record.first_token_at is None:
        return 0
    return record.prompt_len - (record.cached_tokens or 0) + record.output_len - 1


def _hit_rate(done: Sequence[Record]) -> float | None:
    told = [r for r in done if r.cached_tokens is not None]
    if not told:
        return None
    return _share(sum(r.cached_tokens or 0 for r in told), sum(r.prompt_len for r in told))


def _plain(value: object) -> object:
    """What JSON can hold."""
    if isinstance(value, Quantiles):
        return value._asdict()
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in fields(value)}
    return value


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
