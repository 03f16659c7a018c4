"""The table in `decide`'s docstring, row by row, then what must hold for every input."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from operator_builders import load

from pinrail_contract.metrics import LoadSample
from pinrail_operator.autoscale import Decision, Reason, Report, Want, decide
from pinrail_operator.scaling_pace import NO_CHANGES, Change, Changes, Pace, Policy, PolicyType, SelectPolicy
from pinrail_operator.scaling_policy import ScalingPolicy

NOW = 1_000.0
POLICY = ScalingPolicy(min_replicas=1, max_replicas=5, down=Pace(window=60), stale_after=30)


def calm(replicas: int, seconds: int = 60) -> tuple[Want, ...]:
    """A history of equal wants every ten seconds, which ends ten seconds ago."""
    return tuple(Want(NOW - age, replicas) for age in range(seconds, 0, -10))


def ask(
    *loads: LoadSample | None,
    policy: ScalingPolicy = POLICY,
    current: int = 2,
    starting: int = 0,
    history: tuple[Want, ...] = (),
    now: float = NOW,
    changes: Changes = NO_CHANGES,
) -> Decision:
    samples = [Report(sample) for sample in loads]
    return decide(policy, samples, current=current, starting=starting, history=history, now=now, changes=changes)


def paced(*policies: Policy, select: SelectPolicy = SelectPolicy.MAX, tolerance: float = 0.0) -> ScalingPolicy:
    """Both ways alike, without windows."""
    pace = Pace(policies=policies, select=select, tolerance=tolerance)
    return ScalingPolicy(min_replicas=1, max_replicas=20, up=pace, down=pace)


def pods(value: int, seconds: int = 60) -> Policy:
    return Policy(PolicyType.PODS, value, seconds)


def percent(value: int, seconds: int = 60) -> Policy:
    return Policy(PolicyType.PERCENT, value, seconds)


SLOW_UP = ScalingPolicy(min_replicas=1, max_replicas=5, up=Pace(window=60), down=Pace(window=60))
FULL, HALF, IDLE = load(1.0), load(0.5), load(0.0)

ROWS = [
    pytest.param({"loads": [HALF], "current": 1, "policy": ScalingPolicy(min_replicas=2, max_replicas=5)},
                 2, Reason.BELOW_MINIMUM, id="below min"),
    pytest.param({"loads": [], "current": 9}, 5, Reason.ABOVE_MAXIMUM, id="above max, even without metrics"),
    pytest.param({"loads": []}, 2, Reason.NO_METRICS, id="no replica is ready"),
    pytest.param({"loads": [None, None], "history": calm(1)}, 2, Reason.NO_METRICS, id="none reports"),
    pytest.param({"loads": [FULL] * 5, "current": 5}, 5, Reason.AT_MAXIMUM, id="at max"),
    pytest.param({"loads": [FULL, FULL], "policy": SLOW_UP}, 2, Reason.STABILIZING_UP, id="up, window not full"),
    pytest.param({"loads": [FULL, FULL], "policy": SLOW_UP, "history": calm(2)}, 2, Reason.STABILIZING_UP,
                 id="up, lowest in the window is now's number"),
    pytest.param({"loads": [FULL, FULL], "policy": SLOW_UP, "history": calm(3)}, 3, Reason.CACHE_DEMAND,
                 id="up, after the window"),
    pytest.param({"loads": [load(1.0, waiting_blocks=900.0)] * 2, "policy": paced(pods(2))}, 4, Reason.CACHE_DEMAND,
                 id="up, as far as allowed"),
    pytest.param({"loads": [load(1.0, running=500)] * 2, "policy": paced(pods(2))}, 4, Reason.SLOT_DEMAND,
                 id="up, as far as allowed, for slots"),
    pytest.param({"loads": [FULL, FULL], "policy": paced(pods(2)), "changes": Changes(2, (Change(NOW - 59, 2),))}, 2,
                 Reason.SCALE_UP_LIMIT, id="up, all that is allowed was added"),
    pytest.param({"loads": [FULL, FULL], "policy": paced(pods(2)), "changes": Changes(2, (Change(NOW - 60, 2),))}, 3,
                 Reason.CACHE_DEMAND, id="up, and that was long ago"),
    pytest.param({"loads": [FULL, FULL], "policy": paced(pods(1)), "changes": Changes(1)}, 2, Reason.SCALE_UP_LIMIT,
                 id="up, somebody has just added one"),
    pytest.param({"loads": [FULL, FULL], "policy": paced(select=SelectPolicy.DISABLED)}, 2, Reason.SCALE_UP_LIMIT,
                 id="up is disabled"),
    pytest.param({"loads": [IDLE, IDLE], "policy": paced(select=SelectPolicy.DISABLED)}, 2, Reason.SCALE_DOWN_LIMIT,
                 id="down is disabled"),
    pytest.param({"loads": [IDLE] * 9, "current": 9, "policy": paced(percent(50))}, 4, Reason.LOW_DEMAND,
                 id="down, as far as allowed"),
    pytest.param({"loads": [IDLE] * 9, "current": 9, "policy": paced(percent(50)),
                  "changes": Changes(9, (Change(NOW - 9, -9),))}, 9, Reason.SCALE_DOWN_LIMIT,
                 id="down, all that is allowed was removed"),
    pytest.param({"loads": [load(0.9)] * 2, "policy": paced(tolerance=0.1)}, 2, Reason.STEADY, id="up, tolerated"),
    pytest.param({"loads": [load(0.94)] * 2, "policy": paced(tolerance=0.1)}, 3, Reason.CACHE_DEMAND,
                 id="up, past what is tolerated: by the target itself"),
    pytest.param({"loads": [load(0.34)] * 2, "policy": paced(tolerance=0.1)}, 2, Reason.STEADY, id="down, tolerated"),
    pytest.param({"loads": [load(0.31)] * 2, "policy": paced(tolerance=0.1)}, 1, Reason.LOW_DEMAND,
                 id="down, past what is tolerated"),
    pytest.param({"loads": [FULL, FULL]}, 3, Reason.CACHE_DEMAND, id="blocks bind"),
    pytest.param({"loads": [FULL, load(1.0, waiting_blocks=200.0)]}, 5, Reason.CACHE_DEMAND, id="queued blocks count"),
    pytest.param({"loads": [FULL, load(1.0, waiting_blocks=900.0)]}, 5, Reason.CACHE_DEMAND, id="up to max"),
    pytest.param({"loads": [load(0.1, running=10), load(0.1, running=10)]}, 3, Reason.SLOT_DEMAND, id="slots bind"),
    pytest.param({"loads": [load(0.1, running=10, max_num_seqs=0)] * 2}, 2, Reason.STABILIZING_DOWN,
                 id="unknown slots bind nothing"),
    pytest.param({"loads": [load(0.1, running=10), load(0.1, running=10, max_num_seqs=0)]}, 2,
                 Reason.STABILIZING_DOWN, id="slots that one does not tell bind nothing"),
    pytest.param({"loads": [load(0.9, running=9)] * 2}, 3, Reason.CACHE_DEMAND, id="both bind alike: blocks"),
    pytest.param({"loads": [load(1.0, waiting_blocks=100.0), None]}, 3, Reason.CACHE_DEMAND,
                 id="up on what is known"),
    pytest.param({"loads": [IDLE, None], "history": calm(1)}, 2, Reason.METRICS_INCOMPLETE, id="one is silent"),
    pytest.param({"loads": [IDLE, load(math.nan)], "history": calm(1)}, 2, Reason.METRICS_INCOMPLETE,
                 id="NaN is silence"),
    pytest.param({"loads": [IDLE, load(0.1, waiting=-1)], "history": calm(1)}, 2, Reason.METRICS_INCOMPLETE,
                 id="negative is silence"),
    pytest.param({"loads": [IDLE], "starting": 1, "history": calm(1)}, 2, Reason.REPLICAS_STARTING,
                 id="one is starting"),
    pytest.param({"loads": [load(1.0, waiting_blocks=60.0)], "starting": 1}, 2, Reason.REPLICAS_STARTING,
                 id="a starting one is supply"),
    pytest.param({"loads": [IDLE], "current": 1, "history": calm(1)}, 1, Reason.STEADY, id="at min, idle"),
    pytest.param({"loads": [load(0.8, blocks=1)] * 2}, 2, Reason.STEADY, id="a cache of one block counts"),
    pytest.param({"loads": [load(0.8), load(0.8)]}, 2, Reason.STEADY, id="the load fits"),
    pytest.param({"loads": [load(0.85), load(0.85)]}, 2, Reason.STEADY, id="exactly at the target fits"),
    pytest.param({"loads": [load(0.36), load(0.35)], "history": calm(1)}, 2, Reason.STEADY, id="one would be too full"),
    pytest.param({"loads": [IDLE, load(0.0, waiting=5)], "history": calm(1)}, 2, Reason.QUEUED_REQUESTS, id="a queue"),
    pytest.param({"loads": [IDLE, IDLE]}, 2, Reason.STABILIZING_DOWN, id="down, nothing seen before"),
    pytest.param({"loads": [IDLE, IDLE], "history": calm(1, 50)}, 2, Reason.STABILIZING_DOWN,
                 id="down, window not full"),
    pytest.param({"loads": [IDLE, IDLE], "history": (Want(NOW - 60, 1), Want(NOW - 10, 1))}, 2, Reason.STABILIZING_DOWN,
                 id="down, a gap in what was seen"),
    pytest.param({"loads": [IDLE, IDLE], "history": (*calm(1), Want(NOW - 5, 2))}, 2, Reason.STABILIZING_DOWN,
                 id="down, a peak in the window"),
    pytest.param({"loads": [IDLE, IDLE], "history": (Want(NOW - 90, 1), Want(NOW - 60, 4), *calm(1, 50))}, 1,
                 Reason.LOW_DEMAND, id="down, the peak has left the window"),
    pytest.param({"loads": [IDLE, IDLE], "history": (Want(NOW - 60, 1), Want(NOW - 60, 1), Want(NOW - 30, 1))}, 1,
                 Reason.LOW_DEMAND, id="down, two looks at one moment and the longest gap that is none"),
    pytest.param({"loads": [IDLE] * 4, "current": 4, "history": calm(2)}, 2, Reason.LOW_DEMAND,
                 id="down to the highest"),
    pytest.param({"loads": [load(0.35), load(0.35)], "history": calm(1)}, 1, Reason.LOW_DEMAND,
                 id="exactly fits fewer"),
]  # fmt: skip


@pytest.mark.parametrize(("case", "replicas", "reason"), ROWS)
def test_decide(case: dict, replicas: int, reason: Reason) -> None:
    decision = ask(*case.pop("loads"), **case)
    assert (decision.replicas, decision.reason) == (replicas, reason)


def test_every_reason_has_a_row() -> None:
    assert {row.values[2] for row in ROWS} == set(Reason)


def test_a_stale_sample_is_a_missing_one() -> None:
    samples = [Report(IDLE, age=30.0), Report(IDLE, age=30.1)]
    decision = decide(POLICY, samples, current=2, starting=0, history=calm(1), now=NOW)
    assert decision.reason is Reason.METRICS_INCOMPLETE
    assert decision.inputs.reporting == 1


def test_a_short_silence_does_not_start_the_window_again() -> None:
    silent = ask(IDLE, None, history=calm(1))
    later = ask(IDLE, IDLE, history=silent.history, now=NOW + 10)
    assert later.replicas == 1


def test_the_message_carries_the_figures() -> None:
    decision = ask(load(1.0, running=9, waiting=3, waiting_blocks=20.0), FULL)
    assert decision.message == "220 of 200 KV blocks and 12 of 20 request slots need 3 replicas"


def test_inputs_are_totals() -> None:
    inputs = ask(load(0.5, running=2), load(0.25, waiting=3, waiting_blocks=4.0), starting=1, current=3).inputs
    assert (inputs.demand_blocks, inputs.supply_blocks) == (79.0, 300.0)
    assert (inputs.requests, inputs.slots, inputs.deepest_queue) == (5, 30, 3)
    assert (inputs.ready, inputs.reporting, inputs.starting) == (2, 2, 1)


def test_a_rise_is_carried_by_what_it_asks_for() -> None:
    """After scaling up, the same load neither rises again nor falls."""
    first = ask(load(1.0, waiting_blocks=200.0), FULL)
    each = load(400 / first.replicas / 100)
    second = ask(*[each] * first.replicas, current=first.replicas, history=calm(1))
    assert second.reason is Reason.STEADY


def test_history_is_kept_for_one_window() -> None:
    history: tuple[Want, ...] = ()
    for step in range(20):
        history = ask(HALF, HALF, current=2, history=history, now=NOW + 10 * step).history
    assert [w.at - NOW for w in history] == [130, 140, 150, 160, 170, 180, 190]


def test_what_limits_it_is_said() -> None:
    held = ask(FULL, FULL, policy=paced(pods(1), percent(50)), changes=Changes(2, (Change(NOW - 1, 1),)))
    assert held.message == (
        "200 of 200 KV blocks and 0 of 20 request slots need 3 replicas; "
        "scaleUp's policies allow the most of 1 in 60 s, 50% in 60 s"
    )


@pytest.mark.parametrize(
    ("policies", "select", "most", "fewest"),
    [
        ((), SelectPolicy.MAX, None, 0),
        ((pods(4),), SelectPolicy.MAX, 14, 6),
        ((percent(15),), SelectPolicy.MAX, 12, 8),  # rounded towards more change, both ways
        ((pods(4), percent(100)), SelectPolicy.MAX, 20, 0),
        ((pods(4), percent(100)), SelectPolicy.MIN, 14, 6),
        ((pods(4),), SelectPolicy.DISABLED, 10, 10),
        ((percent(1000),), SelectPolicy.MAX, 110, 0),
    ],
)
def test_a_pace_counts_as_the_hpa_does(
    policies: tuple[Policy, ...], select: SelectPolicy, most: int | None, fewest: int
) -> None:
    pace = Pace(policies=policies, select=select)
    assert (pace.most(10, Changes(10), NOW), pace.fewest(10, Changes(10), NOW)) == (most, fewest)


def test_of_what_was_changed_each_policy_counts_its_own_period() -> None:
    changes = Changes(10, (Change(NOW - 50, 3), Change(NOW - 20, -1), Change(NOW - 5, 2)))
    pace = Pace(policies=(pods(4, 10), pods(6, 60)), select=SelectPolicy.MIN)
    assert pace.most(10, changes, NOW) == min(10 - 2 + 4, 10 - 5 + 6)
    assert pace.fewest(10, changes, NOW) == max(10 - 4, 10 + 1 - 6)


def test_what_is_longer_ago_than_any_period_is_forgotten() -> None:
    changes = Changes().seen(1, 0.0).seen(3, 10.0).seen(3, 20.0).seen(2, 1809.0)
    assert changes == Changes(2, (Change(10.0, 2), Change(1809.0, -1)))
    assert changes.seen(2, 1810.0) == Changes(2, (Change(1809.0, -1),))


numbers = st.one_of(
    st.integers(-5, 10**6), st.floats(), st.sampled_from([math.nan, math.inf, -math.inf, -1.0, 10**400])
)
samples = st.builds(
    LoadSample, running=numbers, waiting=numbers, kv_usage=numbers, kv_blocks=numbers, waiting_blocks=numbers,
    max_num_seqs=numbers,
)  # fmt: skip
sane = st.builds(
    LoadSample, running=st.integers(0, 500), waiting=st.integers(0, 500), kv_usage=st.floats(0, 1),
    kv_blocks=st.integers(1, 10**6), waiting_blocks=st.floats(0, 10**6), max_num_seqs=st.integers(0, 500),
)  # fmt: skip
reports = st.lists(st.builds(Report, st.none() | samples | sane, st.floats(0, 100)), max_size=6)
histories = st.lists(st.builds(Want, st.floats(0, 2 * NOW), st.integers(0, 20)), max_size=9).map(tuple)
paces = st.builds(
    Pace,
    window=st.sampled_from([0, 60]),
    policies=st.lists(st.builds(Policy, st.sampled_from(PolicyType), st.integers(1, 200), st.integers(1, 120)),
                      max_size=2).map(tuple),
    select=st.sampled_from(SelectPolicy),
    tolerance=st.sampled_from([0.0, 0.1]),
)  # fmt: skip


@st.composite
def policies(draw: st.DrawFn) -> ScalingPolicy:
    least, more = draw(st.integers(1, 6)), draw(st.integers(0, 6))
    return ScalingPolicy(min_replicas=least, max_replicas=least + more, up=draw(paces), down=draw(paces))


@given(policies(), reports, st.integers(0, 20), st.integers(0, 20), histories)
def test_any_input_gives_a_number_within_bounds(policy, given_reports, current, starting, history) -> None:
    decision = decide(policy, given_reports, current=current, starting=starting, history=history, now=NOW)
    assert policy.min_replicas <= decision.replicas <= policy.max_replicas
    assert decision.message


@given(policies(), reports, st.integers(1, 12), histories)
def test_silence_never_removes_a_replica_within_bounds(policy, given_reports, current, history) -> None:
    current = policy.clamp(current)
    silent = [*given_reports, Report(None)]
    decision = decide(policy, silent, current=current, starting=0, history=history, now=NOW)
    assert decision.replicas >= current


@given(policies(), st.lists(sane, min_size=1, max_size=6), st.floats(0, 10**5), histories)
def test_more_demand_never_means_fewer_replicas(policy, loads, extra, history) -> None:
    current = policy.clamp(len(loads))

    def replicas(added: float) -> int:
        first, *rest = loads
        heavier = LoadSample(
            running=first.running, waiting=first.waiting, kv_usage=first.kv_usage, kv_blocks=first.kv_blocks,
            waiting_blocks=first.waiting_blocks + added, max_num_seqs=first.max_num_seqs,
        )  # fmt: skip
        given_reports = [Report(sample) for sample in (heavier, *rest)]
        return decide(policy, given_reports, current=current, starting=0, history=history, now=NOW).replicas

    assert replicas(extra) >= replicas(0.0)


@given(st.lists(sane, min_size=1, max_size=5), st.integers(1, 5))
def test_a_replica_is_removed_only_after_a_whole_quiet_window(loads, current) -> None:
    """From an empty history, ten seconds apart: nothing falls before down_window has passed."""
    history: tuple[Want, ...] = ()
    for step in range(6):
        decision = decide(
            POLICY, [Report(s) for s in loads], current=current, starting=0, history=history, now=NOW + 10 * step
        )
        assert decision.replicas >= current
        history = decision.history


@given(policies(), reports, histories)
def test_history_stays_small(policy, given_reports, history) -> None:
    decision = decide(policy, given_reports, current=2, starting=0, history=history, now=NOW)
    assert len(decision.history) <= len(history) + 1


@given(
    st.integers(1, 5),
    st.integers(1, 60),
    st.lists(st.sampled_from([FULL, IDLE, load(1.0, waiting_blocks=900.0)]), min_size=9, max_size=9),
)
def test_within_any_period_no_more_is_changed_than_the_policy_allows(value, period, loads) -> None:
    """Ten seconds apart."""
    policy, current, changes, moves = paced(pods(value, period)), 10, Changes(), []
    for step, each in enumerate(loads):
        decision = decide(policy, [Report(each)] * current, current=current, starting=0, history=(),
                          now=NOW + 10 * step, changes=changes)  # fmt: skip
        moves.append(decision.replicas - current)
        current, changes = decision.replicas, decision.changes
    ticks = -(-period // 10)
    for start in range(len(moves)):
        part = moves[start : start + ticks]
        assert sum(m for m in part if m > 0) <= value
        assert sum(m for m in part if m < 0) >= -value
