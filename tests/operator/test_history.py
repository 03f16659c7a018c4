"""Records of revisions: written once, numbered anew when a service comes back, few; and what brings one back."""

from datetime import UTC, datetime
from typing import Any

import pytest
from operator_builders import IMAGE, body, live_objects, observed, pod, record, service, target

from pinrail_operator import history
from pinrail_operator.errors import OperatorError
from pinrail_operator.explain import Facts
from pinrail_operator.history_text import history_text, record_of, told
from pinrail_operator.observed import Ref
from pinrail_operator.types import InferenceService

NOW = datetime(2026, 1, 1, tzinfo=UTC)
CHANGED = service(nodeSelector={"disk": "ssd"})


def due(asked: InferenceService, *known: Any) -> Any:
    return history.due(asked, observed(history=known), target(asked), IMAGE)


def test_a_new_revision_is_recorded_with_what_its_pods_are_made_from() -> None:
    (made,) = due(CHANGED, record(target(service()), 4))
    assert made["kind"] == "ControllerRevision"
    assert made["metadata"]["name"] == f"chat-{target(CHANGED)}"
    assert (made["revision"], made["metadata"]["labels"]["pinrail.dev/revision"]) == (5, target(CHANGED))
    spec = made["data"]["spec"]
    assert (spec["nodeSelector"], spec["engine"]) == ({"disk": "ssd"}, {"image": IMAGE})
    assert "replicas" not in spec


def test_what_is_recorded_is_left_alone() -> None:
    assert due(service(), record(target(service()))) == ()
    assert due(service(replicas=7), record(target(service()))) == ()


def test_a_service_that_comes_back_gets_the_next_number_and_the_record_of_then() -> None:
    """The API server takes no other data: the same revision may have been written in other words."""
    known = (record(target(service()), 1, then="as it was"), record(target(CHANGED), 2))
    (made,) = due(service(), *known)
    assert (made["revision"], made["data"]) == (3, {"then": "as it was"})


def test_somebody_elses_record_of_that_name_is_not_taken_over() -> None:
    foreign = record(target(service()))
    foreign["metadata"]["ownerReferences"] = [{"uid": "other"}]
    assert due(service(), foreign) == ()
    assert history.left_over(service(), observed(history=(foreign,) * 9), target(service())) == ()


def test_records_beyond_the_limit_go_but_none_that_is_in_use() -> None:
    old = tuple(record(f"old{i}", i) for i in range(1, 6))
    known = (*old, record(target(service()), 6))
    seen = observed(live_objects(service()), (pod(revision="old1"),), history=known)
    gone = history.left_over(service(revisionHistoryLimit=2), seen, target(service()))
    assert gone == tuple(Ref("ControllerRevision", f"chat-old{i}") for i in (3, 2))


def facts(*known: Any) -> Facts:
    asked = body(replicas=5)
    return Facts(
        body=asked, service=InferenceService.from_body(asked), observed=observed(history=known),
        pods=({"metadata": {"labels": {"pinrail.dev/revision": target(CHANGED)}}},),
    )  # fmt: skip


def recorded(asked: InferenceService, number: int) -> dict[str, Any]:
    (made,) = history.due(asked, observed(history=()), target(asked), IMAGE)
    return {**made, "revision": number}


def test_history_says_what_each_revision_changed_and_which_pods_are_of_it() -> None:
    lines = told(facts(recorded(service(), 1), recorded(CHANGED, 2)), NOW)
    assert [(line["number"], line["pods"], line["changed"]) for line in lines] == [
        (2, 1, ["spec.nodeSelector"]),
        (1, 0, None),
    ]
    text = history_text(lines)
    assert text.splitlines()[0].split() == ["NUMBER", "REVISION", "AGE", "PODS", "PIN", "IMAGE", "CHANGED"]
    assert history_text([]) == "there is no record of a revision yet"


def test_a_restored_spec_asks_for_the_very_same_revision_and_for_the_replicas_of_now() -> None:
    known = facts(recorded(CHANGED, 1), recorded(service(), 2))
    for named in ("", target(CHANGED)):
        spec = history.restored(record_of(known, named), known.body["spec"])
        again = InferenceService.from_body({**known.body, "spec": spec})
        assert (target(again), again.replicas) == (target(CHANGED), 5)


@pytest.mark.parametrize("then", [True, False])
def test_a_restored_spec_protects_startup_as_its_pods_did_and_evictions_leave_what_they_leave_now(then: bool) -> None:
    """One field of `disruption` is of pods, the others are not."""
    asked = service(disruption={"minAvailable": 1, "protectStartup": then})
    spec = history.restored(
        recorded(asked, 1), body(disruption={"minAvailable": 2, "protectStartup": not then})["spec"]
    )
    again = InferenceService.from_body(body(**spec))
    assert (target(again), again.min_available, again.protects_startup) == (target(asked), 2, then)


KEYS = {"apiKeySecretRef": {"name": "keys"}}
CONFINED = {"networkPolicy": {"enabled": True}}


@pytest.mark.parametrize("keys", [{}, KEYS], ids=["no keys", "keys"])
@pytest.mark.parametrize("is_old", [True, False], ids=["a record that holds it", "one that does not"])
@pytest.mark.parametrize(("then", "now"), [({}, CONFINED), (CONFINED, {}), (CONFINED, CONFINED)], ids=str)
def test_a_restored_spec_asks_for_the_keys_of_then_and_the_network_policy_of_now(
    then: dict[str, Any], now: dict[str, Any], is_old: bool, keys: dict[str, Any]
) -> None:
    asked = service(security={**keys, **then})
    known = recorded(asked, 1)
    assert known["data"]["spec"].get("security", {}) == keys
    if is_old:
        known["data"]["spec"]["security"] = {**keys, **then}
    spec = history.restored(known, body(security=now or None)["spec"])
    assert spec.get("security", {}) == {**keys, **now}
    assert target(InferenceService.from_body(body(**spec))) == target(asked)


def test_what_asks_for_the_same_is_nothing_to_go_back_to() -> None:
    """As after an operator that renders pods in another way: its record holds the same spec."""
    again = {**recorded(service(), 3), "metadata": {**recorded(service(), 3)["metadata"], "name": "chat-other"}}
    assert record_of(facts(recorded(CHANGED, 1), recorded(service(), 2), again), "")["revision"] == 1


def test_a_revision_that_is_not_recorded_is_told_with_those_that_are() -> None:
    with pytest.raises(OperatorError, match=f"chat has no record of revision abc; there are {target(CHANGED)}"):
        record_of(facts(recorded(CHANGED, 1)), "abc")
    with pytest.raises(OperatorError, match="chat has had no other revision"):
        record_of(facts(recorded(CHANGED, 1)), "")
    with pytest.raises(OperatorError, match="there is none at all"):
        record_of(facts(), "abc")
