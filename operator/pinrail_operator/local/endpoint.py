"""One OpenAI endpoint in front of all replicas: each request goes to the one with the least in flight. I/O.

Answers are passed on as they come. A client that goes away ends its request at the replica too. A replica that
cannot be reached is passed over, but only before its first byte: a request is never answered twice.
"""

import json
from collections.abc import Callable, Sequence
from contextlib import suppress

import aiohttp
from aiohttp import web

from pinrail_contract import endpoints

from .replica import Replica

MAX_BODY = 8 << 20  # bytes; the engine's own limit is lower, and its message better
_HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "upgrade", "host", "content-length"}


def application(replicas: Callable[[], Sequence[Replica]], session: aiohttp.ClientSession) -> web.Application:
    """`replicas` gives the ready ones at the moment of asking."""

    async def forward(request: web.Request) -> web.StreamResponse:
        body = await request.read()
        for replica in sorted(replicas(), key=lambda r: r.in_flight):
            replica.in_flight += 1
            try:
                upstream = await _send(session, replica, request, body)
                if upstream is not None:
                    return await _pass_on(request, upstream)
            except aiohttp.ServerDisconnectedError:
                return _refusal("the replica ended before it answered")
            finally:
                replica.in_flight -= 1
        return _refusal("no replica is ready")

    async def ready(_: web.Request) -> web.Response:
        return web.Response(text="ready") if replicas() else _refusal("no replica is ready")

    app = web.Application(client_max_size=MAX_BODY)
    app.router.add_get(endpoints.READY, ready)
    app.router.add_route("*", "/v1/{path:.*}", forward)
    return app


async def serve(app: web.Application, port: int) -> web.AppRunner:
    """Listen on 127.0.0.1; raises OSError where the port is taken."""
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    return runner


async def _send(
    session: aiohttp.ClientSession, replica: Replica, request: web.Request, body: bytes
) -> aiohttp.ClientResponse | None:
    """The replica's answer, or None where it could not be reached."""
    headers = {k: v for k, v in request.headers.items() if k.lower() not in _HOP_BY_HOP}
    try:
        return await session.request(
            request.method, replica.url + request.path_qs, data=body or None, headers=headers, allow_redirects=False
        )
    except aiohttp.ClientConnectorError:
        return None


async def _pass_on(request: web.Request, upstream: aiohttp.ClientResponse) -> web.StreamResponse:
    try:
        headers = {k: v for k, v in upstream.headers.items() if k.lower() not in _HOP_BY_HOP}
        response = web.StreamResponse(status=upstream.status, headers=headers)
        with suppress(aiohttp.ClientConnectionResetError):  # the client has gone, perhaps because it has all it wants
            await response.prepare(request)
            async for chunk in upstream.content.iter_any():
                await response.write(chunk)
            await response.write_eof()
        return response
    finally:
        upstream.close()  # a client that has gone ends the request at the replica


def _refusal(message: str) -> web.Response:
    error = {"message": message, "type": "ServiceUnavailableError", "param": None, "code": 503}
    headers = {"Retry-After": "1"}
    return web.Response(status=503, text=json.dumps({"error": error}), headers=headers, content_type="application/json")
