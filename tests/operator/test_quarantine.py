"""The table of `judge`, then what the plan makes of a verdict."""

from dataclasses import replace
from typing import Any

import pytest
from operator_builders import DIGEST, IMAGE, UID, live_objects, observed, pod, record, service, target

from pinrail_contract.metrics import FILES_DIFFER
from pinrail_operator import names
from pinrail_operator.checks import Blocked, Blocker
from pinrail_operator.cluster import Cluster
from pinrail_operator.errors import Missing, Refused
from pinrail_operator.observed import Observed, Pod, Ref
from pinrail_operator.plan import Plan, plan_for
from pinrail_operator.quarantine import BARRED, CLEAR, MOST, SERVES, Verdict, carried_out, judge
from pinrail_operator.rollout import Action, Course, Mark

OTHER = "sha256:" + "9" * 64
A, B, C = pod("chat-a"), pod("chat-b"), pod("chat-c")
WARNS = service(verification={"mode": "Warn"})


def seen(*pods: Any, apart: int = 0) -> Observed:
    gone = tuple(pod(f"gone-{i}", is_quarantined=True) for i in range(apart))
    return observed(live_objects(service()), pods or (A, B), quarantined=gone)


def verdict(there: Observed, digests: dict[str, str], asked: Any = None) -> Verdict:
    return judge(asked or service(), there, digests, target(service()))


def pods_of(found: Verdict) -> tuple[list[str], list[str]]:
    return [w.pod.name for w in found.release], [w.pod.name for w in found.barred]


@pytest.mark.parametrize(
    ("there", "digests", "released", "barred"),
    [
        pytest.param(seen(), {"chat-a": DIGEST, "chat-b": DIGEST}, [], [], id="right ones serve"),
        pytest.param(seen(), {"chat-a": DIGEST}, [], [], id="one that says nothing is not judged"),
        pytest.param(seen(), {"chat-a": DIGEST, "chat-b": OTHER}, ["chat-b"], [], id="another digest"),
        pytest.param(seen(), {"chat-a": DIGEST, "chat-b": FILES_DIFFER}, ["chat-b"], [], id="other files"),
        pytest.param(seen(A, replace(B, is_ready=False)), {"chat-b": OTHER}, [], [], id="one that is not ready"),
        pytest.param(seen(replace(A, revision="old", pin=OTHER)), {"chat-a": OTHER}, [], [], id="an old pin's own"),
        pytest.param(seen(replace(A, revision="old", pin=OTHER)), {"chat-a": DIGEST}, ["chat-a"], [],
                     id="an old pod that serves the new pin"),
        pytest.param(seen(replace(A, pin="")), {"chat-a": OTHER}, [], [], id="one that was told no digest"),
        pytest.param(seen(apart=MOST - 1), {"chat-a": OTHER, "chat-b": OTHER}, ["chat-a"], ["chat-b"],
                     id="no more than so many"),
        pytest.param(seen(A, replace(B, mark=BARRED), apart=MOST), {"chat-a": DIGEST}, [], ["chat-b"],
                     id="a barred one that falls silent stays barred"),
        pytest.param(seen(A, replace(B, mark=BARRED), apart=MOST), {"chat-b": DIGEST}, [], [],
                     id="a barred one that reports its pin serves"),
    ],
)  # fmt: skip
def test_what_becomes_of_a_pod(
    there: Observed, digests: dict[str, str], released: list[str], barred: list[str]
) -> None:
    assert pods_of(verdict(there, digests)) == (released, barred)


def test_pods_that_were_told_to_serve_what_differs_are_left_to_the_roll_out() -> None:
    """A service that goes from Warn to Enforce: its successors may refuse to start, and it would serve nothing."""
    there = seen(replace(A, revision="old", tolerates=True), replace(B, revision="old", tolerates=True))
    assert verdict(there, {"chat-a": FILES_DIFFER, "chat-b": OTHER}) == CLEAR
    told = {"metadata": {"name": "x"}, "spec": {"containers": [{"args": ["serve", "--verification=Warn"]}]}}
    assert Pod.from_body(told).tolerates
    assert not Pod.from_body({**told, "spec": {"containers": [{"args": ["serve"]}]}}).tolerates


def test_verification_that_only_warns_takes_nothing_out() -> None:
    assert verdict(seen(), {"chat-a": OTHER, "chat-b": FILES_DIFFER}, WARNS) == CLEAR


def test_marks_are_written_once_and_before_anything_is_selected_by_them() -> None:
    found = verdict(seen(A, B, apart=MOST), {"chat-a": DIGEST, "chat-b": OTHER})
    assert found.marks == (("chat-a", SERVES), ("chat-b", BARRED))
    assert (found.is_guarded, found.is_held) == (True, True)
    marked = seen(replace(A, mark=SERVES), replace(B, mark=BARRED), C, apart=MOST)
    assert verdict(marked, {"chat-b": OTHER}).marks == (("chat-c", SERVES),), "a new one that has not reported serves"


def test_a_barred_pod_of_an_older_revision_does_not_hold_the_next_one_up() -> None:
    there = observed(live_objects(service()), (replace(A, mark=BARRED, revision="old"),))
    apart = tuple(pod(f"gone-{i}", revision="old") for i in range(MOST))
    assert not verdict(replace(there, quarantined=apart), {}).is_held


def planned(found: Verdict, blocker: Blocker | None = None, **spec: Any) -> Plan:
    asked = service(**spec)
    return plan_for(asked, observed(live_objects(asked), (A, B)), blocker, IMAGE, None, verdict=found)


RELEASE = verdict(seen(), {"chat-b": OTHER})


def test_a_quarantined_pod_leaves_every_selector_and_stays_ours() -> None:
    (body,) = planned(RELEASE).quarantine
    metadata = body["metadata"]
    assert (metadata["name"], metadata["uid"]) == ("chat-b", "uid-of-chat-b")
    assert metadata["labels"] == {names.SERVICE: "chat.quarantine"}
    assert names.service_of(metadata["labels"][names.SERVICE]) == "chat"
    assert metadata["annotations"] == {names.QUARANTINE: f"pod chat-b reports {OTHER}, want {DIGEST}"}
    (owner,) = metadata["ownerReferences"]
    assert (owner["kind"], owner["controller"], owner["blockOwnerDeletion"]) == ("InferenceService", False, False)


def test_the_longest_name_still_makes_a_label() -> None:
    assert len("c" * 52 + names.QUARANTINED) <= 63


@pytest.mark.parametrize(
    ("blocker", "spec", "acts"),
    [
        (Blocker(Blocked.MANIFEST_MISSING, "x"), {}, True),
        (Blocker(Blocked.NAME_TAKEN, "x"), {}, False),
        (None, {"paused": True}, False),
    ],
    ids=["blocked", "the names are somebody's", "paused"],
)
def test_who_is_blocked_still_serves_nothing_wrong(blocker: Blocker | None, spec: dict[str, Any], acts: bool) -> None:
    assert bool(planned(RELEASE, blocker, **spec).quarantine) is acts
    barred = verdict(seen(A, B, apart=MOST), {"chat-b": OTHER})
    assert bool(planned(barred, blocker, **spec).marks) is acts


GUARDED = {names.SERVICE: "chat", names.SERVING: SERVES}
PLAIN = {names.SERVICE: "chat"}
MISSING = Blocker(Blocked.MANIFEST_MISSING, "x")


def blocked(barred: bool, live: Any, blocker: Blocker = MISSING, **spec: Any) -> Plan:
    """Of a service whose manifest is gone, with a pod that is barred, or none any more."""
    asked = service(**spec)
    there = observed(live, (A, replace(B, mark=BARRED) if barred else C), manifest=None)
    found = judge(asked, replace(there, quarantined=seen(apart=MOST).quarantined), {}, "")
    return plan_for(asked, there, blocker, IMAGE, None, verdict=found)


def guarded(live: Any) -> Any:
    live[Ref("Service", "chat")]["spec"]["selector"] = GUARDED
    return live


@pytest.mark.parametrize(
    ("barred", "live", "blocker", "spec", "selectors"),
    [
        pytest.param(True, live_objects(service()), MISSING, {}, [GUARDED], id="its Service leaves the pod out"),
        pytest.param(False, guarded(live_objects(service())), MISSING, {}, [PLAIN], id="and takes new ones in after"),
        pytest.param(False, live_objects(service()), MISSING, {}, [], id="nothing is barred"),
        pytest.param(True, {}, MISSING, {}, [], id="there is no Service"),
        pytest.param(True, live_objects(service()), Blocker(Blocked.NAME_TAKEN, "x"), {}, [], id="the name is taken"),
        pytest.param(True, live_objects(service()), MISSING, {"paused": True}, [], id="paused"),
    ],
)
def test_who_is_blocked_still_leaves_a_barred_pod_out(
    barred: bool, live: Any, blocker: Blocker, spec: dict[str, Any], selectors: list[Any]
) -> None:
    owned = {ref: {**o, "metadata": {**o["metadata"], "ownerReferences": [{"uid": UID}]}} for ref, o in live.items()}
    plan = blocked(barred, owned, blocker, **spec)
    assert [o["kind"] for o in plan.apply] == ["Service"] * len(selectors)
    assert [o["spec"]["selector"] for o in plan.apply] == selectors
    assert (plan.scale, plan.settle, plan.delete) == (None, (), ())


def test_a_service_of_the_same_name_that_is_somebody_elses_is_not_written_while_blocked() -> None:
    live = {
        ref: {**o, "metadata": {**o["metadata"], "ownerReferences": []}} for ref, o in live_objects(service()).items()
    }
    assert blocked(True, live).apply == ()


def test_only_a_guarded_service_selects_by_the_mark_and_holds_the_roll_out() -> None:
    guarded = planned(verdict(seen(A, B, apart=MOST), {"chat-b": OTHER}))
    by_kind = {o["kind"]: o["spec"] for o in guarded.apply}
    assert set(by_kind) == {"Service", "Deployment"}
    assert by_kind["Service"]["selector"] == {names.SERVICE: "chat", names.SERVING: SERVES}
    assert by_kind["Deployment"]["paused"] is True
    assert by_kind["Deployment"]["selector"] == {"matchLabels": {names.SERVICE: "chat"}}
    assert planned(CLEAR).is_empty


def test_a_roll_out_that_is_aborted_is_not_held() -> None:
    course = Course(Action.ABORT, mark=Mark(Action.ABORT, target(service()), "old"), template={"metadata": {}})
    barred = verdict(seen(A, B, apart=MOST), {"chat-b": OTHER})
    plan = plan_for(service(), seen(A, B), None, IMAGE, None, course, verdict=barred)
    (deployment,) = (o["spec"] for o in plan.apply if o["kind"] == "Deployment")
    assert ("paused" in deployment, deployment["template"]) == (False, {"metadata": {}})


def test_what_a_quarantined_pod_mounts_and_was_made_from_is_kept() -> None:
    live = live_objects(service())
    old = Ref("ConfigMap", "chat-old")
    live[old] = {**live[next(r for r in live if r.kind == "ConfigMap")], "metadata": {
        "name": "chat-old", "ownerReferences": [{"uid": UID}], "annotations": {}, "labels": {}}}  # fmt: skip
    known = (record(target(service()), 2), record("old", 1))
    asked = service(revisionHistoryLimit=0)
    for apart, gone in (((), {old, Ref("ControllerRevision", "chat-old")}), ((pod("x", revision="old"),), set())):
        there = observed(live, (A, B), quarantined=apart, history=known)
        assert set(plan_for(asked, there, None, IMAGE, None).delete) == gone


class Refusing:
    """An API server that lets nobody write pods, or knows of none."""

    def __init__(self, error: Exception | None = None) -> None:
        self.applied: list[str] = []
        self.error = error or Refused("no pods")

    async def apply(self, path: str, body: Any, manager: str) -> Any:
        if body["kind"] == "Pod":
            raise self.error
        self.applied.append(body["kind"])
        return body

    async def merge(self, path: str, body: Any, manager: str) -> None:
        raise self.error


async def test_a_quarantine_that_is_refused_does_not_keep_its_cure_from_being_applied() -> None:
    api = Refusing()
    service_object = {"kind": "Service", "metadata": {"name": "chat"}}
    plan = replace(planned(RELEASE), apply=(service_object,))
    outcome = await Cluster(api).apply("team", plan)  # type: ignore[arg-type]
    assert str(outcome.refused) == "no pods"
    assert api.applied == ["Service"]
    assert (outcome.done.quarantine, outcome.done.apply, outcome.is_scaled) == ((), (service_object,), True)


class WithoutClaims(Refusing):
    """An API server that drops a field of pods, and knows no ConfigMap of ours."""

    async def apply(self, path: str, body: Any, manager: str) -> Any:
        await super().apply(path, body, manager)
        if body["kind"] == "ConfigMap":
            raise Refused("no maps")
        return {**body, "spec": {"template": {"spec": {}}}}

    async def delete(self, path: str) -> None:
        self.applied.append(path.rpartition("/")[2])


def named(kind: str, **spec: Any) -> dict[str, Any]:
    return {"kind": kind, "metadata": {"name": "chat"}, "spec": spec}


CLAIMING = named("Deployment", template={"spec": {"resourceClaims": [{"name": "gpu"}]}})


async def test_a_field_that_the_api_server_leaves_out_keeps_nothing_else_from_being_done() -> None:
    api, scale = WithoutClaims(), named("Deployment", replicas=3)
    plan = Plan(apply=(CLAIMING, named("Service")), scale=scale, settle=(CLAIMING,), delete=(Ref("ConfigMap", "old"),))
    outcome = await Cluster(api).apply("team", plan)  # type: ignore[arg-type]
    assert api.applied == ["Deployment", "Service", "Deployment", "Deployment", "old"]
    assert "the API server leaves spec.template.spec.resourceClaims of Deployment chat out" in str(outcome.refused)
    assert outcome.done == replace(plan, apply=(named("Service"),), settle=())
    assert outcome.is_scaled


@pytest.mark.parametrize("part", ["apply", "settle"])
async def test_any_other_refusal_ends_the_plan_and_is_told_with_what_was_done(part: str) -> None:
    """It is told rather than what keeps nothing else from being done."""
    api, scale = WithoutClaims(), named("Deployment", replicas=3)
    plan = Plan(apply=(CLAIMING, named("Service")), scale=scale)
    plan = replace(plan, **{part: (*getattr(plan, part), named("ConfigMap"), named("Service"))})
    outcome = await Cluster(api).apply("team", plan)  # type: ignore[arg-type]
    assert str(outcome.refused) == "no maps"
    assert outcome.done == Plan(apply=(named("Service"),), scale=scale if part == "settle" else None)
    assert outcome.is_scaled is (part == "settle")


async def test_a_mark_that_is_refused_is_told_after_the_rest_and_names_the_pod() -> None:
    api = Refusing()
    plan = Plan(marks=(("chat-a", BARRED),), apply=({"kind": "Service", "metadata": {"name": "chat"}},))
    outcome = await Cluster(api).apply("team", plan)  # type: ignore[arg-type]
    assert str(outcome.refused).startswith("label pinrail.dev/serving of pod chat-a, without which ")
    assert str(outcome.refused).endswith(": no pods")
    assert outcome.done == Plan(apply=plan.apply)
    assert api.applied == ["Service"]


async def test_what_is_written_on_a_pod_that_is_gone_is_no_refusal() -> None:
    plan = Plan(quarantine=planned(RELEASE).quarantine, marks=(("chat-a", BARRED),), costs=(("chat-a", 3),))
    outcome = await Cluster(Refusing(Missing("no such pod"))).apply("team", plan)  # type: ignore[arg-type]
    assert (outcome.done, outcome.refused) == (plan, None)


def test_what_is_quarantined_is_no_replica_any_more() -> None:
    there = carried_out(RELEASE, seen())
    assert [p.name for p in there.pods] == ["chat-a"]
    assert [p.name for p in there.quarantined] == ["chat-b"]
    assert Ref("Deployment", "chat") in there.live
