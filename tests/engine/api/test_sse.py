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
from pinrail_engine.core.types import FinishReason, TokenLogprobs
from pinrail_engine.text.output import End, Piece, ScoredToken
from pinrail_engine.text.pipeline import Token

Connect = Callable[[FakeEngine], httpx.Client]
END = End(FinishReason.LENGTH, 3, cached_tokens=2)
HEAD = '"id":"ID","object":"chat.completion.chunk","created":7,"model":"tiny"'
TEXT_HEAD = '"id":"ID","object":"text_completion","created":7,"model":"tiny"'


CACHED = '"prompt_tokens_details":{{"cached_tokens":2}}'
USAGE = '"usage":{{"prompt_tokens":5,"completion_tokens":{},"total_tokens":{},' + CACHED + "}}"
LENGTH = '"finish_reason":"length","stop_reason":null'


def envelope(kind: Kind, *, include_usage: bool = False) -> Envelope:
    return Envelope(
        id="ID",
        kind=kind,
        model="tiny",
        created=7,
        prompt=[1, 2, 3, 4, 5],
        token_of=lambda i: Token(chr(i), bytes([i])),
        include_usage=include_usage,
    )


def sent(kind: Kind, pieces: list[Piece], *, include_usage: bool = False) -> list[str]:
    return sent_of(1, kind, [(0, piece) for piece in pieces], include_usage=include_usage)


def sent_of(n: int, kind: Kind, pieces: list[tuple[int, Piece]], *, include_usage: bool = False) -> list[str]:
    frames = sse.Frames(envelope(kind, include_usage=include_usage), n)
    return [frame.decode() for choice, piece in pieces for frame in frames.push(choice, piece)]


def chat(
    delta: str, finish: str = '"finish_reason":null', usage: str = "", index: int = 0, logprobs: str = "null"
) -> str:
    choice = f'{{"index":{index},"delta":{delta},"logprobs":{logprobs},{finish}}}'
    return f'data: {{{HEAD},"choices":[{choice}]{usage}}}\n\n'


def test_chat() -> None:
    assert sent(Kind.CHAT, [Piece("Grü"), Piece(""), Piece("ße\n", END)]) == [
        chat('{"role":"assistant","content":""}'),
        chat('{"content":"Grü"}'),
        chat('{"content":"ße\\n"}'),
        chat("{}", LENGTH),
        "data: [DONE]\n\n",
    ]


def test_chat_with_usage() -> None:
    usage = ',"usage":null'
    assert sent(Kind.CHAT, [Piece("", END)], include_usage=True) == [
        chat('{"role":"assistant","content":""}', usage=usage),
        chat("{}", LENGTH, usage),
        f'data: {{{HEAD},"choices":[],{USAGE.format(3, 8)}}}\n\n',
        "data: [DONE]\n\n",
    ]


ROLE = '{"role":"assistant","content":""}'


def test_two_choices() -> None:
    usage = ',"usage":null'
    first_end = End(FinishReason.STOP, 4, "END", cached_tokens=2)
    second_end = End(FinishReason.LENGTH, 3, cached_tokens=5)
    pieces = [(1, Piece("B")), (0, Piece("A")), (1, Piece("b", second_end)), (0, Piece("a")), (0, Piece("", first_end))]
    assert sent_of(2, Kind.CHAT, pieces, include_usage=True) == [
        chat(ROLE, usage=usage, index=1),
        chat('{"content":"B"}', usage=usage, index=1),
        chat(ROLE, usage=usage, index=0),
        chat('{"content":"A"}', usage=usage, index=0),
        chat('{"content":"b"}', usage=usage, index=1),
        chat("{}", LENGTH, usage, index=1),
        chat('{"content":"a"}', usage=usage, index=0),
        chat("{}", '"finish_reason":"stop","stop_reason":"END"', usage, index=0),
        f'data: {{{HEAD},"choices":[],{USAGE.format(7, 12)}}}\n\n',
        "data: [DONE]\n\n",
    ]


def entry(char: str, logprob: float) -> str:
    return f'{{"token":"{char}","logprob":{logprob},"bytes":[{ord(char)}],"top_logprobs":[]}}'


def score(char: str, logprob: float, offset: int) -> ScoredToken:
    return ScoredToken(ord(char), TokenLogprobs(logprob, 1, ()), offset)


def test_chat_with_logprobs() -> None:
    pieces = [
        Piece("a", scores=(score("a", -0.5, 0),)),
        Piece("bc", END, (score("b", -1.5, 1), score("c", -2.5, 2))),
    ]
    assert sent(Kind.CHAT, pieces) == [
        chat(ROLE),
        chat('{"content":"a"}', logprobs=f'{{"content":[{entry("a", -0.5)}],"refusal":null}}'),
        chat('{"content":"bc"}', logprobs=f'{{"content":[{entry("b", -1.5)},{entry("c", -2.5)}],"refusal":null}}'),
        chat("{}", LENGTH),
        "data: [DONE]\n\n",
    ]


def test_logprobs_without_text_go_with_the_end() -> None:
    told = f'{{"content":[{entry("z", -0.5)}],"refusal":null}}'
    assert sent(Kind.CHAT, [Piece("", END, (score("z", -0.5, 0),))])[1] == chat("{}", LENGTH, logprobs=told)


def test_text_with_logprobs() -> None:
    told = '{"tokens":["a"],"token_logprobs":[-0.5],"top_logprobs":[{"a":-0.5}],"text_offset":[3]}'
    assert sent(Kind.TEXT, [Piece("a", scores=(score("a", -0.5, 3),))]) == [
        f'data: {{{TEXT_HEAD},"choices":[{{"index":0,"text":"a","logprobs":{told},"finish_reason":null}}]}}\n\n'
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
