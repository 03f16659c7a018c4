"""The bytes on the wire, for both kinds of stream; reviewed as text."""

import json
from collections.abc import Callable

import httpx
import pytest
from fake_engine import FakeEngine, tokens

from pinrail_engine.api import sse
from pinrail_engine.api.admission import Kind
from pinrail_engine.api.errors import Broken
from pinrail_engine.api.wire import Envelope
from pinrail_engine.core.types import FinishReason
from pinrail_engine.text.output import End, Piece

Connect = Callable[[FakeEngine], httpx.Client]
END = End(FinishReason.LENGTH, 3)
HEAD = '"id":"ID","object":"chat.completion.chunk","created":7,"model":"tiny"'
TEXT_HEAD = '"id":"ID","object":"text_completion","created":7,"model":"tiny"'


def sent(kind: Kind, pieces: list[Piece], *, include_usage: bool = False) -> list[str]:
    envelope = Envelope(id="ID", kind=kind, model="tiny", created=7, prompt_tokens=5, include_usage=include_usage)
    return [frame.decode() for i, p in enumerate(pieces) for frame in sse.frames(envelope, p, first=i == 0)]


def chat(delta: str, finish: str = '"finish_reason":null', usage: str = "") -> str:
    return f'data: {{{HEAD},"choices":[{{"index":0,"delta":{delta},"logprobs":null,{finish}}}]{usage}}}\n\n'


def test_chat() -> None:
    assert sent(Kind.CHAT, [Piece("Grü"), Piece(""), Piece("ße\n", END)]) == [
        chat('{"role":"assistant","content":""}'),
        chat('{"content":"Grü"}'),
        chat('{"content":"ße\\n"}'),
        chat("{}", '"finish_reason":"length","stop_reason":null'),
        "data: [DONE]\n\n",
    ]


def test_chat_with_usage() -> None:
    usage = ',"usage":null'
    assert sent(Kind.CHAT, [Piece("", END)], include_usage=True) == [
        chat('{"role":"assistant","content":""}', usage=usage),
        chat("{}", '"finish_reason":"length","stop_reason":null', usage),
        f'data: {{{HEAD},"choices":[],"usage":{{"prompt_tokens":5,"completion_tokens":3,"total_tokens":8}}}}\n\n',
        "data: [DONE]\n\n",
    ]


def test_text() -> None:
    choice = '"choices":[{"index":0,"text":'
    assert sent(Kind.TEXT, [Piece("a", End(FinishReason.STOP, 1, "END"))]) == [
        f'data: {{{TEXT_HEAD},{choice}"a","logprobs":null,"finish_reason":null}}]}}\n\n',
        f'data: {{{TEXT_HEAD},{choice}"","logprobs":null,"finish_reason":"stop","stop_reason":"END"}}]}}\n\n',
        "data: [DONE]\n\n",
    ]


def test_error() -> None:
    body = '{"error":{"message":"It broke.","type":"server_error","param":null,"code":"x"}}'
    assert b"".join(sse.error_frames(Broken("It broke.", code="x"))).decode() == f"data: {body}\n\ndata: [DONE]\n\n"


@pytest.mark.parametrize("options", [{}, {"stream_options": {}}, {"stream_options": {"include_usage": False}}])
def test_no_usage_unless_asked_for(http: Connect, options: dict[str, object]) -> None:
    body = {"model": "tiny", "prompt": "a", "stream": True, **options}
    answer = http(FakeEngine(tokens("x"))).post("/v1/completions", json=body)
    assert "usage" not in answer.text


def test_the_whole_stream_on_the_wire(http: Connect) -> None:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "stream": True, "typo": 1}
    answer = http(FakeEngine(tokens("a", "b"))).post("/v1/chat/completions", json=body)
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert answer.headers["cache-control"] == "no-cache"
    assert answer.headers["x-accel-buffering"] == "no"
    assert answer.headers["x-pinrail-ignored-fields"] == "typo"
    *events, done, rest = answer.text.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    chunks = [json.loads(event.removeprefix("data: ")) for event in events]
    assert len({(c["id"], c["created"], c["model"]) for c in chunks}) == 1
    assert [c["choices"][0]["delta"] for c in chunks] == [
        {"role": "assistant", "content": ""},
        {"content": "a"},
        {"content": "b"},
        {},
    ]
