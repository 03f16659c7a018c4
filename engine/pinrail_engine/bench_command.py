"""`pinrail bench offline`: how fast this machine serves a pinned model, without HTTP.

Prompts are random token ids of a fixed seed, and end-of-sequence is ignored, so every run does the same work.
"""

import argparse
import json
import logging
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import SimpleQueue
from statistics import median
from typing import TYPE_CHECKING

from pinrail_contract.command import Command
from pinrail_contract.documents import read_manifest
from pinrail_contract.errors import ManifestError
from pinrail_contract.launch import LaunchSpec
from pinrail_contract.progress import ProgressBar
from pinrail_contract.termination import ExitCode

from .core.types import FinishReason, Refused, SamplingParams, TokenEvent
from .errors import EngineError

if TYPE_CHECKING:
    from .run.loop import EngineLoop

_SEED = 0


@dataclass(frozen=True, slots=True)
class Job:
    prompt_len: int  # tokens
    output_len: int  # tokens


@dataclass(frozen=True, slots=True)
class Result:
    workload: str
    seconds: float
    prompt_tokens: int
    output_tokens: int
    tokens_per_second: float  # of output; of prompt, for prefill
    first_token_seconds: float  # median over requests


def _run(argv: list[str]) -> int:
    logging.basicConfig(level=logging.WARNING)
    parser = argparse.ArgumentParser(prog="pinrail bench", epilog="Other flags are those of `pinrail serve`.")
    parser.add_argument("mode", choices=["offline"], help="offline: the engine alone, without HTTP")
    parser.add_argument("--json", action="store_true", help="one JSON object per workload instead of a table")
    args, rest = parser.parse_known_args(argv)
    try:
        spec = LaunchSpec.parse(rest)
    except ValueError as e:
        parser.error(str(e))
    for result in _bench(spec):
        print(json.dumps(asdict(result)) if args.json else _line(result), flush=True)
    return ExitCode.OK


def _bench(spec: LaunchSpec) -> Iterator[Result]:
    from .run.start import engine_for
    from .weights.verify import open_verified

    manifest = read_manifest(Path(spec.manifest))
    if spec.digest and manifest.digest != spec.digest:
        raise ManifestError(spec.manifest, f"has digest {manifest.digest}, want {spec.digest}")
    with (
        ProgressBar("hashing", manifest.total_size) as progress,
        open_verified(Path(spec.model_dir), manifest, spec.verification, progress) as model,
    ):
        engine = engine_for(spec, model)
        engine.start()
        engine.wait_until_loaded()
    for name, jobs in _workloads().items():
        yield _measure(engine, name, jobs, manifest.architecture.vocab_size)
    engine.stop()


def _workloads() -> dict[str, list[Job]]:
    dice = random.Random(_SEED)
    return {
        "single": [Job(32, 128)],
        "prefill": [Job(1024, 1)],
        "batch": [Job(dice.randint(64, 256), dice.randint(32, 128)) for _ in range(32)],
    }


def _measure(engine: "EngineLoop", name: str, jobs: Sequence[Job], vocab: int) -> Result:
    """Submit all jobs at once, and wait for the last token."""
    dice = random.Random(_SEED)
    events: SimpleQueue[tuple[int, float, TokenEvent]] = SimpleQueue()
    began = time.monotonic()
    for i, job in enumerate(jobs):
        prompt = [dice.randrange(vocab) for _ in range(job.prompt_len)]
        params = SamplingParams(max_tokens=job.output_len, temperature=0)
        try:
            engine.submit(f"{name}-{i}", prompt, params, lambda e, i=i: events.put((i, time.monotonic(), e)))  # type: ignore[misc]
        except Refused as e:
            raise EngineError(f"workload {name}: {e}") from e
    first = _first_tokens(events, len(jobs))
    seconds = time.monotonic() - began
    counted = sum(job.prompt_len if name == "prefill" else job.output_len for job in jobs)
    return Result(
        workload=name,
        seconds=round(seconds, 3),
        prompt_tokens=sum(job.prompt_len for job in jobs),
        output_tokens=sum(job.output_len for job in jobs),
        tokens_per_second=round(counted / seconds, 1),
        first_token_seconds=round(median(first) - began, 3),
    )


def _first_tokens(events: "SimpleQueue[tuple[int, float, TokenEvent]]", jobs: int) -> list[float]:
    """When each job's first token came; returns once all have ended. Raises EngineError where one failed."""
    first: dict[int, float] = {}
    living = jobs
    while living:
        i, at, event = events.get()
        first.setdefault(i, at)
        if event.finish is FinishReason.ERROR:
            raise EngineError(event.error)
        living -= event.finish is not None
    return list(first.values())


def _line(r: Result) -> str:
    rate, first = f"{r.tokens_per_second:8.1f} tok/s", f"first token {r.first_token_seconds:.3f} s"
    return f"{r.workload:<8} {rate}  {r.seconds:7.3f} s  {first}  ({r.prompt_tokens} in, {r.output_tokens} out)"


command = Command("measure how fast a pinned model runs here", _run)
