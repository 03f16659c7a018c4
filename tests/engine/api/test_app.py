"""Probes, metrics, states, and the one log line of each request."""

import logging
from collections.abc import Callable

import httpx
import pytest
from fake_engine import FakeEngine, tokens

from pinrail_engine.core.types import FinishReason, TokenEvent

Connect = Callable[[FakeEngine], httpx.Client]
BODY = {"model": "tiny", "messages": [{"role": "user", "content": "my secret"}]}


@pytest.mark.parametrize(
    ("state", "healthy", "health", "ready"),
    [
        ("loading", False, 200, 503),
        ("ready", True, 200, 200),
        ("ready", False, 503, 200),
        ("draining", True, 200, 503),
        ("failed", False, 503, 503),
    ],
)
def test_probes(http: Connect, state: str, healthy: bool, health: int, ready: int) -> None:
    api = http(FakeEngine(state=state, healthy=healthy))
    assert api.get("/health").status_code == health
    answer = api.get("/ready")
    assert (answer.status_code, answer.json()) == (ready, {"state": state})


def test_metrics(http: Connect) -> None:
    answer = http(FakeEngine()).get("/metrics")
    assert answer.text == "vllm:num_requests_running 0\n"
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"


@pytest.mark.parametrize(
    ("state", "retry_after", "connection"),
    [("loading", "5", None), ("draining", "1", "close"), ("failed", None, None)],
)
def test_requests_while_not_ready(http: Connect, state: str, retry_after: str | None, connection: str | None) -> None:
    answer = http(FakeEngine(state=state)).post("/v1/chat/completions", json=BODY)
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == f"server_{state}"
    assert answer.headers.get("retry-after") == retry_after
    assert answer.headers.get("connection") == connection


def test_models_before_the_window_is_known(http: Connect) -> None:
    assert http(FakeEngine(state="loading")).get("/v1/models").json()["data"][0]["max_model_len"] is None


def test_a_bug_is_a_bare_500(http: Connect, caplog: pytest.LogCaptureFixture) -> None:
    class Buggy(FakeEngine):
        def metrics_page(self) -> bytes:
            raise KeyError("/etc/secret")

    api = http(Buggy())
    answer = api.get("/metrics")
    assert answer.status_code == 500
    assert answer.json()["error"]["message"] == "The server failed on this request."
    assert api.get("/health").status_code == 200
    assert "secret" in caplog.text


@pytest.mark.parametrize("stream", [False, True])
def test_each_request_has_one_log_line_without_its_text(
    http: Connect, caplog: pytest.LogCaptureFixture, stream: bool
) -> None:
    caplog.set_level(logging.INFO, "pinrail.api")
    engine = FakeEngine(tokens("answer"))
    api = http(engine)
    assert api.post("/v1/chat/completions", json={**BODY, "stream": stream}).status_code == 200
    api.get("/health")
    lines = [r.getMessage() for r in caplog.records if r.name == "pinrail.api"]
    assert len(lines) == 1
    assert f"id={engine.submitted[0].request_id} status=200 stream={str(stream).lower()} finish=stop" in lines[0]
    assert "completion_tokens=7" in lines[0]
    assert "secret" not in lines[0]
    assert "answer" not in lines[0]


def test_a_failed_request_is_logged_with_its_cause(http: Connect, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "pinrail.api")
    api = http(FakeEngine([TokenEvent((), FinishReason.ERROR, "the cause")]))
    assert api.post("/v1/chat/completions", json=BODY).status_code == 500
    assert "error='the cause'" in caplog.text
    assert "status=500 stream=false finish=error" in caplog.text


def test_many_at_once_each_get_their_own(http: Connect) -> None:
    from concurrent.futures import ThreadPoolExecutor

    api = http(FakeEngine(tokens("a", "b", "c")))
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda _: api.post("/v1/chat/completions", json=BODY), range(100)))
    assert {a.json()["choices"][0]["message"]["content"] for a in answers} == {"abc"}
    assert len({a.json()["id"] for a in answers}) == 100
