"""Each field of a body, and the headers that count, as the engine hears of them."""

import time
from collections.abc import Callable
from hashlib import sha256
from typing import Any

import httpx
import pytest
from fake_engine import FakeEngine, Submitted, tokens

Http = Callable[[FakeEngine], httpx.Client]
HI = [{"role": "user", "content": "hi"}]
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def heard(http: Http, *, policy: str = "fcfs", headers: Any = None, **change: Any) -> Submitted:
    """What both kinds of body make the engine hear, once it is the same."""
    engine = FakeEngine(tokens("x"), policy=policy)
    for path, body in (("/v1/completions", {"prompt": "hi"}), ("/v1/chat/completions", {"messages": HI})):
        given = {"model": "tiny", "seed": 5, "max_tokens": 16, **body, **change}
        answer = http(engine).post(path, json=given, headers=headers)
        assert answer.status_code == 200, answer.text
        assert "x-pinrail-ignored-fields" not in answer.headers
    first, second = engine.submitted
    assert first.params == second.params
    return first


@pytest.mark.parametrize(
    ("field", "given", "wanted"),
    [
        ("min_p", 0.1, 0.1),
        ("min_p", 1, 1.0),
        ("presence_penalty", -2, -2.0),
        ("frequency_penalty", 1.5, 1.5),
        ("repetition_penalty", 0.01, 0.01),
        ("min_tokens", 16, 16),
        ("allowed_token_ids", [3, 1, 3], (1, 3)),
        ("logit_bias", {"257": 1, "0": -0.5}, ((0, -0.5), (257, 1.0))),
        ("logit_bias", {"1": 1000, "2": -(10**400)}, ((1, 100.0), (2, -100.0))),
        ("logit_bias", {}, ()),
        ("bad_words", ["no"], ((110, 111),)),
        ("bad_words", [], ()),
    ],
)
def test_sampling(http: Http, field: str, given: Any, wanted: Any) -> None:
    assert getattr(heard(http, **{field: given}).params, field) == wanted


@pytest.mark.parametrize(
    ("given", "policy", "wanted"),
    [
        ({}, "fcfs", {"priority": 0, "deadline": None, "cache_salt": "", "client": "", "traceparent": ""}),
        ({"priority": -(2**63)}, "priority", {"priority": -(2**63)}),
        ({"priority": 0}, "edf", {"priority": 0}),
        ({"deadline": 1}, "fcfs", {"deadline": 1.0}),
        ({"deadline": 86400}, "priority", {"deadline": 86400.0}),
        ({"cache_salt": "é" * 128}, "sjf", {"cache_salt": "é" * 128}),
        ({"user": "me"}, "fcfs", {"client": sha256(b"me").hexdigest()[:16]}),
        ({"user": ""}, "fcfs", {"client": ""}),
    ],
)
def test_terms(http: Http, given: dict[str, Any], policy: str, wanted: dict[str, Any]) -> None:
    terms = heard(http, policy=policy, **given).terms
    assert {name: getattr(terms, name) for name in wanted} == wanted


def test_it_was_received_when_it_came(http: Http) -> None:
    before = time.monotonic()
    received = heard(http).terms.received
    assert received is not None
    assert before < received < time.monotonic()


@pytest.mark.parametrize(
    ("authorization", "client"),
    [
        ("Bearer secret", sha256(b"secret").hexdigest()[:16]),
        ("bearer  secret", sha256(b"secret").hexdigest()[:16]),
        ("Basic c2VjcmV0", sha256(b"me").hexdigest()[:16]),
        ("Bearer", sha256(b"me").hexdigest()[:16]),
    ],
)
def test_a_bearer_token_names_the_client_before_user_does(http: Http, authorization: str, client: str) -> None:
    assert heard(http, headers={"Authorization": authorization}, user="me").terms.client == client


@pytest.mark.parametrize(
    ("given", "valid"),
    [
        (TRACE, True),
        (TRACE.replace("00-", "01-", 1), True),
        ("ff" + TRACE[2:], False),
        (TRACE.upper(), False),
        (TRACE + "-x", False),
        (TRACE[:-1], False),
        ("00-" + "0" * 32 + "-b7ad6b7169203331-01", False),
        ("00-0af7651916cd43dd8448eb211c80319c-" + "0" * 16 + "-01", False),
        ("", False),
    ],
)
def test_a_valid_trace_is_passed_on(http: Http, given: str, valid: bool) -> None:
    assert heard(http, headers={"traceparent": given}).terms.traceparent == (given if valid else "")
