"""The one endpoint: to the least busy, as it comes, never twice, and ended when the client goes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import aiohttp
import pytest
from aiohttp import web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.test_utils import make_mocked_request

from pinrail_operator.local import endpoint
from pinrail_operator.local.replica import Replica, free_port

SOON = 10.0  # seconds; only ever waited for in full when the test fails


@dataclass
class Upstream:
    """An engine that streams two pieces, the second when told to."""

    port: int = field(default_factory=free_port)
    go_on: asyncio.Event = field(default_factory=asyncio.Event)
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    seen: list[str] = field(default_factory=list)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.seen.append(await request.text())
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "X-Request-Id": "7"})
        await response.prepare(request)
        try:
            await response.write(b"data: one\n\n")
            await self.go_on.wait()
            await response.write(b"data: two\n\n")
        except asyncio.CancelledError:
            self.gone.set()
            raise
        return response


def replica(port: int, in_flight: int = 0) -> Replica:
    return Replica(port, Path("/dev/null"), cast(Any, None), in_flight=in_flight, is_ready=True)


@asynccontextmanager
async def running(*replicas: Replica, upstreams: list[Upstream]) -> AsyncIterator[str]:
    port = free_port()
    runners = []
    for upstream in upstreams:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", upstream.answer)
        runners.append(await endpoint.serve(app, upstream.port))
    async with aiohttp.ClientSession() as session:
        runners.append(await endpoint.serve(endpoint.application(lambda: replicas, session), port))
        yield f"http://127.0.0.1:{port}"
        for runner in reversed(runners):
            await runner.cleanup()


@pytest.fixture
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=SOON)) as session:
        yield session


async def test_an_answer_is_passed_on_as_it_comes(client: aiohttp.ClientSession) -> None:
    up = Upstream()
    async with (
        running(replica(up.port), upstreams=[up]) as url,
        client.post(url + "/v1/chat/completions", data=b"{}") as answer,
    ):
        assert await answer.content.readuntil(b"\n\n") == b"data: one\n\n"
        assert answer.headers["X-Request-Id"] == "7"
        up.go_on.set()
        assert await answer.content.read() == b"data: two\n\n"
    assert up.seen == ["{}"]


async def test_the_least_busy_replica_is_asked(client: aiohttp.ClientSession) -> None:
    busy, idle = Upstream(), Upstream()
    idle.go_on.set()
    replicas = [replica(busy.port, in_flight=2), replica(idle.port, in_flight=1)]
    async with (
        running(*replicas, upstreams=[busy, idle]) as url,
        client.post(url + "/v1/chat/completions", data=b"x") as answer,
    ):
        await answer.read()
    assert (busy.seen, idle.seen) == ([], ["x"])
    assert [r.in_flight for r in replicas] == [2, 1]


async def test_a_replica_that_is_not_there_is_passed_over(client: aiohttp.ClientSession) -> None:
    up = Upstream()
    up.go_on.set()
    dead = replica(free_port())
    async with (
        running(dead, replica(up.port, in_flight=1), upstreams=[up]) as url,
        client.post(url + "/v1/chat/completions", data=b"x") as answer,
    ):
        assert await answer.read() == b"data: one\n\ndata: two\n\n"


async def test_a_replica_that_ends_before_it_answers_is_503_and_the_request_is_not_sent_twice(
    client: aiohttp.ClientSession,
) -> None:
    async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    other, port = Upstream(), free_port()
    async with (
        await asyncio.start_server(hang_up, "127.0.0.1", port),
        running(replica(port), replica(other.port, in_flight=1), upstreams=[other]) as url,
        client.post(url + "/v1/chat/completions", data=b"x") as answer,
    ):
        assert answer.status == 503
        assert (await answer.json())["error"]["message"] == "the replica ended before it answered"
    assert other.seen == []


async def test_a_client_that_goes_ends_its_request_at_the_replica(client: aiohttp.ClientSession) -> None:
    up = Upstream()
    one = replica(up.port)
    async with running(one, upstreams=[up]) as url:
        async with client.post(url + "/v1/chat/completions", data=b"{}") as answer:
            await answer.content.readuntil(b"\n\n")
            answer.close()
        # The upstream's handler is only cancelled where its server was asked to: `serve` asks.
        await asyncio.wait_for(up.gone.wait(), SOON)
    assert one.in_flight == 0


class Gone(AbstractStreamWriter):
    """A connection that the client closes as the last byte is to be written."""

    async def write(self, chunk: object) -> None:
        pass

    async def write_eof(self, chunk: bytes = b"") -> None:
        raise aiohttp.ClientConnectionResetError("Cannot write to closing transport")

    async def write_headers(self, status_line: str, headers: object) -> None:
        pass

    async def drain(self) -> None:
        pass

    def enable_chunking(self) -> None:
        pass

    def enable_compression(self, *_: object, **__: object) -> None:
        pass


async def test_a_client_that_goes_as_its_answer_ends_is_no_error(client: aiohttp.ClientSession) -> None:
    """It has read all that it wants: nothing is raised, and so nothing is in the log."""
    up = Upstream()
    up.go_on.set()
    async with running(replica(up.port), upstreams=[up]) as url:
        upstream = await client.post(url + "/v1/chat/completions", data=b"{}")
        request = make_mocked_request("POST", "/v1/chat/completions", writer=Gone())
        assert (await endpoint._pass_on(request, upstream)).status == 200
    assert upstream.closed


async def test_with_no_replica_ready_the_answer_is_503_in_openais_shape(client: aiohttp.ClientSession) -> None:
    async with running(upstreams=[]) as url, client.get(url + "/v1/models") as answer:
        assert answer.status == 503
        assert answer.headers["Retry-After"] == "1"
        assert (await answer.json())["error"]["message"] == "no replica is ready"
