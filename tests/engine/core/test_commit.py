"""What a token means, and that a request ends once."""

import pytest

from pinrail_engine.core.commit import commit, fail, finish
from pinrail_engine.core.kv_blocks import KvBlocks
from pinrail_engine.core.request import Request
from pinrail_engine.core.scheduler import admit, schedule
from pinrail_engine.core.state import Limits, State
from pinrail_engine.core.types import FinishReason, SamplingParams, TokenEvent


@pytest.fixture
def state() -> State:
    limits = Limits(vocab_size=100, max_model_len=8, max_num_seqs=4, max_num_batched_tokens=16)
    return State(limits, KvBlocks(16, 4))


def arrive(state: State, name: str, max_tokens: int = 4, stop: frozenset[int] = frozenset()) -> Request:
    params = SamplingParams(max_tokens=max_tokens, stop_token_ids=stop)
    request = Request.new(name, [1, 2, 3], params, state.limits.max_model_len, 0.0)
    admit(state, request)
    return request


@pytest.mark.parametrize(
    ("token", "max_tokens", "reason"),
    [
        pytest.param(9, 1, FinishReason.STOP, id="stop token, also at the limit"),
        pytest.param(5, 1, FinishReason.LENGTH, id="limit reached"),
        pytest.param(5, 2, None, id="neither"),
    ],
)
def test_reason_to_end(state: State, token: int, max_tokens: int, reason: FinishReason | None) -> None:
    arrive(state, "a", max_tokens, frozenset({9}))
    (outcome,) = commit(state, schedule(state, 1.0), [token], 2.0)
    assert outcome.event == TokenEvent((token,), reason)
    assert (outcome.finished is not None) == (reason is not None) == ("a" not in state.live)
    state.check()


def test_a_full_window_ends_a_request(state: State) -> None:
    request = arrive(state, "a", max_tokens=100)
    while state.live:
        commit(state, schedule(state, 1.0), [5], 2.0)
    assert len(request.tokens) == state.limits.max_model_len


def test_a_result_that_comes_twice_counts_once(state: State) -> None:
    request = arrive(state, "a")
    plan = schedule(state, 1.0)
    assert len(commit(state, plan, [5], 2.0)) == 1
    assert commit(state, plan, [5], 2.0) == []
    assert request.tokens == [1, 2, 3, 5]


def test_a_result_for_a_request_that_has_gone_is_dropped(state: State) -> None:
    arrive(state, "a")
    plan = schedule(state, 1.0)
    finish(state, "a", FinishReason.ABORT, 1.5)
    assert commit(state, plan, [5], 2.0) == []


def test_times_of_tokens(state: State) -> None:
    request = arrive(state, "a")
    (first,) = commit(state, schedule(state, 1.0), [5], 2.0)
    (second,) = commit(state, schedule(state, 2.0), [5], 2.5)
    assert (first.since_last, second.since_last) == (None, 0.5)
    assert (request.first_token_at, request.last_token_at) == (2.0, 2.5)


def test_a_request_ends_once_whether_it_waits_or_runs(state: State) -> None:
    arrive(state, "runs")
    schedule(state, 1.0)
    arrive(state, "waits")
    for name in ("runs", "waits"):
        ended = finish(state, name, FinishReason.ABORT, 3.0)
        assert ended is not None
        assert (ended.request.id, ended.reason, ended.at) == (name, FinishReason.ABORT, 3.0)
        assert finish(state, name, FinishReason.STOP, 4.0) is None
    assert state.kv.free == state.kv.total


def test_a_failed_step_ends_its_own_requests_alone(state: State) -> None:
    arrive(state, "a")
    plan = schedule(state, 1.0)
    arrive(state, "b")
    (outcome,) = fail(state, plan, "broken", 2.0)
    assert outcome.event == TokenEvent((), FinishReason.ERROR, "broken")
    assert list(state.live) == ["b"]
    state.check()
