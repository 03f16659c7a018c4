"""Answers of HTTP in every form that a server may give them, and those that break off."""

import asyncio
from collections.abc import Sequence

import pytest

from pinrail_engine.bench.stream import BrokenAnswer, ask

OK = b"HTTP/1.1 200 OK\r\n"


async def _answered(pieces: Sequence[bytes], body: bytes | None, path: str) -> tuple[bytes, int, list[bytes]]:
    asked = bytearray()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.extend(await reader.readuntil(b"\r\n\r\n") + await reader.read(len(body or b"")))
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with ask(f"http://127.0.0.1:{port}{path}", body) as told:
            lines = [line async for line in told.lines()]
    return bytes(asked), told.status, lines


def answered(*pieces: bytes, body: bytes | None = None, path: str = "/v1") -> tuple[bytes, int, list[bytes]]:
    """What was asked, the status and the lines of an answer that comes in these pieces."""
    return asyncio.run(_answered(pieces, body, path))


def lines(*pieces: bytes) -> list[bytes]:
    return answered(*pieces)[2]


CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("pieces", "wanted"),
    [
        pytest.param([CHUNKED, b"2\r\na\n\r\n2\r\nb\n\r\n0\r\n\r\n"], [b"a", b"b"], id="a line in each chunk"),
        pytest.param([CHUNKED, b"1\r\na\r\n", b"3\r\nb\nc\r\n0\r\n\r\n"], [b"ab", b"c"], id="a line over two chunks"),
        pytest.param([CHUNKED, b"A;x=1\r\n0123456", b"789\r\n0\r\n\r\n"], [b"0123456789"], id="a chunk in two reads"),
        pytest.param([CHUNKED, b"4\r\na\r\n\n\r\n0\r\n\r\n"], [b"a", b""], id="DOS line ends"),
        pytest.param([OK + b"Content-Length: 3\r\n\r\na\n", b"bX"], [b"a", b"b"], id="a length that is told"),
        pytest.param([OK + b"\r\n", b"a\n", b"b"], [b"a", b"b"], id="up to the end of the connection"),
        pytest.param([OK + b"content-length: 0\r\n\r\n"], [], id="nothing"),
    ],
)
def test_bodies(pieces: list[bytes], wanted: list[bytes]) -> None:
    assert lines(*pieces) == wanted


@pytest.mark.parametrize(
    ("pieces", "said"),
    [
        pytest.param([b"SSH-2.0-x\r\n"], "it begins with", id="another protocol"),
        pytest.param([b"HTTP/1.1 200"], "the connection was closed before the end", id="half a head"),
        pytest.param([b"HTTP/1.1 two OK\r\n\r\n"], "got b'two', want a number", id="no status"),
        pytest.param([CHUNKED, b"zz\r\n"], "got b'zz', want a number", id="no size"),
        pytest.param([CHUNKED, b"2\r\na\n\r\n"], "the connection was closed before the end", id="no last chunk"),
        pytest.param([OK + b"Content-Length: 3\r\n\r\na"], "closed 2 bytes before the end", id="too short"),
        pytest.param([OK + b"X: " + b"x" * 2**18], "a line is longer than 65536 bytes", id="an endless header"),
    ],
)
def test_what_breaks_off(pieces: list[bytes], said: str) -> None:
    with pytest.raises(BrokenAnswer, match=said):
        lines(*pieces)


def test_what_is_asked() -> None:
    asked, status, _ = answered(b"HTTP/1.1 404 Not Found\r\n\r\n", body=b"{}", path="/v1/completions")
    assert status == 404
    head, _, body = asked.partition(b"\r\n\r\n")
    assert head.splitlines()[0] == b"POST /v1/completions HTTP/1.1"
    assert {b"Content-Length: 2", b"Connection: close", b"Content-Type: application/json"} <= set(head.splitlines())
    assert body == b"{}"
    assert answered(OK + b"\r\n")[0].startswith(b"GET /v1 HTTP/1.1\r\nHost: 127.0.0.1:")
