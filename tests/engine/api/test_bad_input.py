"""Whatever a body holds, the answer is a 4xx in OpenAI's shape, short, and the engine never hears of it."""

import json
import re
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import httpx
import pytest
from fake_engine import FakeEngine, tokens
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pinrail_engine.api.admission import Admission, Ask, Kind
from pinrail_engine.api.body import MAX_BYTES
from pinrail_engine.api.errors import ApiError
from pinrail_engine.api.terms import Caller
from pinrail_engine.text.pipeline import TextPipeline

Connect = Callable[[FakeEngine], httpx.Client]
CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
HI = [{"role": "user", "content": "hi"}]


def chat(**changes: Any) -> dict[str, Any]:
    return {"model": "tiny", "messages": HI, **changes}


def raw(fragment: str) -> bytes:
    return f'{{"model": "tiny", "messages": [{{"role": "user", "content": "hi"}}], {fragment}}}'.encode()


BODIES = {
    "empty": b"",
    "not JSON": b"{",
    "not UTF-8": b'{"model": "\xff"}',
    "UTF-16": '{"model": "tiny"}'.encode("utf-16"),
    "no object": b"[1]",
    "NaN": raw('"temperature": NaN'),
    "infinity": raw('"temperature": -Infinity'),
    "overflow": raw('"temperature": 1e999'),
    "NaN where nobody looks": raw('"x": NaN'),
    "overflow where nobody looks": raw('"x": [1e999]'),
    "many digits": raw('"seed": ' + "9" * 5000),
    "nested": raw('"x": ' + "[" * 100 + "]" * 100),
    "nested past the parser": b"[" * 200_000,
    "half a surrogate": raw('"stop": "\\ud800"'),
    "no model": b'{"messages": []}',
}

FIELDS: list[tuple[str, dict[str, Any]]] = [
    ("temperature", {"temperature": 3}),
    ("temperature", {"temperature": -0.1}),
    ("temperature", {"temperature": True}),
    ("temperature", {"temperature": "1"}),
    ("top_p", {"top_p": 0}),
    ("top_p", {"top_p": 1.01}),
    ("top_k", {"top_k": -2}),
    ("top_k", {"top_k": 1.5}),
    ("max_tokens", {"max_tokens": 0}),
    ("max_tokens", {"max_tokens": -1}),
    ("max_tokens", {"max_tokens": True}),
    ("max_tokens", {"max_tokens": 2**70}),
    ("max_completion_tokens", {"max_completion_tokens": 0}),
    ("seed", {"seed": 2**63}),
    ("seed", {"seed": "x"}),
    ("stop", {"stop": ""}),
    ("stop", {"stop": ["a"] * 17}),
    ("stop", {"stop": [1]}),
    ("stop", {"stop": {"a": 1}}),
    ("stop", {"stop": "x" * 1025}),
    ("stop_token_ids", {"stop_token_ids": [258]}),
    ("stop_token_ids", {"stop_token_ids": [-1]}),
    ("stop_token_ids", {"stop_token_ids": [True]}),
    ("stream", {"stream": "yes"}),
    ("stream_options", {"stream_options": {"include_usage": True}}),
    ("stream_options", {"stream": True, "stream_options": 5}),
    ("messages", {"messages": []}),
    ("messages", {"messages": "hi"}),
    ("messages", {"messages": [{"role": "robot", "content": "x"}]}),
    ("messages", {"messages": [{"role": "user"}]}),
    ("messages", {"messages": [{"role": "user", "content": 5}]}),
    ("messages", {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}),
    ("messages", {"messages": [{"role": "user", "content": "x" * 100_000}]}),
    ("messages", {"messages": [5] * 100_000}),
    ("model", {"model": None}),
    ("min_p", {"min_p": -0.01}),
    ("min_p", {"min_p": 1.01}),
    ("min_p", {"min_p": "1"}),
    ("presence_penalty", {"presence_penalty": -2.01}),
    ("presence_penalty", {"presence_penalty": 2.01}),
    ("presence_penalty", {"presence_penalty": True}),
    ("frequency_penalty", {"frequency_penalty": -2.01}),
    ("frequency_penalty", {"frequency_penalty": 2.01}),
    ("frequency_penalty", {"frequency_penalty": [1]}),
    ("repetition_penalty", {"repetition_penalty": 0}),
    ("repetition_penalty", {"repetition_penalty": -1}),
    ("repetition_penalty", {"repetition_penalty": 10**400}),
    ("repetition_penalty", {"repetition_penalty": "1"}),
    ("logit_bias", {"logit_bias": [1]}),
    ("logit_bias", {"logit_bias": {"a": 1}}),
    ("logit_bias", {"logit_bias": {"1.5": 1}}),
    ("logit_bias", {"logit_bias": {"": 1}}),
    ("logit_bias", {"logit_bias": {"\uff11": 1}}),
    ("logit_bias", {"logit_bias": {"1": "x"}}),
    ("logit_bias", {"logit_bias": {"1": True}}),
    ("logit_bias", {"logit_bias": {"1": None}}),
    ("logit_bias", {"logit_bias": {"-1": 1}}),
    ("logit_bias", {"logit_bias": {"258": 1}}),
    ("logit_bias", {"logit_bias": {"9" * 400: 1}}),
    ("logit_bias", {"logit_bias": {str(i): 1 for i in range(1025)}}),
    ("allowed_token_ids", {"allowed_token_ids": []}),
    ("allowed_token_ids", {"allowed_token_ids": [258]}),
    ("allowed_token_ids", {"allowed_token_ids": [-1]}),
    ("allowed_token_ids", {"allowed_token_ids": ["1"]}),
    ("allowed_token_ids", {"allowed_token_ids": [1.0]}),
    ("allowed_token_ids", {"allowed_token_ids": [97, 98], "bad_words": ["a", "b"]}),
    ("allowed_token_ids", {"allowed_token_ids": [257], "min_tokens": 1}),
    ("bad_words", {"bad_words": "a"}),
    ("bad_words", {"bad_words": [""]}),
    ("bad_words", {"bad_words": [1]}),
    ("bad_words", {"bad_words": ["x" * 257]}),
    ("bad_words", {"bad_words": ["x"] * 129}),
    ("min_tokens", {"min_tokens": -1}),
    ("min_tokens", {"min_tokens": 1.0}),
    ("min_tokens", {"min_tokens": 5, "max_tokens": 4}),
    ("min_tokens", {"min_tokens": 256}),
    ("n", {"n": 0}),
    ("n", {"n": 129}),
    ("n", {"n": True}),
    ("n", {"n": 2, "temperature": 0}),
    ("n", {"n": 2, "temperature": 9e-6}),
    ("best_of", {"best_of": 2}),
    ("best_of", {"best_of": 3, "n": 2}),
    ("best_of", {"best_of": 0}),
    ("best_of", {"best_of": "1"}),
    ("logprobs", {"logprobs": 1}),
    ("logprobs", {"logprobs": "true"}),
    ("top_logprobs", {"top_logprobs": 5}),
    ("top_logprobs", {"top_logprobs": 5, "logprobs": False}),
    ("top_logprobs", {"top_logprobs": 21, "logprobs": True}),
    ("top_logprobs", {"top_logprobs": -1, "logprobs": True}),
    ("top_logprobs", {"top_logprobs": True, "logprobs": True}),
    ("prompt_logprobs", {"prompt_logprobs": -1}),
    ("prompt_logprobs", {"prompt_logprobs": 21}),
    ("prompt_logprobs", {"prompt_logprobs": True}),
    ("prompt_logprobs", {"prompt_logprobs": 0, "stream": True}),
    ("cache_salt", {"cache_salt": ""}),
    ("cache_salt", {"cache_salt": "x" * 129}),
    ("cache_salt", {"cache_salt": 5}),
    *(("cache_salt", {"cache_salt": f"a{c}b"}) for c in "@/\\\0"),
    ("priority", {"priority": 1}),
    ("priority", {"priority": -1}),
    ("priority", {"priority": 2**63}),
    ("priority", {"priority": -(2**63) - 1}),
    ("priority", {"priority": 1.0}),
    ("deadline", {"deadline": 0}),
    ("deadline", {"deadline": -1}),
    ("deadline", {"deadline": 86400.1}),
    ("deadline", {"deadline": "1"}),
    ("user", {"user": 5}),
    ("tools", {"tools": [{"type": "function"}]}),
    ("response_format", {"response_format": {"type": "json_object"}}),
    ("echo", {"echo": True}),
    ("suffix", {"suffix": "x"}),
    ("prompt_embeds", {"prompt_embeds": "AAAA"}),
]

COMPLETION_FIELDS: list[tuple[str, dict[str, Any]]] = [
    ("logprobs", {"logprobs": -1}),
    ("logprobs", {"logprobs": 21}),
    ("logprobs", {"logprobs": True}),
    ("logprobs", {"logprobs": 1.0}),
    ("prompt_logprobs", {"prompt_logprobs": 1, "stream": True}),
    ("n", {"n": 2, "temperature": 0}),
    ("logit_bias", {"logit_bias": {"258": 1}}),
    ("min_tokens", {"min_tokens": 17}),
]


def check_error(answer: httpx.Response, status: int) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    assert len(answer.content) < 4000
    assert not re.search(r"0x[0-9a-f]{6,}|/usr/|/root|/work|Traceback|site-packages|<class|pydantic", answer.text)
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    return dict(error)


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine(tokens("x"))


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
def test_bodies(http: Connect, engine: FakeEngine, body: bytes) -> None:
    check_error(http(engine).post(CHAT, content=body), 400)
    assert engine.submitted == []


def test_fields(http: Connect, engine: FakeEngine) -> None:
    api = http(engine)
    for field, change in FIELDS:
        error = check_error(api.post(CHAT, json=chat(**change)), 400)
        assert error["param"] == field, (change, error)
    assert engine.submitted == []


def test_fields_of_completions(http: Connect, engine: FakeEngine) -> None:
    api = http(engine)
    for field, change in COMPLETION_FIELDS:
        error = check_error(api.post(TEXT, json={"model": "tiny", "prompt": "hi", **change}), 400)
        assert error["param"] == field, (change, error)
    assert engine.submitted == []


@pytest.mark.parametrize(
    "prompt", ["", [], ["a", "b"], [[1], [2]], [258], [-1], [True], [1.5], 5, {"a": 1}, [[]], "x" * 1000, [5] * 1000]
)
def test_prompts(http: Connect, engine: FakeEngine, prompt: Any) -> None:
    error = check_error(http(engine).post(TEXT, json={"model": "tiny", "prompt": prompt}), 400)
    assert error["param"] == "prompt"
    assert engine.submitted == []


@pytest.mark.parametrize(
    ("prompt_tokens", "max_tokens", "status"),
    [(255, None, 200), (256, None, 400), (254, 2, 200), (254, 3, 400)],
)
def test_the_window_is_filled_to_the_last_token(
    http: Connect, engine: FakeEngine, prompt_tokens: int, max_tokens: int | None, status: int
) -> None:
    body = {"model": "tiny", "prompt": [5] * prompt_tokens, "max_tokens": max_tokens}
    assert http(engine).post(TEXT, json=body).status_code == status
    assert [s.params.max_tokens for s in engine.submitted] == ([256 - prompt_tokens] if status == 200 else [])


def test_a_fault_names_field_wanted_and_seen(http: Connect, engine: FakeEngine) -> None:
    answer = http(engine).post(CHAT, json=chat(temperature=3, top_p="x" * 1000))
    assert answer.json()["error"]["message"] == (
        f'temperature: got 3, want less than or equal to 2; top_p: got "{"x" * 199}…, want a valid number'
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n": 129}, "n: got 129, want less than or equal to 128"),
        ({"messages": [5]}, "messages.0: got 5, want an object"),
        ({"messages": [{"role": "user"}]}, "messages.0: got an object of 1, want content in it"),
        ({"stop": ["a"] * 17}, "stop: got a list of 17, want at most 16 items"),
        ({"allowed_token_ids": []}, "allowed_token_ids: got a list of 0, want at least 1 item"),
        (
            {"logit_bias": {"a": 1}},
            'logit_bias: got an object of 1, want token ids as keys, not "a"',
        ),
        (
            {"logit_bias": {str(i): 1 for i in range(258, 270)}},
            "logit_bias: got token id 258, 259, 260, 261, 262, 263, 264, 265, 266, 267 and 2 more, want 0 to 257",
        ),
        (
            {"allowed_token_ids": [257], "min_tokens": 1},
            "allowed_token_ids: got no such id, want one that neither bad_words nor min_tokens forbids",
        ),
        ({"cache_salt": "a/b"}, 'cache_salt: got "a/b", want 1 to 128 characters without @, /, \\ and NUL'),
        ({"top_logprobs": 2}, "top_logprobs: got 2, want logprobs to be true"),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs: got it with stream, want stream to be false"),
    ],
)
def test_what_a_refusal_says(http: Connect, engine: FakeEngine, change: dict[str, Any], message: str) -> None:
    assert check_error(http(engine).post(CHAT, json=chat(**change)), 400)["message"] == message


@pytest.mark.parametrize("size", [MAX_BYTES + 1, 3 * MAX_BYTES])
def test_a_huge_body(http: Connect, engine: FakeEngine, size: int) -> None:
    assert check_error(http(engine).post(CHAT, content=b" " * size), 413)["code"] == "body_too_large"


def test_the_largest_body_is_read(http: Connect, engine: FakeEngine) -> None:
    body = json.dumps(chat()).encode()
    assert http(engine).post(CHAT, content=body + b" " * (MAX_BYTES - len(body))).status_code == 200


def test_huge_headers_are_cut_off(http: Connect, engine: FakeEngine) -> None:
    api = http(engine)
    with suppress(httpx.NetworkError):  # the connection may be gone before the answer is read
        assert api.get("/health", headers={"x-big": "x" * 2_000_000}).status_code == 400
    assert api.get("/health").status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 404),
        ("POST", "/v1/embeddings", 404),
        ("GET", "/v1/chat/completions/", 404),
        ("GET", CHAT, 405),
        ("POST", "/v1/models", 405),
        ("DELETE", "/metrics", 405),
        ("GET", "/v1/models/../../etc/passwd", 404),
    ],
)
def test_paths_and_methods(http: Connect, engine: FakeEngine, method: str, path: str, status: int) -> None:
    answer = http(engine).request(method, path)
    check_error(answer, status)
    assert ("allow" in answer.headers) == (status == 405)


def test_unknown_fields_are_ignored_and_named(http: Connect, engine: FakeEngine) -> None:
    body = chat(temprature=1, zeta=2, user="u", metadata={}, store=True, presence_penalty=0, n=1, **{"a\r\nx: y": 1})
    answer = http(engine).post(CHAT, json=body)
    assert answer.status_code == 200
    assert answer.headers["x-pinrail-ignored-fields"] == "?, temprature, zeta"
    assert "x-pinrail-ignored-fields" not in http(engine).post(CHAT, json=chat()).headers


@pytest.mark.parametrize("given_id", ["abc-1", "x" * 64])
def test_a_plain_request_id_is_echoed_and_never_the_key(http: Connect, engine: FakeEngine, given_id: str) -> None:
    api = http(engine)
    for _ in range(2):
        answer = api.post(CHAT, json=chat(), headers={"X-Request-Id": given_id})
        assert answer.headers["x-request-id"] == given_id
    assert len({s.request_id for s in engine.submitted} - {given_id}) == 2


@pytest.mark.parametrize("given_id", ["", "x" * 65, "a b", "é"])
def test_an_odd_request_id_is_not_echoed(http: Connect, engine: FakeEngine, given_id: str) -> None:
    headers = [(b"x-request-id", given_id.encode())]
    assert "x-request-id" not in http(engine).get("/health", headers=headers).headers


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
NAMES = st.sampled_from(sorted({name for _, change in FIELDS for name in change} | {"prompt", "top_k"}))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(kind=st.sampled_from(Kind), body=st.dictionaries(NAMES, JSON))
def test_any_json_is_admitted_or_refused(text: TextPipeline, kind: Kind, body: dict[str, Any]) -> None:
    data = json.dumps({"model": "tiny", "messages": HI, "prompt": "hi", **body}).encode()
    outcome = admitted(Admission("tiny", text, 256, "fcfs"), kind, data)
    if isinstance(outcome, Ask):
        assert 0 < len(outcome.prompt) < 256
        assert outcome.params.max_tokens >= 1
        assert outcome.params.min_tokens <= outcome.params.max_tokens
        assert 1 <= outcome.choices <= 128
    else:
        assert outcome.status in (400, 404)
        assert len(json.dumps(outcome.body(), allow_nan=False, ensure_ascii=False).encode()) < 6000


def admitted(admission: Admission, kind: Kind, data: bytes) -> Ask | ApiError:
    try:
        return admission.admit(kind, data, Caller(), 0)
    except ApiError as error:
        return error
