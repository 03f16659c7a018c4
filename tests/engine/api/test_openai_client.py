"""The official client sees what OpenAI would show it."""

from collections.abc import Callable
from typing import Any

import openai
import pytest
from fake_engine import EOS, FakeEngine, ids, tokens

from pinrail_engine.core.types import FinishReason, Refused, TokenEvent

Connect = Callable[[FakeEngine], openai.OpenAI]
HI: list[Any] = [{"role": "user", "content": "hi"}]
PROMPT_TOKENS = len("user\nhi\nassistant\n") + 3  # <|im_start|> twice, <|im_end|> once


def test_chat(client: Connect) -> None:
    answer = client(FakeEngine(tokens("Hel", "lo"))).chat.completions.create(model="tiny", messages=HI)
    assert answer.id.startswith("chatcmpl-")
    assert answer.object == "chat.completion"
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].message.content == "Hello"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.model_dump(exclude_none=True) == {
        "prompt_tokens": PROMPT_TOKENS,
        "completion_tokens": 6,
        "total_tokens": PROMPT_TOKENS + 6,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


def test_chat_streamed_is_the_same_text(client: Connect) -> None:
    engine = FakeEngine(tokens("Grüße ", "世界 🙂", finish=FinishReason.LENGTH))
    chunks = list(client(engine).chat.completions.create(model="tiny", messages=HI, stream=True))
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == "Grüße 世界 🙂"
    assert [c.choices[0].finish_reason for c in chunks if c.choices[0].finish_reason] == ["length"]
    assert all(c.usage is None for c in chunks)


def test_a_character_split_over_events_comes_whole(client: Connect) -> None:
    events = [TokenEvent((byte,)) for byte in "é世🙂".encode()] + [TokenEvent((EOS,), FinishReason.STOP)]
    chunks = list(client(FakeEngine(events)).chat.completions.create(model="tiny", messages=HI, stream=True))
    assert [c.choices[0].delta.content for c in chunks if c.choices[0].delta.content] == ["é", "世", "🙂"]


def test_usage_is_streamed_when_asked_for(client: Connect) -> None:
    stream = client(FakeEngine(tokens("ab"))).chat.completions.create(
        model="tiny", messages=HI, stream=True, stream_options={"include_usage": True}
    )
    *others, last = list(stream)
    assert last.choices == []
    assert last.usage is not None
    assert (last.usage.prompt_tokens, last.usage.completion_tokens) == (PROMPT_TOKENS, 3)
    assert all(c.usage is None for c in others)


@pytest.mark.parametrize("stream", [False, True])
def test_completions(client: Connect, stream: bool) -> None:
    engine = FakeEngine(tokens("one", " two"))
    answer: Any = client(engine).completions.create(model="tiny", prompt="count", stream=stream)
    chunks = list(answer) if stream else [answer]
    assert "".join(c.choices[0].text for c in chunks) == "one two"
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert {c.object for c in chunks} == {"text_completion"}
    assert engine.submitted[0].prompt == list(ids("count"))
    assert engine.submitted[0].params.max_tokens == 16


@pytest.mark.parametrize("prompt", ["ab", [97, 98], ["ab"], [[97, 98]]])
def test_one_prompt_in_any_of_its_forms(client: Connect, prompt: Any) -> None:
    engine = FakeEngine(tokens("x"))
    client(engine).completions.create(model="tiny", prompt=prompt)
    assert engine.submitted[0].prompt == [97, 98]


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_over_several_tokens_ends_the_request(client: Connect, stream: bool) -> None:
    engine = FakeEngine(tokens("abc", "S", "TO", "Pzz", "never", finish=None))
    answer: Any = client(engine).chat.completions.create(model="tiny", messages=HI, stop="STOP", stream=stream)
    if stream:
        chunks = list(answer)
        text, choice = "".join(c.choices[0].delta.content or "" for c in chunks), chunks[-1].choices[0]
    else:
        text, choice = answer.choices[0].message.content, answer.choices[0]
        assert answer.usage.completion_tokens == len("abcSTOP")
    assert (text, choice.finish_reason, choice.stop_reason) == ("abc", "stop", "STOP")
    engine.wait_for(lambda e: e.finished == [(e.submitted[0].request_id, FinishReason.STOP)])


@pytest.mark.parametrize(("min_tokens", "sent"), [(0, ""), (1, ""), (2, "abc"), (4, "abc"), (5, "abcab")])
@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_waits_for_min_tokens(client: Connect, stream: bool, min_tokens: int, sent: str) -> None:
    engine = FakeEngine(tokens("ab", "cab", finish=FinishReason.LENGTH))
    answer: Any = client(engine).chat.completions.create(
        model="tiny", messages=HI, stop="ab", stream=stream, extra_body={"min_tokens": min_tokens}
    )
    parts = [c.choices[0].delta.content or "" for c in answer] if stream else [answer.choices[0].message.content]
    assert "".join(parts) == sent
    assert engine.submitted[0].params.min_tokens == min_tokens


def test_what_the_request_leaves_open_the_model_decides(client: Connect) -> None:
    engine = FakeEngine(tokens("x"))
    client(engine).chat.completions.create(model="tiny", messages=HI, top_p=0.5, seed=-1)
    params = engine.submitted[0].params
    assert (params.temperature, params.top_k, params.top_p) == (0.5, 40, 0.5)
    assert params.max_tokens == engine.max_model_len - PROMPT_TOKENS
    assert params.stop_token_ids == {EOS}
    assert params.seed == 2**63 - 1


def test_extensions_reach_the_engine(client: Connect) -> None:
    engine = FakeEngine(tokens("x"))
    client(engine).chat.completions.create(
        model="tiny",
        messages=HI,
        max_tokens=99,
        max_completion_tokens=5,
        temperature=1e-9,
        extra_body={"top_k": -1, "ignore_eos": True, "stop_token_ids": [3]},
    )
    params = engine.submitted[0].params
    assert (params.max_tokens, params.temperature, params.top_k) == (5, 0.0, 0)
    assert params.stop_token_ids == {3}


def test_without_a_seed_answers_differ(client: Connect) -> None:
    engine = FakeEngine(tokens("x"))
    api = client(engine)
    for _ in range(2):
        api.chat.completions.create(model="tiny", messages=HI)
    assert engine.submitted[0].params.seed != engine.submitted[1].params.seed


def test_text_parts_are_lines(client: Connect) -> None:
    engine = FakeEngine(tokens("x"))
    parts = [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]
    client(engine).chat.completions.create(model="tiny", messages=[{"role": "user", "content": parts}])  # type: ignore
    assert bytes(i for i in engine.submitted[0].prompt if i < 256) == b"user\nh\ni\nassistant\n"


@pytest.mark.parametrize("stream", [False, True])
def test_usage_says_what_was_cached(client: Connect, stream: bool) -> None:
    engine = FakeEngine([event._replace(cached_tokens=16) for event in tokens("ab")])
    answer: Any = client(engine).chat.completions.create(
        model="tiny", messages=HI, stream=stream, **({"stream_options": {"include_usage": True}} if stream else {})
    )
    usage = list(answer)[-1].usage if stream else answer.usage
    assert usage.prompt_tokens_details.cached_tokens == 16


def test_models_say_what_is_pinned(client: Connect) -> None:
    api = client(FakeEngine())
    assert [m.id for m in api.models.list()] == ["tiny"]
    model: Any = api.models.retrieve("tiny")
    assert (model.max_model_len, model.verification, model.manifest_digest) == (256, "Verified", "sha256:" + "a" * 64)
    assert model.engine_version == "0.1.0"
    assert model.numerics == {
        "backend": "native", "instructions": "avx2", "weight_dtype": "int8", "compute_dtype": "", "kv_cache_dtype": "",
    }  # fmt: skip
    with pytest.raises(openai.NotFoundError):
        api.models.retrieve("other")


@pytest.mark.parametrize(
    ("refusal", "error", "retry_after"),
    [
        (Refused("full", retry_after=3, overloaded=True), openai.RateLimitError, "3"),
        (Refused("never fits"), openai.BadRequestError, None),
        (Refused("draining", retry_after=1), openai.InternalServerError, "1"),
    ],
)
def test_refusals(client: Connect, refusal: Refused, error: type[openai.APIStatusError], retry_after: str) -> None:
    with pytest.raises(error, match=str(refusal)) as caught:
        client(FakeEngine(refusal=refusal)).chat.completions.create(model="tiny", messages=HI)
    assert caught.value.response.headers.get("retry-after") == retry_after


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("reason", "status"), [(FinishReason.ERROR, 500), (FinishReason.ABORT, 503)])
def test_an_end_before_the_first_token_has_a_true_status(
    client: Connect, stream: bool, reason: FinishReason, status: int
) -> None:
    engine = FakeEngine([TokenEvent((), reason, "secret /path")])
    with pytest.raises(openai.APIStatusError) as caught:
        client(engine).chat.completions.create(model="tiny", messages=HI, stream=stream)
    assert caught.value.status_code == status
    assert "secret" not in caught.value.response.text


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("retry_after", [7, None])
def test_one_sent_away_from_the_queue_is_told_when_to_come_back(
    client: Connect, stream: bool, retry_after: int | None
) -> None:
    engine = FakeEngine([TokenEvent((), FinishReason.REJECTED, "Waited 30 s.", retry_after=retry_after)])
    with pytest.raises(openai.RateLimitError, match=r"Waited 30 s\.") as caught:
        client(engine).chat.completions.create(model="tiny", messages=HI, stream=stream)
    assert caught.value.response.headers.get("retry-after") == (retry_after and str(retry_after))
    assert (caught.value.code, caught.value.type) == ("sent_away_from_queue", "rate_limit_error")


def test_an_error_in_a_running_stream_is_told_in_it(client: Connect) -> None:
    engine = FakeEngine([TokenEvent(ids("abc")), TokenEvent((), FinishReason.ERROR, "secret")])
    seen = ""
    with pytest.raises(openai.APIError, match="step that computed this request failed"):  # noqa: PT012
        for chunk in client(engine).chat.completions.create(model="tiny", messages=HI, stream=True):
            seen += chunk.choices[0].delta.content or ""
    assert seen == "abc"


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"model": "other"}, openai.NotFoundError, "The model `other` does not exist."),
        ({"messages": []}, openai.BadRequestError, "messages"),
        (
            {"messages": [{"role": "user", "content": "x" * 300}]},
            openai.BadRequestError,
            "maximum context length is 256 tokens. However, your prompt contains 319 input tokens",
        ),
        ({"max_tokens": 250}, openai.BadRequestError, "max_tokens: got 250, want at most 235"),
        ({"n": 2, "temperature": 0}, openai.BadRequestError, "n: got 2, want 1 with greedy sampling (temperature 0)"),
        ({"logprobs": True, "top_logprobs": 21}, openai.BadRequestError, "got 21, want less than or equal to 20"),
        ({"max_tokens": 5, "extra_body": {"min_tokens": 6}}, openai.BadRequestError, "min_tokens: got 6, want 0 to 5"),
        (
            {"extra_body": {"priority": 1}},
            openai.BadRequestError,
            "priority: got 1, want 0 or nothing: this server's policy is fcfs, not priority",
        ),
        (
            {"logit_bias": {"191222": 1, "-1": 1}},
            openai.BadRequestError,
            "logit_bias: got token id 191222, -1, want 0 to 257",
        ),
        ({"extra_body": {"best_of": 2}}, openai.BadRequestError, "best_of: got 2, want n (1) or nothing"),
        (
            {"tools": [{}]},
            openai.BadRequestError,
            "tools: got a list of 1, which is not supported yet; want a list of 0",
        ),
    ],
)
def test_errors_are_the_clients_typed_ones(
    client: Connect, change: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error) as caught:
        client(FakeEngine()).chat.completions.create(**{"model": "tiny", "messages": HI, **change})
    assert message in str(caught.value)
