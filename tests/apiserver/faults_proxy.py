"""A proxy between an operator and the API server that fails on demand: errors, silence, lost events.

Plain HTTP on loopback before it, TLS behind it; who asks stays who they are, since their token is passed on.
"""

import asyncio
import base64
import json
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

Fault = Callable[[str, str], int | None]
"""The status to answer a method and path with, in place of the API server; None lets the request through."""

NOT_PASSED_ON = {"host", "content-length", "transfer-encoding", "connection", "accept-encoding"}


def all_is_well(method: str, path: str) -> int | None:
    return None


def status_writes(code: int) -> Fault:
    """Every write of a service's status is answered with `code`; the rest is served."""
    return lambda method, path: code if method == "PUT" and path.endswith("/status") else None


def everything(code: int) -> Fault:
    return lambda *_: code


def watches(code: int) -> Fault:
    """Neither a list nor a watch of services is answered; single objects are."""
    return lambda method, path: code if method == "GET" and path.endswith("/inferenceservices") else None


@dataclass(slots=True)
class Proxy:
    """What it does to requests may be set from any thread, at any time."""

    upstream: str
    trusted: ssl.SSLContext
    fault: Fault = all_is_well
    to_drop: Callable[[dict[str, Any]], bool] = lambda _: False
    """Which events of watches are lost; each is counted in `dropped`."""

    failed: int = 0
    dropped: int = 0
    port: int = 0
    _streams: set["_Stream"] = field(default_factory=set)
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.new_event_loop)
    _client: Any = None

    @property
    def streams(self) -> int:
        """Watches that are open and heard."""
        return sum(not s.is_deaf for s in list(self._streams))

    def deafen(self) -> int:
        """Every open watch stays open and says nothing any more; returns how many."""
        for stream in list(self._streams):
            stream.is_deaf = True
        return len(self._streams)

    def say(self, code: int) -> int:
        """Every open watch gets an error event; returns how many heard it."""
        status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "message": "told by a test"}
        line = json.dumps({"type": "ERROR", "object": status}).encode() + b"\n"
        return sum(
            asyncio.run_coroutine_threadsafe(stream.write(line), self._loop).result(5) for stream in list(self._streams)
        )

    async def _serve(self, started: threading.Event, ended: asyncio.Event) -> None:
        app = web.Application(client_max_size=4 * 2**20)
        app.router.add_route("*", "/{path:.*}", self._answer)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        self._client = aiohttp.ClientSession(auto_decompress=False, connector=aiohttp.TCPConnector(limit=0))
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.port = runner.addresses[0][1]
        started.set()
        await ended.wait()
        await self._client.close()
        await runner.cleanup()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        code = self.fault(request.method, request.path)
        if code is not None:
            self.failed += 1
            said = {
                "kind": "Status",
                "apiVersion": "v1",
                "status": "Failure",
                "code": code,
                "message": "told by a test",
            }
            return web.json_response(said, status=code)
        headers = {k: v for k, v in request.headers.items() if k.lower() not in NOT_PASSED_ON}
        asked = self._client.request(
            request.method, self.upstream + request.raw_path, data=await request.read() or None, headers=headers,
            ssl=self.trusted, timeout=aiohttp.ClientTimeout(total=None), skip_auto_headers=("Content-Type",),
        )  # fmt: skip
        async with asked as answer:
            if "watch" not in request.query:
                return web.Response(
                    status=answer.status, body=await answer.read(), content_type=answer.content_type,
                )  # fmt: skip
            return await self._stream(request, answer)

    async def _stream(self, request: web.Request, answer: aiohttp.ClientResponse) -> web.StreamResponse:
        told = web.StreamResponse(status=answer.status, headers={"Content-Type": "application/json"})
        await told.prepare(request)
        stream = _Stream(told)
        self._streams.add(stream)
        rest = b""
        try:
            async for chunk in answer.content.iter_any():
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    await self._tell(stream, line)
            while stream.is_deaf and request.transport is not None:  # the API server's end is not heard either
                await asyncio.sleep(0.2)
        except aiohttp.ClientError:  # the API server's end broke off
            pass
        finally:
            self._streams.discard(stream)
        return told

    async def _tell(self, stream: "_Stream", line: bytes) -> None:
        if stream.is_deaf:
            return
        if self.to_drop(json.loads(line)):
            self.dropped += 1
            return
        await stream.write(line + b"\n")


@dataclass(slots=True, eq=False)
class _Stream:
    """One open watch."""

    answer: web.StreamResponse
    is_deaf: bool = False

    async def write(self, line: bytes) -> bool:
        """Whether anybody listens."""
        try:
            await self.answer.write(line)
        except ConnectionError:
            return False
        return True


@contextmanager
def proxied(kubeconfig: Path, file: Path) -> Iterator[tuple[Proxy, Path]]:
    """A proxy to the API server of `kubeconfig`, and `file`: a kubeconfig of the same user that leads through it."""
    document = json.loads(kubeconfig.read_text())
    cluster = document["clusters"][0]["cluster"]
    authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
    proxy = Proxy(cluster["server"], ssl.create_default_context(cadata=authority))
    started, ended = threading.Event(), asyncio.Event()
    thread = threading.Thread(target=lambda: proxy._loop.run_until_complete(proxy._serve(started, ended)), daemon=True)
    thread.start()
    assert started.wait(10), "the proxy did not start"
    document["clusters"][0]["cluster"] = {"server": f"http://127.0.0.1:{proxy.port}"}
    file.write_text(json.dumps(document))
    try:
        yield proxy, file
    finally:
        proxy._loop.call_soon_threadsafe(ended.set)
        thread.join(10)
        proxy._loop.close()
