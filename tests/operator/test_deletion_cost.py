"""Which pods a scale-in takes: rows of costs, then a ReplicaSet controller made of its sorting rule."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from operator_builders import IMAGE, live_objects, load, observed, pod, scaled, service

from pinrail_contract.metrics import LoadSample
from pinrail_operator.deletion_cost import UNKNOWN, changes, cost
from pinrail_operator.observed import Observed, Pod
from pinrail_operator.plan import plan_for

NAMES = ("chat-a", "chat-b", "chat-c", "chat-d")


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        pytest.param(load(0.0), 1, id="idle"),
        pytest.param(load(0.5), 51, id="blocks held"),
        pytest.param(load(0.5, waiting_blocks=20.0), 71, id="blocks that the queue needs"),
        pytest.param(load(0.0, running=3, waiting=4), 8, id="requests, where they are more than blocks"),
        pytest.param(None, UNKNOWN, id="silent"),
        pytest.param(load(float("nan")), UNKNOWN, id="no number"),
        pytest.param(load(-1.0), UNKNOWN, id="negative"),
        pytest.param(load(0.0, running=2**40), UNKNOWN - 1, id="more than a cost can be"),
    ],
)
def test_cost(said: LoadSample | None, expected: int) -> None:
    assert cost(said) == expected


def victims(pods: tuple[Pod, ...], wanted: int) -> set[str]:
    """What a ReplicaSet controller removes: pods that are not ready first, then by cost."""
    by_rank = sorted(pods, key=lambda p: (p.is_ready, p.deletion_cost))
    return {p.name for p in by_rank[: max(0, len(pods) - wanted)]}


def written(pods: tuple[Pod, ...], said: tuple[tuple[str, int], ...]) -> tuple[Pod, ...]:
    costs = dict(said)
    return tuple(pod(p.name, is_ready=p.is_ready, deletion_cost=costs.get(p.name, p.deletion_cost)) for p in pods)


def test_the_emptiest_goes() -> None:
    pods = (pod("chat-a"), pod("chat-b"), pod("chat-c"))
    loads = {"chat-a": load(0.9), "chat-b": load(0.1), "chat-c": load(0.5)}
    said = changes(observed(pods=pods), 2, loads)
    assert said == (("chat-a", 91), ("chat-b", 11), ("chat-c", 51))
    assert victims(written(pods, said), 2) == {"chat-b"}


def test_a_silent_pod_is_never_the_cheapest() -> None:
    pods = (pod("chat-a"), pod("chat-b"))
    said = changes(observed(pods=pods), 1, {"chat-b": load(1.0)})
    assert victims(written(pods, said), 1) == {"chat-b"}


def test_a_pod_that_starts_goes_before_one_that_serves() -> None:
    pods = (pod("chat-a"), pod("chat-b"), pod("chat-c", is_ready=False))
    said = changes(observed(pods=pods), 2, {"chat-a": load(0.0), "chat-b": load(0.5)})
    assert victims(written(pods, said), 2) == {"chat-c"}
    assert "chat-c" not in dict(said)


def test_costs_of_an_earlier_scale_in_are_written_again_only_where_they_mislead() -> None:
    loads = {"chat-a": load(0.9), "chat-b": load(0.1)}
    right = (pod("chat-a", deletion_cost=60), pod("chat-b", deletion_cost=50))
    wrong = (pod("chat-a", deletion_cost=50), pod("chat-b", deletion_cost=60))
    assert changes(observed(pods=right), 1, loads) == ()
    assert changes(observed(pods=wrong), 1, loads) == (("chat-a", 91), ("chat-b", 11))


PODS = st.lists(
    st.tuples(st.booleans(), st.integers(-5, 200), st.none() | st.floats(0, 1)), min_size=0, max_size=4
)  # ready, the cost it carries, its load


def situation(rows: list[tuple[bool, int, float | None]]) -> tuple[Observed, dict[str, LoadSample]]:
    pods = tuple(
        pod(name, is_ready=ready, deletion_cost=carried) for name, (ready, carried, _) in zip(NAMES, rows, strict=False)
    )
    loads = {n: load(usage) for n, (_, _, usage) in zip(NAMES, rows, strict=False) if usage is not None}
    return observed(live_objects(service(), replicas=len(pods)), pods), loads


@given(rows=PODS, wanted=st.integers(0, 5))
def test_after_the_writes_no_ready_pod_goes_while_a_cheaper_one_stays(
    rows: list[tuple[bool, int, float | None]], wanted: int
) -> None:
    seen, loads = situation(rows)
    after = written(seen.pods, changes(seen, wanted, loads))
    going = victims(after, wanted)
    costs = {p.name: cost(loads.get(p.name)) for p in seen.ready_pods}
    goes = [c for name, c in costs.items() if name in going]
    stays = [c for name, c in costs.items() if name not in going]
    assert not goes or not stays or max(goes) <= min(stays)


@given(rows=PODS, wanted=st.integers(0, 5))
def test_what_was_written_is_not_written_again(rows: list[tuple[bool, int, float | None]], wanted: int) -> None:
    seen, loads = situation(rows)
    after = written(seen.pods, changes(seen, wanted, loads))
    assert changes(observed(pods=after), wanted, loads) == ()


@given(rows=PODS)
def test_nothing_is_written_while_as_many_run_as_are_wanted(rows: list[tuple[bool, int, float | None]]) -> None:
    seen, loads = situation(rows)
    asked = scaled(maximum=9)
    plan = plan_for(asked, observed(live_objects(asked, len(seen.pods)), seen.pods), None, IMAGE, None, loads=loads)
    assert plan.costs == ()


def test_costs_come_with_the_scale_in_and_while_it_is_under_way() -> None:
    pods = tuple(pod(name) for name in NAMES[:3])
    loads = {"chat-a": load(0.9), "chat-b": load(0.1), "chat-c": load(0.5)}
    due = plan_for(service(), observed(live_objects(service(), 3), pods), None, IMAGE, None, loads=loads)
    assert due.scale is not None
    assert due.costs[1] == ("chat-b", 11)
    assert str(due).startswith("set deletion cost of chat-a to 91")
    under_way = plan_for(service(), observed(live_objects(service(), 2), pods), None, IMAGE, None, loads=loads)
    assert (under_way.scale, under_way.costs) == (None, due.costs)


def test_a_surge_is_no_scale_in() -> None:
    pods = tuple(pod(name) for name in NAMES[:3])
    loads = {"chat-a": load(0.9), "chat-b": load(0.1)}
    rolling = observed(live_objects(service(), 2, total=3, updated=1), pods)
    assert plan_for(service(), rolling, None, IMAGE, None, loads=loads).costs == ()
