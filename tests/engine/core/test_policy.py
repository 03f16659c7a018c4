"""Each policy's virtual time is the ageing formula beside it in the table, and nobody waits for ever."""

from collections.abc import Callable
from math import log2

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pinrail_contract.launch import Policy
from pinrail_engine.core.policy import VIRTUAL_TIME
from pinrail_engine.core.request import Request
from pinrail_engine.core.types import SamplingParams, Terms

Formula = Callable[[Request, float], float]

AGEING: dict[Policy, Formula] = {
    Policy.FCFS: lambda r, now: -(now - r.arrival),
    Policy.PRIORITY: lambda r, now: r.terms.priority - (now - r.arrival) / 10,
    Policy.SJF: lambda r, now: log2(r.prompt_len) - (now - r.arrival) / 2,  # of prompt tokens / 2^(waited / 2 s)
    Policy.EDF: lambda r, now: r.arrival + (60 if r.terms.deadline is None else r.terms.deadline) - now,
}
"""As the table's last column has them: of two, the lower is served first."""


def request(arrival: float, prompt: int = 1, priority: int = 0, deadline: float | None = None) -> Request:
    terms = Terms(priority=priority, deadline=deadline)
    return Request.new("r", [0] * prompt, SamplingParams(max_tokens=1), 10_000, arrival, terms)


@pytest.mark.parametrize(
    ("policy", "its", "seconds"),
    [
        pytest.param(Policy.FCFS, request(5.0, 64, 3, 1.0), 5.0, id="fcfs: arrival"),
        pytest.param(Policy.PRIORITY, request(5.0, priority=3), 35.0, id="priority: 10 s a level"),
        pytest.param(Policy.PRIORITY, request(5.0, priority=-1), -5.0, id="priority: below 0 goes ahead"),
        pytest.param(Policy.SJF, request(5.0, 1), 5.0, id="sjf: one token"),
        pytest.param(Policy.SJF, request(5.0, 64), 17.0, id="sjf: 2 s a doubling"),
        pytest.param(Policy.EDF, request(5.0, deadline=2.5), 7.5, id="edf: arrival and deadline"),
        pytest.param(Policy.EDF, request(5.0), 65.0, id="edf: 60 s where none is given"),
        pytest.param(Policy.EDF, request(5.0, deadline=0.0), 5.0, id="edf: none left"),
    ],
)
def test_virtual_time(policy: Policy, its: Request, seconds: float) -> None:
    assert VIRTUAL_TIME[policy](its) == seconds


def test_every_policy_has_one() -> None:
    assert set(VIRTUAL_TIME) == set(AGEING) == set(Policy)


REQUESTS = st.builds(
    request,
    arrival=st.floats(0, 1_000),
    prompt=st.integers(1, 9_000),
    priority=st.integers(-100, 100),
    deadline=st.none() | st.floats(0, 600),
)


@pytest.mark.parametrize("policy", Policy)
@settings(max_examples=100, deadline=None)
@given(one=REQUESTS, other=REQUESTS, waits=st.lists(st.floats(0, 10_000), min_size=10, max_size=10))
def test_the_order_of_two_is_the_formulas_and_never_changes_while_both_wait(
    policy: Policy, one: Request, other: Request, waits: list[float]
) -> None:
    virtual = VIRTUAL_TIME[policy](one) - VIRTUAL_TIME[policy](other)
    later = max(one.arrival, other.arrival)
    for waited in waits:
        aged = AGEING[policy](one, later + waited) - AGEING[policy](other, later + waited)
        if abs(aged) > 1e-6:  # a difference that is more than rounding
            assert (aged < 0) == (virtual < 0)


BOUND: dict[Policy, float] = {
    Policy.FCFS: 0.0,
    Policy.PRIORITY: 10 * 200,  # priorities differ by 200
    Policy.SJF: 2 * log2(9_000),
    Policy.EDF: 600.0,
}
"""Seconds by which one of REQUESTS may have come later and still go first."""


@pytest.mark.parametrize("policy", Policy)
@settings(max_examples=100, deadline=None)
@given(one=REQUESTS, other=REQUESTS)
def test_nobody_waits_for_ever(policy: Policy, one: Request, other: Request) -> None:
    """Only those that come within a bounded time after it can go before it."""
    if other.arrival > one.arrival + BOUND[policy] + 1e-6:
        assert VIRTUAL_TIME[policy](one) < VIRTUAL_TIME[policy](other)
