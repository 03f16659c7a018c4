"""Log-probabilities as clients read them: of answers, streamed and whole, and of prompts."""

import json
from collections.abc import Callable
from itertools import chain
from typing import Any

import httpx
import openai
import pytest
from fake_engine import EOS, FakeEngine, ids, pipeline, scored, tokens

from pinrail_engine.api import logprobs
from pinrail_engine.core.types import FinishReason, TokenEvent, TokenLogprobs
from pinrail_engine.text.output import ScoredToken

OpenAI = Callable[[FakeEngine], openai.OpenAI]
Http = Callable[[FakeEngine], httpx.Client]
HI: list[Any] = [{"role": "user", "content": "hi"}]
INFINITE = float("-inf")


def chat_entries(client: OpenAI, engine: FakeEngine, *, stream: bool, **more: Any) -> list[Any]:
    answer: Any = client(engine).chat.completions.create(
        model="tiny", messages=HI, logprobs=True, stream=stream, **more
    )
    told = [c.choices[0].logprobs for c in answer] if stream else [answer.choices[0].logprobs]
    return list(chain.from_iterable(t.content for t in told if t is not None))


@pytest.mark.parametrize("stream", [False, True])
def test_chat(client: OpenAI, stream: bool) -> None:
    engine = FakeEngine(scored("aé"))
    entries = chat_entries(client, engine, stream=stream, top_logprobs=2)
    half, other = "é".encode()
    assert [(e.token, e.logprob, e.bytes) for e in entries] == [
        ("a", -1.0, [97]),
        ("\ufffd", -2.0, [half]),
        ("\ufffd", -3.0, [other]),
        ("<|im_end|>", -4.0, list(b"<|im_end|>")),
    ]
    assert [(t.token, t.logprob, t.bytes) for t in entries[0].top_logprobs] == [("?", -0.25, [63]), ("!", -0.5, [33])]
    assert engine.submitted[0].params.logprobs == 2


@pytest.mark.parametrize("stream", [False, True])
def test_completions(client: OpenAI, stream: bool) -> None:
    engine = FakeEngine(scored("aé!", FinishReason.LENGTH))
    answer: Any = client(engine).completions.create(model="tiny", prompt="hi", logprobs=2, stream=stream)
    told = [c.choices[0].logprobs for c in answer] if stream else [answer.choices[0].logprobs]
    joined = {
        name: list(chain.from_iterable(getattr(t, name) for t in told if t is not None))
        for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset")
    }
    assert joined == {
        "tokens": ["a", "\ufffd", "\ufffd", "!"],
        "token_logprobs": [-1.0, -2.0, -3.0, -4.0],
        "top_logprobs": [
            {"a": -1.0, "?": -0.25, "!": -0.5},
            {"\ufffd": -2.0, "?": -0.25, "!": -0.5},
            {"\ufffd": -3.0, "?": -0.25, "!": -0.5},
            {"!": -4.0, "?": -0.25},
        ],
        "text_offset": [0, 1, 1, 2],
    }
    assert engine.submitted[0].params.logprobs == 2


@pytest.mark.parametrize(
    ("path", "body", "asked"),
    [
        ("/v1/chat/completions", {"messages": HI}, None),
        ("/v1/chat/completions", {"messages": HI, "logprobs": False, "top_logprobs": 0}, None),
        ("/v1/chat/completions", {"messages": HI, "logprobs": True}, 0),
        ("/v1/chat/completions", {"messages": HI, "logprobs": True, "top_logprobs": 20}, 20),
        ("/v1/completions", {"prompt": "hi"}, None),
        ("/v1/completions", {"prompt": "hi", "logprobs": 0}, 0),
        ("/v1/completions", {"prompt": "hi", "logprobs": 20}, 20),
    ],
)
def test_what_the_engine_is_asked_for(http: Http, path: str, body: dict[str, Any], asked: int | None) -> None:
    engine = FakeEngine(tokens("x"))
    answer = http(engine).post(path, json={"model": "tiny", **body})
    assert engine.submitted[0].params.logprobs == asked
    assert answer.json()["choices"][0]["logprobs"] is None
    assert "prompt_logprobs" not in answer.text


def test_scores_go_with_the_text_of_their_tokens(http: Http) -> None:
    body = {"model": "tiny", "messages": HI, "logprobs": True, "stream": True, "stop": "END"}
    events = http(FakeEngine(scored("aEé"))).post("/v1/chat/completions", json=body).text.split("\n\n")[:-2]
    choices = [json.loads(event.removeprefix("data: "))["choices"][0] for event in events]
    told = [(c["delta"].get("content"), c["logprobs"] and len(c["logprobs"]["content"])) for c in choices]
    assert told == [("", None), ("a", 1), ("Eé", 3), (None, 1)]


@pytest.mark.parametrize("stream", [False, True])
def test_at_a_stop_string_scores_and_usage_agree(client: OpenAI, stream: bool) -> None:
    scores = tuple(TokenLogprobs(-1.0, 1, ()) for _ in "abENDzz")
    engine = FakeEngine([TokenEvent(ids("abENDzz"), logprobs=scores)])
    entries = chat_entries(client, engine, stream=stream, stop="END")
    assert "".join(e.token for e in entries) == "abEND"


def test_each_choice_has_its_own(client: OpenAI) -> None:
    engine = FakeEngine(scripts={0: scored("a"), 1: scored("bc")})
    answer: Any = client(engine).chat.completions.create(model="tiny", messages=HI, n=2, logprobs=True)
    assert [[e.token for e in c.logprobs.content] for c in answer.choices] == [
        ["a", "<|im_end|>"],
        ["b", "c", "<|im_end|>"],
    ]


def prompt_scored(count: int) -> list[TokenEvent]:
    """The end is an event of its own: only the first one tells of the prompt."""
    scores = tuple(TokenLogprobs(-float(n), n, ((63, -0.25), (105, -0.5))) for n in range(2, count + 1))
    return [TokenEvent(ids("x"), prompt_logprobs=scores), TokenEvent((EOS,), FinishReason.STOP)]


def test_prompt_logprobs_of_completions(http: Http) -> None:
    engine = FakeEngine(scripts={0: prompt_scored(3), 1: tokens("y")})
    body = {"model": "tiny", "prompt": "hi<", "prompt_logprobs": 2, "n": 2}
    answer = http(engine).post("/v1/completions", json=body).json()
    first, second = answer["choices"]
    assert first["prompt_logprobs"] == [
        None,
        {
            "105": {"logprob": -2.0, "rank": 2, "decoded_token": "i"},
            "63": {"logprob": -0.25, "rank": 1, "decoded_token": "?"},
        },
        {
            "60": {"logprob": -3.0, "rank": 3, "decoded_token": "<"},
            "63": {"logprob": -0.25, "rank": 1, "decoded_token": "?"},
            "105": {"logprob": -0.5, "rank": 2, "decoded_token": "i"},
        },
    ]
    assert "prompt_logprobs" not in second
    assert "prompt_logprobs" not in answer
    assert [s.params.prompt_logprobs for s in engine.submitted] == [2, None]


def test_prompt_logprobs_of_chat(client: OpenAI) -> None:
    count = len("user\nhi\nassistant\n") + 3
    answer: Any = client(FakeEngine(prompt_scored(count))).chat.completions.create(
        model="tiny", messages=HI, extra_body={"prompt_logprobs": 0}
    )
    assert len(answer.prompt_logprobs) == count
    assert answer.prompt_logprobs[0] is None


def test_a_prompt_of_one_token_has_nothing_to_score(http: Http) -> None:
    body = {"model": "tiny", "prompt": "h", "prompt_logprobs": 1}
    answer = http(FakeEngine(tokens("x"))).post("/v1/completions", json=body).json()
    assert answer["choices"][0]["prompt_logprobs"] == [None]


def test_json_has_no_infinity() -> None:
    token_of = pipeline().token
    scores = [ScoredToken(97, TokenLogprobs(INFINITE, 9, ((98, INFINITE),)), 0)]
    assert logprobs.of_text(scores, token_of)["token_logprobs"] == [-9999.0]
    assert logprobs.of_text(scores, token_of)["top_logprobs"] == [{"a": -9999.0, "b": -9999.0}]
    assert logprobs.of_chat(scores, token_of)["content"][0]["top_logprobs"][0]["logprob"] == -9999.0
    told = logprobs.of_prompt([1, 97], [scores[0].logprobs], token_of)
    assert told[1]["97"]["logprob"] == -9999.0
