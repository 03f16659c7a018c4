"""One request of HTTP/1.1 whose answer is read as it comes, with as little as that takes. Acts.

Who measures shares the processors with who is measured: a chunk costs httpx 0.2 ms, and this a fifth of it. Bodies may
be chunked, of a length that is told, or end with the connection. Knows no redirects, proxies or compression.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

_CONNECT_SECONDS = 10.0
_LINE_BYTES = 2**16  # of a header, at most
_PIECE_BYTES = 2**16  # read at once
_PORTS = {"http": 80, "https": 443}


class BrokenAnswer(Exception):
    """What came is no answer of HTTP, or not all of one; the message says where it breaks off."""


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    _headers: Mapping[str, str]  # names in lower case
    _reader: asyncio.StreamReader

    async def read(self) -> bytes:
        """All of the body."""
        return b"".join([piece async for piece in self._pieces()])

    async def lines(self) -> AsyncIterator[bytes]:
        """The body's lines, without their ends, each as soon as it is there."""
        rest = b""
        async for piece in self._pieces():
            *whole, rest = (rest + piece).split(b"\n")
            for line in whole:
                yield line.removesuffix(b"\r")
        if rest:
            yield rest

    def _pieces(self) -> AsyncIterator[bytes]:
        if self._headers.get("transfer-encoding", "").lower() == "chunked":
            return self._chunks()
        length = self._headers.get("content-length")
        return self._rest() if length is None else self._sized(_number(length.encode(), 10))

    async def _chunks(self) -> AsyncIterator[bytes]:
        """What follows the last chunk is left unread: the connection is not used again."""
        while size := _number((await _line(self._reader)).partition(b";")[0], 16):
            piece = await self._reader.readexactly(size)
            yield piece
            await _line(self._reader)

    async def _sized(self, length: int) -> AsyncIterator[bytes]:
        while length:
            piece = await self._reader.read(min(length, _PIECE_BYTES))
            if not piece:
                raise BrokenAnswer(f"the connection was closed {length} bytes before the end")
            length -= len(piece)
            yield piece

    async def _rest(self) -> AsyncIterator[bytes]:
        while piece := await self._reader.read(_PIECE_BYTES):
            yield piece


@asynccontextmanager
async def ask(url: str, body: bytes | None = None) -> AsyncIterator[Answer]:
    """On a connection of its own, closed when the block ends, read or not.

    Args:
        url: http:// or https://.
        body: JSON, sent by POST; None: GET.

    Raises OSError, EOFError or BrokenAnswer, here or while the answer is read; ValueError where `url` is none.
    """
    parts = urlsplit(url)
    if parts.scheme not in _PORTS or not parts.hostname:
        raise ValueError(f"got {url}, want http:// or https://, and a host")
    secure = ssl.create_default_context() if parts.scheme == "https" else None
    port = parts.port or _PORTS[parts.scheme]
    async with asyncio.timeout(_CONNECT_SECONDS):
        reader, writer = await asyncio.open_connection(parts.hostname, port, ssl=secure, limit=_LINE_BYTES)
    try:
        writer.write(_head(parts, body) + (body or b""))
        await writer.drain()
        yield await _answer(reader)
    finally:
        writer.close()


def _head(parts: SplitResult, body: bytes | None) -> bytes:
    method = "GET" if body is None else "POST"
    lines = [f"{method} {parts.path or '/'} HTTP/1.1", f"Host: {parts.netloc}", "Connection: close"]
    if body is not None:
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    return "\r\n".join([*lines, "", ""]).encode()


async def _answer(reader: asyncio.StreamReader) -> Answer:
    words = (await _line(reader)).split(None, 2)
    if len(words) < 2 or not words[0].startswith(b"HTTP/1."):
        raise BrokenAnswer(f"it begins with {words!r}, want HTTP/1.1 and a status")
    headers = {}
    while line := await _line(reader):
        name, _, value = line.decode("latin-1").partition(":")
        headers[name.strip().lower()] = value.strip()
    return Answer(_number(words[1], 10), headers, reader)


async def _line(reader: asyncio.StreamReader) -> bytes:
    """Without its end."""
    try:
        return (await reader.readuntil(b"\r\n"))[:-2]
    except asyncio.IncompleteReadError as e:
        raise BrokenAnswer("the connection was closed before the end") from e
    except asyncio.LimitOverrunError as e:
        raise BrokenAnswer(f"a line is longer than {_LINE_BYTES} bytes") from e


def _number(digits: bytes, base: int) -> int:
    try:
        return int(digits, base)
    except ValueError as e:
        raise BrokenAnswer(f"got {digits[:40]!r}, want a number") from e
