"""`pinrail bench`: how fast a pinned model is served, by this machine or by any server.

pinrail bench cpu …        four fixed workloads on the engine alone, without HTTP; `offline` is another name of it
pinrail bench http …       the same over HTTP, on a server that is started for it and on others beside it
pinrail bench run …        a trace or a mix, on the engine alone or on servers that speak OpenAI's API
pinrail bench accuracy …   what bfloat16 and quantised weights change in what the model says
pinrail bench scheduler    what planning and committing a step costs the host, without a model
"""

import argparse
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pinrail_contract.command import Command
from pinrail_contract.documents import read_manifest
from pinrail_contract.errors import ManifestError
from pinrail_contract.launch import LaunchSpec
from pinrail_contract.progress import ProgressBar
from pinrail_contract.termination import ExitCode

if TYPE_CHECKING:
    from .bench.alone import Rates
    from .bench.fixed_options import FixedOptions
    from .bench.load import Load, Progress
    from .bench.options import Options
    from .bench.records import Record, Run
    from .bench.spread import Column
    from .bench.workload import Job, Workload
    from .run.loop import EngineLoop

_REMOTE_VOCAB = 10_000  # token ids of prompts for a server, which does not tell how many it knows, are below it

_Play = Callable[["Load", str, "Rates | None", "Progress"], "list[Record]"]
"""(load, name of the run, what warm-up requests took, progress) -> a record per job."""


def _run(argv: list[str]) -> int:
    logging.basicConfig(level=logging.WARNING)
    if argv[:1] in (["-h"], ["--help"]):
        print(__doc__)
        return ExitCode.OK
    usage = f"pinrail bench {{{','.join(_MODES)}}} …"
    parser = argparse.ArgumentParser(prog="pinrail bench", usage=usage, add_help=False)
    parser.add_argument("mode", choices=list(_MODES))
    mode = parser.parse_args(argv[:1]).mode
    return _MODES[mode](argv[1:])


def _cpu(argv: list[str]) -> int:
    from .bench.fixed_options import EPILOG, FixedOptions, add_fixed_flags

    parser = argparse.ArgumentParser(prog="pinrail bench cpu", epilog=EPILOG, allow_abbrev=False)
    add_fixed_flags(parser)
    args, rest = parser.parse_known_args(argv)
    options, spec = FixedOptions.of(args), _spec(parser, rest)
    with _engine(spec) as (engine, vocab_size):
        column = _alone(engine, spec, vocab_size, options)
    if args.json:
        print(json.dumps({"runs": options.runs, **column.to_json()}, ensure_ascii=False))
    else:
        from .bench.fixed_table import render

        print(render([column], options.runs))
    return ExitCode.OK


def _alone(engine: "EngineLoop", spec: LaunchSpec, vocab_size: int, options: "FixedOptions") -> "Column":
    from .bench.about import engine_of
    from .bench.drive import drive
    from .bench.load import Load
    from .bench.options import RequestBar
    from .bench.spread import Column
    from .bench.turns import SECONDS, measure, plays
    from .run import threads

    def play(jobs: "Sequence[Job]", name: str) -> "list[Record]":
        return drive(engine, Load(jobs=jobs, vocab_size=vocab_size, seed=0, timeout=SECONDS), name)

    progress = RequestBar("measuring", plays(1, options.workloads, options.runs), "steps")
    with progress.bar:
        told = measure({"pinrail": play}, options.workloads, options.runs, progress)
    about = engine_of(engine.metrics_page().decode(), spec, threads.allowed())
    return Column("pinrail", about, told["pinrail"])


def _over_http(argv: list[str]) -> int:
    from .bench.http_command import run

    return run(argv, _REMOTE_VOCAB)


def _accuracy(argv: list[str]) -> int:
    from .bench.accuracy_command import run

    return run(argv)


def _scheduler(argv: list[str]) -> int:
    from .bench.host_cost import ROWS, measure

    parser = argparse.ArgumentParser(prog="pinrail bench scheduler", allow_abbrev=False)
    parser.add_argument("--json", action="store_true", help="one JSON object per number of rows instead of a table")
    args = parser.parse_args(argv)
    for rows in ROWS:
        cost = measure(rows)
        print(cost.to_json() if args.json else cost, flush=True)
    return ExitCode.OK


def _run_workload(argv: list[str]) -> int:
    from .bench.options import Options
    from .bench.output import show

    parser = _run_parser()
    args, rest = parser.parse_known_args(argv)
    options, how = Options.of(args), _How(args.concurrency, args.timeout, args.warm_up)
    if args.url:
        if rest or args.save_step_time:
            parser.error(f"{' '.join(rest) or '--save-step-time'}: is for the engine in this process, want no --url")
        workload, runs = _on_servers(args.url, args.model, options, how)
    else:
        if args.model:
            parser.error(f"argument --model: got {args.model}, want it with --url alone")
        workload, runs = _in_process(_spec(parser, rest), options, how, args.save_step_time)
    show(workload, runs, options)
    return ExitCode.OK


def _run_parser() -> argparse.ArgumentParser:
    from .bench.fixed_options import EPILOG
    from .bench.options import add_flags, integer, number

    parser = argparse.ArgumentParser(prog="pinrail bench run", epilog=EPILOG, allow_abbrev=False)
    add_flags(parser)
    url = "a server that speaks OpenAI's API, such as http://127.0.0.1:8000; several are measured in turn"
    parser.add_argument("--url", action="append", help=url)
    parser.add_argument("--model", default="", help="its name for the model; the first that it lists otherwise")
    timeout = "seconds for a run; what has not ended by then is cut off, and counted"
    parser.add_argument("--timeout", type=number(above=True), default=3600.0, help=timeout)
    warm_up = "requests made before, one at a time; they tell what a request takes alone"
    parser.add_argument("--warm-up", type=integer(0), default=2, help=warm_up)
    saved = "write what the engine learned of step times, for `pinrail simulate --step-time`"
    parser.add_argument("--save-step-time", type=Path, metavar="FILE", help=saved)
    return parser


@dataclass(frozen=True, slots=True)
class _How:
    """The flags of `bench run` alone."""

    concurrency: int
    timeout: float  # seconds
    warm_up: int  # requests


def _on_servers(urls: Sequence[str], model: str, options: "Options", how: _How) -> "tuple[Workload, list[Run]]":
    """The workload is cut to what the least of the servers takes, so that all do the same."""
    from .bench import http

    names = [url.rstrip("/").removesuffix("/v1") for url in urls]
    servers = {url: http.served(url) for url in names}
    workload = options.workload(min((s.max_len for s in servers.values() if s.max_len), default=0))
    load = _load(workload, options, how, _REMOTE_VOCAB, block_size=16)

    def player(url: str, name: str) -> _Play:
        return lambda load, _, rates, progress: http.play(url, name, load, rates=rates, progress=progress)

    return workload, [_measured(player(url, model or s.model), load, how, url) for url, s in servers.items()]


def _in_process(
    spec: LaunchSpec, options: "Options", how: _How, save_step_time: Path | None
) -> "tuple[Workload, list[Run]]":
    from .bench.drive import drive
    from .bench.step_times import write

    with _engine(spec) as (engine, vocab_size):
        workload = options.workload(engine.max_model_len)

        def play(load: "Load", name: str, rates: "Rates | None", progress: "Progress") -> "list[Record]":
            return drive(engine, load, name, rates=rates, progress=progress)

        load = _load(workload, options, how, vocab_size, spec.block_size)
        run = _measured(play, load, how, spec.policy)
        if save_step_time is not None:
            write(save_step_time, engine.step_time)
    return workload, [run]


def _load(workload: "Workload", options: "Options", how: _How, vocab_size: int, block_size: int) -> "Load":
    from .bench.load import Load

    return Load(
        jobs=workload.jobs,
        vocab_size=vocab_size,
        seed=options.seed,
        timeout=how.timeout,
        block_size=block_size,
        concurrency=how.concurrency,
    )


def _measured(play: _Play, load: "Load", how: _How, name: str) -> "Run":
    from .bench.alone import Rates
    from .bench.load import silent
    from .bench.options import RequestBar
    from .bench.records import Run

    rates = Rates(play(load.warm_up(how.warm_up), "warm-up", None, silent)) if how.warm_up else None
    progress = RequestBar(name, len(load.jobs))
    with progress.bar:
        records = play(load, "run", rates, progress)
    return Run(name=name, records=records, seconds=max((r.ended_at or 0.0 for r in records), default=0.0))


def _spec(parser: argparse.ArgumentParser, words: list[str]) -> LaunchSpec:
    try:
        return LaunchSpec.parse(words)
    except ValueError as e:
        parser.error(str(e))


@contextmanager
def _engine(spec: LaunchSpec) -> "Iterator[tuple[EngineLoop, int]]":
    """A loaded engine, and how many tokens its model knows."""
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
    try:
        yield engine, manifest.architecture.vocab_size
    finally:
        engine.stop()


_MODES: Mapping[str, Callable[[list[str]], int]] = {
    "cpu": _cpu,
    "http": _over_http,
    "run": _run_workload,
    "accuracy": _accuracy,
    "scheduler": _scheduler,
    "offline": _cpu,
}

command = Command("measure how fast a pinned model, or any server, answers", _run)
