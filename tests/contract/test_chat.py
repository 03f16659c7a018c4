"""`pinrail chat` against servers that misbehave: one sentence, never a traceback."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from pinrail_contract.__main__ import main

CHUNK = "data: " + json.dumps({"choices": [{"delta": {"content": "The Po"}}]}) + chr(10)


class _Server(ThreadingHTTPServer):
    models = b'{"data": [{"id": "m"}]}'
    chunks: tuple[str, ...] = (CHUNK,)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.server.models)))
        self.end_headers()
        self.wfile.write(self.server.models)

    def do_POST(self) -> None:
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
    thread = threading.Thread(target=http.serve_forever)
    thread.start()
    yield http
    http.shutdown()
    thread.join()
    http.server_close()


def chat(server: _Server) -> int:
    return main(["chat", "hi", "--url", f"http://127.0.0.1:{server.server_address[1]}"])


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
