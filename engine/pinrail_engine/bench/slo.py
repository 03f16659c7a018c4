"""Service-level objectives: what a request must meet to count towards goodput. Pure.

Written as `ttft:500ms,itl:50ms`; s and ms are the units. `itl` is the 99th percentile of a request's own gaps.

Source: goodput as in DistServe, Zhong et al. 2024, https://arxiv.org/abs/2401.09670, section 1.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import ceil
from typing import Self

from .records import Record

_PART = re.compile(r"(\w+):(\d+(?:\.\d+)?)(ms|s)")


def _itl(record: Record) -> float | None:
    return sorted(record.gaps)[ceil(0.99 * len(record.gaps)) - 1] if record.gaps else None


_MEASURES: Mapping[str, Callable[[Record], float | None]] = {
    "ttft": lambda r: r.ttft,
    "itl": _itl,
    "tpot": lambda r: r.tpot,
    "e2e": lambda r: r.e2e,
}


@dataclass(frozen=True, slots=True)
class Slo:
    bounds: tuple[tuple[str, float], ...]  # measure, seconds at most

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises ValueError."""
        matches = [_PART.fullmatch(part.strip()) for part in text.split(",")]
        if any(m is None or m[1] not in _MEASURES for m in matches):
            raise ValueError(f"got {text!r}, want {', '.join(_MEASURES)} with a time each, such as ttft:500ms,itl:50ms")
        return cls(tuple((m[1], float(m[2]) * (1e-3 if m[3] == "ms" else 1.0)) for m in matches if m))

    def is_met(self, record: Record) -> bool:
        """Args: record: of a finished request; what it has no value of, it meets."""
        return all((_MEASURES[name](record) or 0.0) <= most for name, most in self.bounds)

    def __str__(self) -> str:
        return ",".join(f"{name}:{most * 1e3:g}ms" for name, most in self.bounds)
