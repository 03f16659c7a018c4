"""Run one service on this machine until it is told to stop: the loop of local mode."""

import asyncio
import json
import signal
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import aiohttp
from rich.console import Console

from pinrail_contract import chat_command, endpoints
from pinrail_contract.errors import SourceError
from pinrail_contract.pins import API_VERSION, KIND

from ..errors import SpecError
from .cluster import LocalCluster
from .endpoint import application, serve
from .request import LocalRun
from .view import View

TICK = 0.5  # seconds between two rounds
NO_TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=5.0)  # a long answer is not an error


@dataclass(frozen=True, slots=True)
class Options:
    port: int  # of the one endpoint, on 127.0.0.1
    question: str  # ask this once, then stop; empty: run until told to stop
    max_tokens: int  # of the answer


async def run(request: LocalRun, model_dir: Path, options: Options, console: Console) -> int:
    """Returns the exit code; raises ModelError where the engine refuses the model, SpecError where a port is taken."""
    with tempfile.TemporaryDirectory(prefix="pinrail-") as scratch:
        manifest = Path(scratch) / "manifest.json"
        document = {"apiVersion": API_VERSION, "kind": KIND, "spec": request.manifest.to_spec()}
        manifest.write_text(json.dumps(document), encoding="utf-8")
        async with aiohttp.ClientSession(timeout=NO_TIMEOUT, auto_decompress=False) as session:
            cluster = LocalCluster(
                service=request.service,
                model_dir=model_dir,
                manifest=manifest,
                logs=Path(scratch),
                session=session,
                wanted=request.service.least_replicas,
                variables=request.variables,
            )
            return await _serve(cluster, request, options, console)


async def _serve(cluster: LocalCluster, request: LocalRun, options: Options, console: Console) -> int:
    try:
        runner = await serve(application(cluster.ready, cluster.session), options.port)
    except OSError as e:
        raise SpecError("--port", f"got {options.port}, want a free port: {e.strerror}") from e
    stopping = asyncio.Event()
    hang_up = () if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else (signal.SIGHUP,)  # nohup is obeyed
    for number in (signal.SIGINT, signal.SIGTERM, *hang_up):
        asyncio.get_running_loop().add_signal_handler(number, _stop, stopping, cluster)
    view, started = View(console), time.monotonic()
    asked: asyncio.Task[None] | None = None
    try:
        with view.open():
            while not stopping.is_set():
                await cluster.tick()
                view.draw(cluster, time.monotonic())
                if cluster.ready() and asked is None:
                    _announce(request, options, cluster, time.monotonic() - started, console)
                    asked = asyncio.create_task(_ask(options, request, stopping, console))
                await _pause(stopping)
        if asked is not None and options.question:
            await asked  # whatever went wrong with the question is this command's error
        else:
            console.print(_farewell(cluster), highlight=False)
    finally:  # whatever happened, a closed terminal included: no replica outlives this process
        stopping.set()
        await cluster.close()
        await runner.cleanup()
    return 0


def _stop(stopping: asyncio.Event, cluster: LocalCluster) -> None:
    """Let running requests finish; told so again, end them."""
    if stopping.is_set():
        cluster.kill()
    stopping.set()


def _farewell(cluster: LocalCluster) -> str:
    return "stopping: running requests may finish; Ctrl-C again ends them" if cluster.ready() else "stopping"


async def _pause(stopping: asyncio.Event) -> None:
    try:
        await asyncio.wait_for(stopping.wait(), TICK)
    except TimeoutError:
        return


def _announce(request: LocalRun, options: Options, cluster: LocalCluster, seconds: float, console: Console) -> None:
    name, manifest = request.service.model.name, request.manifest
    url = f"http://127.0.0.1:{options.port}"
    verified, runs = cluster.ready()[0].digest, cluster.ready()[0].runtime
    lines = [
        f"pinned    {manifest.digest}",
        f"verified  {verified or 'not reported'} by the engine: {len(manifest.files)} files, "
        f"{manifest.total_size / 1e6:.0f} MB, on the bytes it loaded",
        f"runs      {runs}",
        *(f"differs   {d}" for d in manifest.runtime.differences(runs)),
        f"serving   {name} at {url}/v1 after {seconds:.1f} s",
    ]
    if not options.question:
        body = json.dumps({"model": name, "messages": [{"role": "user", "content": "What is the capital of France?"}]})
        lines += [
            "",
            f'ask it    pinrail chat --url {url} "What is the capital of France?"',
            f"or        curl -s {url}{endpoints.CHAT_COMPLETIONS} -H 'Content-Type: application/json' -d '{body}'",
            "stop it   Ctrl-C",
        ]
    console.print("\n".join(lines), highlight=False, soft_wrap=True)


async def _ask(options: Options, request: LocalRun, stopping: asyncio.Event, console: Console) -> None:
    if not options.question:
        return
    try:
        await asyncio.to_thread(_ask_once, options, request.service.model.name, console)
    finally:
        stopping.set()


def _ask_once(options: Options, model: str, console: Console) -> None:
    url = f"http://127.0.0.1:{options.port}"
    pieces = chat_command.ask(url, model, options.question, options.max_tokens)
    answer = [p for p in pieces if isinstance(p, chat_command.Answer)][-1]
    if not answer.text:
        raise SourceError(f"{url}: answered with no text")
    console.print(f"\n> {options.question}\n{answer.text}\n", markup=False, highlight=False)
    figures = f"first token after {answer.first_token * 1000:.0f} ms, then {answer.tokens_per_second:.1f} tok/s"
    console.print(f"{answer.tokens} tokens, {figures}\n", highlight=False)
