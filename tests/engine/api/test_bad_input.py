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
    ("n", {"n": 2}),
    ("n", {"n": True}),
    ("logprobs", {"logprobs": True}),
    ("top_logprobs", {"top_logprobs": 5}),
    ("tools", {"tools": [{"type": "function"}]}),
    ("response_format", {"response_format": {"type": "json_object"}}),
    ("presence_penalty", {"presence_penalty": 0.5}),
    ("prompt_embeds", {"prompt_embeds": "AAAA"}),
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
        f'temperature: should be less than or equal to 2, got 3; top_p: should be a valid number, got "{"x" * 199}…'
    )


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
    outcome = admitted(Admission("tiny", text, 256), kind, data)
    if isinstance(outcome, Ask):
        assert 0 < len(outcome.prompt) < 256
        assert outcome.params.max_tokens >= 1
    else:
        assert outcome.status in (400, 404)
        assert len(json.dumps(outcome.body(), allow_nan=False, ensure_ascii=False).encode()) < 6000


def admitted(admission: Admission, kind: Kind, data: bytes) -> Ask | ApiError:
    try:
        return admission.admit(kind, data, 0)
    except ApiError as error:
        return error
