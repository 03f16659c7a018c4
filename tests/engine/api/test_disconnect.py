"""A client that leaves frees the engine at once, whatever it was waiting for."""

import asyncio
import json
import logging
import socket
from collections.abc import Callable

import httpx
import pytest
from fake_engine import WAIT, FakeEngine, ids, tokens
from starlette.types import Message

from pinrail_engine.api import body, stream
from pinrail_engine.api.admission import Admission, Kind
from pinrail_engine.api.errors import ClientGone
from pinrail_engine.api.generation import Generation
from pinrail_engine.api.terms import Caller
from pinrail_engine.api.wire import Envelope
from pinrail_engine.core.types import FinishReason, TokenEvent
from pinrail_engine.text.output import Output
from pinrail_engine.text.pipeline import TextPipeline, Token

ENVELOPE = Envelope(id="ID", kind=Kind.TEXT, model="tiny", created=0, prompt=[1, 2], token_of=lambda _: Token("", b""))
Serve = Callable[[FakeEngine], str]


def ask(address: str, *, stream: bool, n: int = 1) -> socket.socket:
    asked = json.dumps({"model": "tiny", "prompt": "hi", "stream": stream, "n": n}).encode()
    url = httpx.URL(address)
    client = socket.create_connection((url.host, url.port or 0), timeout=WAIT)
    client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (len(asked), asked))
    return client


def aborted(engine: FakeEngine) -> bool:
    return engine.finished == [(engine.submitted[0].request_id, FinishReason.ABORT)]


@pytest.mark.parametrize("stream", [False, True])
def test_before_the_first_token(serving: Serve, stream: bool) -> None:
    engine = FakeEngine()
    with ask(serving(engine), stream=stream):
        engine.wait_for(lambda e: bool(e.submitted))
    engine.wait_for(aborted)


@pytest.mark.parametrize("stream", [False, True])
def test_in_the_middle(serving: Serve, stream: bool, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "pinrail.api")
    engine = FakeEngine()
    with ask(serving(engine), stream=stream) as client:
        engine.wait_for(lambda e: bool(e.submitted))
        engine.emit(engine.submitted[0].request_id, [TokenEvent(ids("abc"))])
        if stream:
            assert b"200 OK" in client.recv(100)
    engine.wait_for(aborted)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("begun", [0, 1, 3], ids=["all wait", "one has begun", "all have begun"])
def test_all_choices_end_with_their_client(serving: Serve, stream: bool, begun: int) -> None:
    engine = FakeEngine()
    with ask(serving(engine), stream=stream, n=3) as client:
        engine.wait_for(lambda e: len(e.submitted) == 3)
        for submitted in engine.submitted[:begun]:
            engine.emit(submitted.request_id, [TokenEvent(ids("abc"))])
        if stream and begun:
            assert b"200 OK" in client.recv(100)
    engine.wait_for(lambda e: e.finished == [(s.request_id, FinishReason.ABORT) for s in e.submitted])


@pytest.mark.parametrize("stream", [False, True])
def test_choices_that_have_ended_are_not_ended_again(serving: Serve, stream: bool) -> None:
    engine = FakeEngine(scripts={1: tokens("abc")})
    with ask(serving(engine), stream=stream, n=3):
        engine.wait_for(lambda e: len(e.submitted) == 3 and len(e.open) == 2)
    engine.wait_for(lambda e: e.finished == [(e.submitted[i].request_id, FinishReason.ABORT) for i in (0, 2)])


def test_only_the_one_that_left(serving: Serve) -> None:
    engine = FakeEngine()
    address = serving(engine)
    with ask(address, stream=True) as stays:
        engine.wait_for(lambda e: len(e.submitted) == 1)
        with ask(address, stream=True):
            engine.wait_for(lambda e: len(e.submitted) == 2)
        engine.wait_for(lambda e: e.finished == [(e.submitted[1].request_id, FinishReason.ABORT)])
        engine.emit(engine.submitted[0].request_id, [TokenEvent(ids("abc"), FinishReason.LENGTH)])
        assert b'"text":"abc"' in read_to(stays, b"[DONE]")


def submit(engine: FakeEngine, text: TextPipeline) -> Generation:
    body = b'{"model": "tiny", "prompt": "hi", "stream": true}'
    ask = Admission("tiny", text, 256, "fcfs").admit(Kind.TEXT, body, Caller(), 0)
    return Generation(engine, "ID", [Output(text.detokenizer(), (), frozenset())]).submit(ask)


async def test_a_client_that_takes_nothing_is_gone(text: TextPipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "SEND_SECONDS", 0.01)
    engine = FakeEngine(tokens("abc", finish=None))

    async def send(message: Message) -> None:
        if message["type"] == "http.response.body":
            await asyncio.Event().wait()

    with pytest.raises(ClientGone, match="took nothing"), submit(engine, text) as generation:
        await stream.stream(generation, ENVELOPE, send, {})
    assert engine.finished == [("ID", FinishReason.ABORT)]


async def test_the_engine_is_freed_even_while_something_is_being_sent(text: TextPipeline) -> None:
    engine = FakeEngine()
    submit(engine, text).abort()
    assert engine.finished == [("ID", FinishReason.ABORT)]


async def test_nothing_is_sent_to_a_client_that_left(text: TextPipeline) -> None:
    sent: list[Message] = []
    generation = submit(FakeEngine(tokens("abc", finish=None)), text)

    async def send(message: Message) -> None:
        sent.append(message)
        generation.abort()

    with pytest.raises(ClientGone):
        await stream.stream(generation, ENVELOPE, send, {})
    assert [m["type"] for m in sent] == ["http.response.start", "http.response.body"]


def test_a_body_that_does_not_arrive_is_given_up(serving: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body, "READ_SECONDS", 0.05)
    url = httpx.URL(serving(FakeEngine()))
    with socket.create_connection((url.host, url.port or 0), timeout=WAIT) as client:
        client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n{")
        assert b"408" in read_to(client, b"did not arrive within")


def test_a_client_that_leaves_in_its_body_asks_nothing(serving: Serve) -> None:
    engine = FakeEngine()
    address = serving(engine)
    url = httpx.URL(address)
    with socket.create_connection((url.host, url.port or 0), timeout=WAIT) as client:
        client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n{")
    assert httpx.get(address + "/health").status_code == 200
    assert engine.submitted == []


def read_to(client: socket.socket, mark: bytes) -> bytes:
    seen = b""
    while mark not in seen:
        part = client.recv(65536)
        assert part, seen
        seen += part
    return seen
