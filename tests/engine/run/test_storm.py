"""Clients that leave at any moment, over real connections: nothing of theirs stays, and everyone is counted once."""

import asyncio
import json
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import uvicorn

sys.path.insert(0, str(Path(__file__).parents[1] / "api"))

from fake_engine import pipeline

from pinrail_engine.api.app import ServerInfo, create_app
from pinrail_engine.api.server import uvicorn_config
from pinrail_engine.core.types import FinishReason, SamplingParams, Sink, Terms

CLIENTS = 500
AT_ONCE = 60
STEP_SECONDS = 0.002
INFO = ServerInfo(model_name="tiny", manifest_digest="sha256:" + "a" * 64, verification="verified")


class Watched:
    """The engine, and when it was told of each client that left. The first word of a prompt is the client's number."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._clients: dict[str, int] = {}
        self.told: dict[int, float] = {}  # client -> when the engine had freed what it held
        self.steps_to_free: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def submit(self, id_: str, prompt: Sequence[int], params: SamplingParams, sink: Sink, terms: Terms) -> None:
        self._clients[id_] = int(bytes(prompt).split()[0])
        self._engine.submit(id_, prompt, params, sink, terms)

    def finish(self, id_: str, reason: FinishReason) -> None:
        before = self._engine._backend.steps
        self._engine.finish(id_, reason)
        assert id_ not in self._engine._state.live
        if reason is FinishReason.ABORT:
            self.steps_to_free.append(self._engine._backend.steps - before)
            self.told[self._clients[id_]] = time.monotonic()


@pytest.fixture(params=[1, 2], ids=["one step in flight", "two"])
def rig(request: pytest.FixtureRequest, make_rig: Callable[..., Any]) -> Any:
    """A cache for about five of the clients: they queue, and are preempted."""
    rig = make_rig(
        blocks=80, seqs=16, budget=24, window=200, depth=request.param, share=True, max_queued=CLIENTS, vocab=256
    )
    launch = rig.backend.launch
    pause = threading.Event()
    rig.backend.launch = lambda plan: (launch(plan), pause.wait(STEP_SECONDS))[0]
    rig.engine.start()
    rig.engine.wait_until_loaded()
    return rig


@pytest.fixture
def serving(rig: Any, free_port: Callable[[], int]) -> Iterator[tuple[Watched, int, Any]]:
    watched, port = Watched(rig.engine), free_port()
    config = uvicorn_config(create_app(watched, pipeline(), INFO))  # type: ignore[arg-type]
    config.port = port
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield watched, port, server
    server.should_exit = True
    thread.join(10)


class Client:
    """Asks, takes so many bytes of the answer, and leaves."""

    def __init__(self, number: int, dice: random.Random) -> None:
        self.number = number
        self.stream = dice.random() < 0.5
        self.stays = dice.random() < 0.1
        self.waits = dice.choice([0.0, 0.001, 0.01, 0.1, 0.3])  # seconds
        self.reads = dice.choice([0, 1, 200, 1000]) if self.stream else 0  # bytes at least
        self.output = dice.randint(1, 60)
        self.left = 0.0  # when
        self.answer = b""

    async def run(self, port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        body = {"model": "tiny", "prompt": f"{self.number} " + "x" * (self.number % 90), "max_tokens": self.output}
        data = json.dumps(body | {"stream": self.stream, "temperature": 0}).encode()
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n")
        writer.write(b"Content-Length: %d\r\n\r\n%b" % (len(data), data))
        await writer.drain()
        if self.stays:
            self.answer = await reader.read(-1)
        else:
            await asyncio.sleep(self.waits)
            while len(self.answer) < self.reads and (more := await reader.read(4096)):
                self.answer += more
        self.left = time.monotonic()
        writer.close()


async def storm(clients: list[Client], port: int) -> None:
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(client: Client) -> None:
        async with gate:
            await client.run(port)

    await asyncio.wait_for(asyncio.gather(*map(one, clients)), 120)


def test_nothing_of_500_clients_that_leave_stays_behind(
    rig: Any, serving: tuple[Watched, int, Any], say: Callable[[str], None]
) -> None:
    watched, port, server = serving
    dice = random.Random(0)
    clients = [Client(i, dice) for i in range(CLIENTS)]
    asyncio.run(storm(clients, port))
    until(lambda: not rig.state.live and not server.server_state.tasks)
    rig.state.check()
    assert (rig.state.kv.live, len(rig.state.slots), len(rig.engine._sinks)) == (0, 16, 0)
    assert not rig.state.computing
    assert max(watched.steps_to_free) <= 2

    for client in clients:
        if client.stays:
            assert client.answer.startswith(b"HTTP/1.1 200"), client.answer
            assert b"length" in client.answer
    ended = {r: int(rig.figure("vllm:request_success_total", finished_reason=r)) for r in FinishReason}
    assert sum(ended.values()) == rig.figure("vllm:e2e_request_latency_seconds_count") <= CLIENTS
    assert 0.5 * CLIENTS < ended[FinishReason.ABORT] <= len(watched.told), (
        "some end by themselves as their clients leave"
    )
    assert ended[FinishReason.ERROR] == ended[FinishReason.REJECTED] == 0
    released = {p: rig.figure("pinrail_cancellation_release_seconds_count", phase=p) for p in PHASES}
    assert sum(released.values()) == ended[FinishReason.ABORT]
    assert released["queued"] > 0 < released["decode"]

    seconds = sorted(at - clients[n].left for n, at in watched.told.items())
    say(
        f"{len(seconds)} of {CLIENTS} clients left early, {rig.figure('vllm:num_preemptions_total'):.0f} preemptions; "
        f"from leaving to blocks freed: median {1000 * seconds[len(seconds) // 2]:.1f} ms, "
        f"p99 {1000 * seconds[int(0.99 * len(seconds))]:.1f} ms; a step takes {1000 * STEP_SECONDS:.0f} ms and more"
    )


PHASES = ("queued", "prefill", "decode")


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.001)
