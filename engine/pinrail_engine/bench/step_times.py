"""How long a step is taken to take, as files and flags name it. Pure but for `read` and `write`.

A file is an object of seconds per unit, as `pinrail bench run --save-step-time` writes it:

    {"step": 0.006, "token": 3.2e-05, "sampled": 2e-06, "read": 4.4e-08, "pair": 1.3e-09}
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..core.step_time import TERMS
from .errors import BenchError

GPU_LIKE = (6e-3, 3.2e-5, 2e-6, 4.4e-8, 1.3e-9)
"""Seconds per unit, in the order of `TERMS`: an 8-billion-parameter Llama 3 in bfloat16 on an H100, derived.

step: 16 GB of weights at 3.35 TB/s, and 1 ms of launches; token: 16 GFLOP at 500 TFLOP/s; sampled: a guess; read:
128 KiB of keys and values at 3 TB/s; pair: 4 x 32 layers x 4,096 FLOP at 400 TFLOP/s.
"""


def parse(text: str) -> tuple[float, ...]:
    """`a,b,c,d,e`, or the path of a file. Raises ValueError for numbers and BenchError for a file."""
    if "," not in text:
        return read(Path(text))
    try:
        numbers = tuple(float(word) for word in text.split(","))
    except ValueError:
        numbers = ()
    if not _is_valid(numbers):
        raise ValueError(f"got {text!r}, want {len(TERMS)} numbers, 0 or more and not all 0: {','.join(TERMS)}")
    return numbers


def read(path: Path) -> tuple[float, ...]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        numbers = tuple(float(value[term]) for term in TERMS)
    except (ValueError, TypeError, LookupError) as e:
        raise BenchError(f"{path}: got no step times ({e!r}), want an object with numbers {', '.join(TERMS)}") from e
    if not _is_valid(numbers):
        raise BenchError(f"{path}: got {numbers}, want numbers, 0 or more and not all 0")
    return numbers


def write(path: Path, step_time: Mapping[str, float]) -> None:
    """Args: step_time: seconds per unit, by the names of `TERMS`."""
    path.write_text(json.dumps({term: step_time[term] for term in TERMS}, indent=2) + "\n", encoding="utf-8")


def _is_valid(numbers: Sequence[float]) -> bool:
    return len(numbers) == len(TERMS) and any(numbers) and all(0 <= n < float("inf") for n in numbers)
