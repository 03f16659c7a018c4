"""`pinrail bench offline`: three fixed workloads on the engine alone, whose figures are compared between machines.

Prompts are random tokens of a fixed seed, and end-of-sequence is ignored, so every run does the same work.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from random import Random
from statistics import median

from ..core.types import Engine
from .drive import drive
from .errors import BenchError
from .load import Load
from .records import Ending, Record
from .workload import Job, Piece

_SEED = 0
_SECONDS = 3600.0  # no machine that can serve takes longer


@dataclass(frozen=True, slots=True)
class Result:
    workload: str
    seconds: float
    prompt_tokens: int
    output_tokens: int
    tokens_per_second: float  # of output; of prompt, for prefill
    first_token_seconds: float  # median over requests

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    def __str__(self) -> str:
        rate, first = f"{self.tokens_per_second:8.1f} tok/s", f"first token {self.first_token_seconds:.3f} s"
        tokens = f"({self.prompt_tokens} in, {self.output_tokens} out)"
        return f"{self.workload:<8} {rate}  {self.seconds:7.3f} s  {first}  {tokens}"


def workloads() -> Mapping[str, tuple[Job, ...]]:
    """All of a workload's jobs arrive at once; no two prompts of all workloads begin alike."""
    dice = Random(_SEED)
    lengths = {
        "single": [(32, 128)],
        "prefill": [(1024, 1)],
        "batch": [(dice.randint(64, 256), dice.randint(32, 128)) for _ in range(32)],
    }
    return {name: tuple(_job(f"{name}/{i}", *pair) for i, pair in enumerate(pairs)) for name, pairs in lengths.items()}


def _job(name: str, prompt_len: int, output_len: int) -> Job:
    key = int.from_bytes(name.encode())
    return Job(0.0, (Piece(key, prompt_len),), Piece(-key, output_len))


def measure(engine: Engine, name: str, jobs: tuple[Job, ...], vocab_size: int) -> Result:
    """Submit all jobs at once, and wait for the last token. Raises BenchError where one does not finish."""
    records = drive(engine, Load(jobs=jobs, vocab_size=vocab_size, seed=_SEED, timeout=_SECONDS), name)
    for record in records:
        if record.ending is not Ending.FINISHED:
            raise BenchError(f"workload {name}: a request was {record.ending}: {record.error or 'no reason was given'}")
    return result_of(name, records)


def result_of(name: str, records: Sequence[Record]) -> Result:
    prompts, outputs = sum(r.prompt_len for r in records), sum(r.output_len for r in records)
    seconds = max(max(r.ended_at or 0.0 for r in records), 1e-9)
    return Result(
        workload=name,
        seconds=round(seconds, 3),
        prompt_tokens=prompts,
        output_tokens=outputs,
        tokens_per_second=round((prompts if name == "prefill" else outputs) / seconds, 1),
        first_token_seconds=round(median(r.ttft or 0.0 for r in records), 3),
    )
