"""Sends an answer while it is made."""

import asyncio
from collections.abc import Iterable, Mapping

from starlette.types import Send

from . import sse
from .errors import ApiError, ClientGone
from .generation import Generation
from .sse import Frames
from .wire import Envelope

SEND_SECONDS = 60.0  # a client that takes nothing for so long is treated as gone

_HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",  # asks proxies not to gather events
}


async def stream(generation: Generation, envelope: Envelope, send: Send, headers: Mapping[str, str]) -> None:
    """The status goes out with the first piece, so that a request which ends before it still gets a true status.

    Raises ApiError before the first piece; later errors are told inside the stream. Raises ClientGone.
    """
    frames = Frames(envelope, generation.choices)
    choice, piece = await generation.next()
    await send({"type": "http.response.start", "status": 200, "headers": _raw({**_HEADERS, **headers})})
    await _send(send, frames.push(choice, piece))
    try:
        while not frames.complete:
            choice, piece = await generation.next()
            await _send(send, frames.push(choice, piece))
    except ClientGone:
        raise
    except ApiError as error:
        await _send(send, sse.error_frames(error))
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _send(send: Send, frames: Iterable[bytes]) -> None:
    body = b"".join(frames)
    if not body:
        return
    try:
        async with asyncio.timeout(SEND_SECONDS):
            await send({"type": "http.response.body", "body": body, "more_body": True})
    except TimeoutError:
        raise ClientGone(f"the client took nothing for {SEND_SECONDS:g} seconds") from None


def _raw(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.encode(), value.encode()) for name, value in headers.items()]
