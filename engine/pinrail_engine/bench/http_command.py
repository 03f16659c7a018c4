"""`pinrail bench http`: the fixed workloads over HTTP, on `pinrail serve` and on servers that already run.

`pinrail serve` is started here, once for each run: from before its process is there to the first token of its first
request is a figure too. The last one stays for the workloads, which servers are given in turns.
"""

import argparse
import json
import secrets
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from pinrail_contract.documents import read_manifest
from pinrail_contract.launch import LaunchSpec
from pinrail_contract.termination import ExitCode

from ..run import threads
from . import http
from .about import engine_of
from .fixed import first_request
from .fixed_options import EPILOG, FixedOptions, add_fixed_flags
from .fixed_table import render
from .load import Load, Progress
from .options import RequestBar, checked, integer
from .process import Child, child, memory
from .records import Record
from .spread import Column, Spreads, Values, require_all, spreads
from .turns import SECONDS, Player, measure, plays
from .workload import Job

OURS = "pinrail"
_START_SECONDS = 1800.0  # the largest model that a CPU serves has loaded by then


@dataclass(frozen=True, slots=True)
class _Server:
    """One that answers."""

    name: str
    url: str  # without /v1
    model: str
    pids: tuple[int, ...]  # of its processes; none: not known
    about: Mapping[str, str]
    start: Spreads = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Tokens:
    """What prompts are made of; the same for all servers."""

    vocab_size: int
    seed: int

    def player(self, server: _Server) -> Player:
        return lambda jobs, _: self.play(server.url, server.model, jobs)

    def play(self, url: str, model: str, jobs: Sequence[Job]) -> Sequence[Record]:
        return http.play(url, model, Load(jobs=jobs, vocab_size=self.vocab_size, seed=self.seed, timeout=SECONDS))


def run(argv: list[str], vocab_size: int) -> int:
    """Args: vocab_size: token ids that every server has are below it."""
    parser = _parser()
    args, rest = parser.parse_known_args(argv)
    options, urls, pids = FixedOptions.of(args), dict(args.url), _by_name(args.pid)
    spec = _spec(parser, rest) if rest or not urls else None
    if OURS in urls or len(urls) < len(args.url):
        parser.error(f"argument --url: got {', '.join(n for n, _ in args.url)}, want names that differ, none {OURS}")
    if unknown := pids.keys() - urls.keys():
        parser.error(f"argument --pid: got {', '.join(sorted(unknown))}, want a name that a --url has")
    if spec is not None:
        vocab_size = min(vocab_size, read_manifest(Path(spec.manifest)).architecture.vocab_size)
    peers = [_peer(name, url, pids.get(name, ())) for name, url in urls.items()]
    _show(_measure(spec, peers, options, _Tokens(vocab_size, args.seed)), options, args.seed)
    return ExitCode.OK


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="pinrail bench http", epilog=EPILOG, allow_abbrev=False)
    add_fixed_flags(parser)
    url = "another server, which runs already and speaks OpenAI's API, to be measured in turns with ours"
    parser.add_argument("--url", action="append", default=[], type=checked(_named), metavar="NAME=URL", help=url)
    pid = "a process of that server, whose memory is told; of several the sum"
    parser.add_argument("--pid", action="append", default=[], type=checked(_process), metavar="NAME=PID", help=pid)
    seed = "of the tokens; another one each time unless given, because servers may still have those of last time"
    parser.add_argument("--seed", type=integer(0), default=secrets.randbits(31), help=seed)
    return parser


def _named(text: str) -> tuple[str, str]:
    name, _, value = text.partition("=")
    if not name or not value:
        raise ValueError(f"got {text}, want NAME=VALUE")
    return name, value.rstrip("/").removesuffix("/v1")


def _process(text: str) -> tuple[str, int]:
    name, value = _named(text)
    if not value.isdecimal():
        raise ValueError(f"got {text}, want NAME=PID")
    return name, int(value)


def _by_name(pids: Sequence[tuple[str, int]]) -> Mapping[str, tuple[int, ...]]:
    return {name: tuple(pid for of, pid in pids if of == name) for name, _ in pids}


def _spec(parser: argparse.ArgumentParser, words: list[str]) -> LaunchSpec:
    try:
        return LaunchSpec.parse(words)
    except ValueError as e:
        parser.error(str(e))


def _peer(name: str, url: str, pids: tuple[int, ...]) -> _Server:
    model = http.served(url).model
    return _Server(name, url, model, pids, {"model": model, "url": url})


def _measure(spec: LaunchSpec | None, peers: Sequence[_Server], options: FixedOptions, tokens: _Tokens) -> list[Column]:
    count = len(peers) + (spec is not None)
    steps = plays(count, options.workloads, options.runs) + (options.runs if spec is not None else 0)
    progress = RequestBar("measuring", steps, "steps")
    with progress.bar, ExitStack() as stack:
        ours = [] if spec is None else [_started(spec, options.runs, tokens, stack, progress)]
        servers = [*ours, *peers]
        players = {server.name: tokens.player(server) for server in servers}
        told = measure(players, options.workloads, options.runs, progress)
        return [_column(server, told[server.name]) for server in servers]


def _started(spec: LaunchSpec, runs: int, tokens: _Tokens, stack: ExitStack, progress: Progress) -> _Server:
    """Ours, started `runs` times; the last one lives as long as `stack`."""
    starts: list[Values] = []
    for _ in range(runs - 1):
        with child(spec) as server:
            starts.append(_start(server, spec, tokens))
        progress(1)
    server = stack.enter_context(child(spec))
    starts.append(_start(server, spec, tokens))
    progress(1)
    about = engine_of(server.metrics(), spec, threads.allowed())
    return _Server(OURS, server.url, spec.served_model_name, (server.pid,), about, spreads(starts))


def _start(server: Child, spec: LaunchSpec, tokens: _Tokens) -> Values:
    server.wait_until_ready(_START_SECONDS)
    jobs = first_request()
    sent = time.monotonic()
    records = tokens.play(server.url, spec.served_model_name, jobs)
    require_all("the first request", jobs, records)
    (ttft,) = [record.ttft or 0.0 for record in records]
    return {"first_token_seconds": sent - server.began + ttft, **memory([server.pid])}


def _column(server: _Server, workloads: Mapping[str, Spreads]) -> Column:
    sections = {"start": server.start, **workloads, "end": spreads([memory(server.pids)])}
    return Column(server.name, server.about, {name: of_runs for name, of_runs in sections.items() if of_runs})


def _show(columns: Sequence[Column], options: FixedOptions, seed: int) -> None:
    if options.json:
        told = {"runs": options.runs, "seed": seed, "servers": [column.to_json() for column in columns]}
        print(json.dumps(told, ensure_ascii=False))
    else:
        print(render(columns, options.runs))
