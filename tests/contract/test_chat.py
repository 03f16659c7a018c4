"""`pinrail chat` against servers that misbehave: one sentence, never a traceback."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from pinrail_contract.__main__ import main

CHUNK = "data: " + json.dumps({"choices": [{"delta": {"content": "The Po"}}]}) + chr(10)


class _Server(ThreadingHTTPServer):
    models = b'{"data": [{"id": "m"}]}'
    chunks: tuple[str, ...] = (CHUNK,)
    given: list[str | None]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_GET(self) -> None:
        self.server.given.append(self.headers["Authorization"])
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.server.models)))
        self.end_headers()
        self.wfile.write(self.server.models)

    def do_POST(self) -> None:
        self.server.given.append(self.headers["Authorization"])
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for chunk in self.server.chunks:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(chunk), chunk.encode()))
        self.close_connection = True  # no last chunk: the server died

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[_Server]:
    http = _Server(("127.0.0.1", 0), _Handler)
    http.given = []
    thread = threading.Thread(target=http.serve_forever)
    thread.start()
    yield http
    http.shutdown()
    thread.join()
    http.server_close()


def chat(server: _Server, *words: str) -> int:
    return main(["chat", "hi", "--url", f"http://127.0.0.1:{server.server_address[1]}", *words])


def test_the_key_of_a_file_goes_with_every_request(server: _Server, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("abc\n")
    chat(server, "--api-key-file", str(tmp_path / "key"))
    chat(server)
    assert server.given == ["Bearer abc", "Bearer abc", None, None]


@pytest.mark.parametrize("content", [b"", b"\n", b"two\nlines", b"\xff"], ids=str)
def test_a_file_without_a_key_is_named_and_not_shown(
    server: _Server, tmp_path: Path, content: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "key").write_bytes(content)
    assert chat(server, "--api-key-file", str(tmp_path / "key")) == 1
    assert f"--api-key-file: {tmp_path / 'key'}" in capsys.readouterr().err
    assert server.given == []


def test_an_answer_that_breaks_off_is_said_to(server: _Server, capsys: pytest.CaptureFixture[str]) -> None:
    assert chat(server) == 1
    captured = capsys.readouterr()
    assert captured.out == "The Po"
    assert "the answer broke off" in captured.err


@pytest.mark.parametrize("models", [b"<html>", b"[]", b'{"data": []}'], ids=["no JSON", "a list", "no model"])
def test_a_server_of_another_kind(server: _Server, models: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    server.models = models
    assert chat(server) == 1
    assert "answers what no OpenAI server would" in capsys.readouterr().err


def test_an_event_of_another_kind(server: _Server, capsys: pytest.CaptureFixture[str]) -> None:
    server.chunks = ("data: {}" + chr(10),)
    assert chat(server) == 1
    assert "answers what no OpenAI server would (KeyError: 'choices')" in capsys.readouterr().err
