"""The status as a table of situations; what is written is whole, and equal where nothing changed."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from operator_builders import (
    DIGEST,
    IMAGE,
    MANIFEST_SPEC,
    body,
    faulty,
    live_objects,
    load,
    manifest,
    observed,
    pod,
    scaled,
    service,
    target,
)  # fmt: skip

from pinrail_contract.metrics import FILES_DIFFER
from pinrail_contract.pins import ModelManifest
from pinrail_contract.runtime import UNSAID, Runtime
from pinrail_contract.termination import Reason as Ending
from pinrail_contract.termination import Termination
from pinrail_operator import scaling_status, status
from pinrail_operator.autoscale import Reason, Report, decide
from pinrail_operator.checks import Blocked, Blocker
from pinrail_operator.errors import SpecError
from pinrail_operator.observed import Fault
from pinrail_operator.plan import Plan, target_revision
from pinrail_operator.quarantine import BARRED
from pinrail_operator.view import View

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
STAMP = "2026-01-02T03:04:05Z"
A, B = pod("chat-a"), pod("chat-b")
VERIFIED = {"chat-a": DIGEST, "chat-b": DIGEST}
WRONG = Fault("engine", "Error", "exit code 64", Termination(Ending.MODEL_MISMATCH, "tokenizer.json: changed"))
NO_KEYS = Fault("engine", "Error", "exit code 1", Termination(Ending.API_KEYS_MISSING, "/keys holds no key"))
ENGINE = Fault("engine", "Error", "exit code 66", Termination(Ending.ENGINE_MISMATCH, "manifest x pins another engine"))
CRASH = Fault("engine", "OOMKilled", "exit code 137", None)


def view(asked: Any = None, pods: tuple[Any, ...] = (A, B), live: Any = None, **changes: Any) -> View:
    """A service of two that is settled and verified, unless `changes` say otherwise."""
    asked = asked or service()
    seen = changes.pop("seen", None) or observed(live if live is not None else live_objects(asked), pods)
    whole = {"blocker": None, "decision": None, "digests": VERIFIED, "target": target_revision(asked, seen, IMAGE)}
    return View(service=asked, observed=seen, **{**whole, **changes})


def conditions(rendered: dict[str, Any]) -> dict[str, str]:
    return {c["type"]: c["status"] for c in rendered["conditions"]}


def reasons(rendered: dict[str, Any]) -> dict[str, str]:
    return {c["type"]: c["reason"] for c in rendered["conditions"]}


def messages(rendered: dict[str, Any]) -> dict[str, str]:
    return {c["type"]: c["message"] for c in rendered["conditions"]}


def render(seen: View, previous: dict[str, Any] | None = None, now: datetime = NOW) -> dict[str, Any]:
    return status.render(seen, previous or {}, now)


APART = pod("chat-0", is_quarantined=True, quarantine="pod chat-0 reports sha256:other, want sha256:this")
WARNS = service(verification={"mode": "Warn"})


def warning(digests: dict[str, str]) -> View:
    """The settled service of two, whose verification only warns."""
    pods = tuple(pod(name, revision=target(WARNS)) for name in ("chat-a", "chat-b"))
    return view(WARNS, pods=pods, digests=digests)


PINNING = ModelManifest.from_spec({**MANIFEST_SPEC, "engine": {"version": "1"}, "numerics": {"weightDtype": "int8"}})
RUNS = Runtime(engine_version="1", weight_dtype="int8", instructions="avx2")
OTHER = replace(RUNS, engine_version="2")


def running(*said: Runtime, **spec: Any) -> View:
    """The settled service of two whose manifest pins an engine, as its pods report what they run."""
    model = {"name": "tiny", "manifestRef": {"name": "tiny-v1"}, "digest": PINNING.digest}
    asked = service(model=model, **spec)
    pods = tuple(pod(n, pin=PINNING.digest, revision=target(asked, PINNING)) for n in ("chat-a", "chat-b"))
    seen = observed(live_objects(asked, pinned=PINNING), pods, manifest=PINNING)
    digests = dict.fromkeys(VERIFIED, PINNING.digest)
    return view(asked, seen=seen, digests=digests, runtimes=dict(zip(("chat-a", "chat-b"), said, strict=False)))


OLD = pod("old", revision="older")
MISSING = Blocker(Blocked.MANIFEST_MISSING, "ModelManifest tiny-v1 does not exist")

# Ready, Reconciling, Stalled, ModelVerified, WorkloadReady, RolloutComplete; the reason of Ready
ROWS = [
    pytest.param(view(), "T F F T T T", "Serving", id="settled"),
    pytest.param(view(live={}, pods=()), "F T F U F F", "ReplicasStarting", id="new"),
    pytest.param(view(pods=(A, pod("chat-b", is_ready=False))), "F T F T F T", "ReplicasStarting",
                 id="one is starting"),
    pytest.param(view(blocker=MISSING, seen=observed(manifest=None), target=""), "F T F F F F", "ManifestMissing",
                 id="no manifest"),
    pytest.param(view(blocker=Blocker(Blocked.IMAGE_MISSING, "x"), live={}, pods=()), "F F T U F F",
                 "EngineImageMissing", id="no image"),
    pytest.param(view(blocker=Blocker(Blocked.DIGEST_MISMATCH, "x"), pods=(OLD, OLD)), "F F T F T T", "DigestMismatch",
                 id="a blocked change, the old pin serves"),
    pytest.param(view(pods=(OLD, OLD, faulty(WRONG, "chat-c")), live=live_objects(service(), total=3, updated=1)),
                 "F F T F T F", "ModelMismatch", id="a roll-out meets wrong files"),
    pytest.param(view(pods=(OLD, OLD, pod("chat-c", is_ready=False)), live=live_objects(service(), total=3, updated=1)),
                 "F T F U T F", "RollingOut", id="a roll-out goes on"),
    pytest.param(view(pods=(A, faulty(CRASH, "chat-b"))), "F F T T F T", "OOMKilled", id="one crashes"),
    pytest.param(view(pods=(A, faulty(NO_KEYS, "chat-b"))), "F F T T F T", "ApiKeysMissing", id="one finds no keys"),
    pytest.param(view(pods=(A, pod("chat-b", is_ready=False, unschedulable="no node"))), "F T F T F T",
                 "Unschedulable", id="one has no node: it may come"),
    pytest.param(view(digests={"chat-a": DIGEST}), "U F F U T T", "NotReported",
                 id="one has not said what it verified"),
    pytest.param(view(digests={**VERIFIED, "chat-b": "sha256:other"}), "F F T F T T", "DigestDiffers",
                 id="one reports another digest"),
    pytest.param(view(digests={**VERIFIED, "chat-b": FILES_DIFFER}), "F F T F T T", "DigestDiffers",
                 id="one serves other files"),
    pytest.param(warning({**VERIFIED, "chat-b": FILES_DIFFER}), "T F F F T T", "ServingUnverified",
                 id="one serves other files, where verification only warns"),
    pytest.param(warning({**VERIFIED, "chat-b": "sha256:other"}), "T F F F T T", "ServingUnverified",
                 id="one reports another digest, where verification only warns"),
    pytest.param(running(RUNS, RUNS), "T F F T T T", "Serving", id="all run what is pinned"),
    pytest.param(running(RUNS, UNSAID), "T F F T T T", "Serving", id="one does not say what it runs"),
    pytest.param(running(RUNS, OTHER), "F F T F T T", "EngineDiffers", id="one reports another engine"),
    pytest.param(running(RUNS, OTHER, verification={"mode": "Warn"}), "T F F F T T", "ServingUnverified",
                 id="one reports another engine, where verification only warns"),
    pytest.param(view(pods=(A, faulty(ENGINE, "chat-b"))), "F F T F F T", "EngineMismatch",
                 id="one refuses to start as another engine than is pinned"),
    pytest.param(view(seen=observed(live_objects(service()), (A, B), quarantined=(APART,))), "T F F F T T", "Serving",
                 id="one was quarantined, and another took its place"),
    pytest.param(view(pods=(A, pod("chat-b", mark=BARRED)), digests={"chat-a": DIGEST}), "F F T F T T",
                 "DigestDiffers", id="one is barred and says nothing more"),
    pytest.param(view(service(paused=True), live=live_objects(service(), updated=1)), "F F F T T F", "Paused",
                 id="paused in a roll-out"),
    pytest.param(view(service(replicas=3), live=live_objects(service())), "F T F T F T", "ReplicasStarting",
                 id="more are asked for than the Deployment knows"),
    pytest.param(view(done=Plan(apply=({},))), "T T F T T T", "Serving", id="settled, something was just applied"),
    pytest.param(view(live=live_objects(service(), observed_generation=0, updated=1)), "T F F T T T", "Serving",
                 id="scaled a moment ago: the counts are old, the pods are not"),
    pytest.param(view(pods=(OLD, OLD), live=live_objects(service(), observed_generation=0)), "F T F U T F",
                 "RollingOut", id="a roll-out begins: the counts are those of the old pods"),
    pytest.param(view(service(replicas=0), pods=(), live=live_objects(service(replicas=0), replicas=0)), "T F F U T T",
                 "NoReplicasWanted", id="none asked for"),
    pytest.param(view(service(replicas=0), pods=(A,), live=live_objects(service(replicas=0), replicas=0)),
                 "F T F T F T", "ReplicasStopping", id="none asked for, one is left"),
    pytest.param(view(service(replicas=0), pods=(), live={}), "F T F U T F", "NotStarted",
                 id="none asked for, nothing made yet"),
    pytest.param(view(service(suspend=True), pods=(), live=live_objects(service(), replicas=0)), "T F F U T T",
                 "Suspended", id="suspended"),
    pytest.param(view(service(suspend=True), pods=(), blocker=MISSING, live=live_objects(service(), replicas=0)),
                 "F T F F T T", "ManifestMissing", id="suspended, and blocked"),
]  # fmt: skip


@pytest.mark.parametrize(("seen", "values", "ready"), ROWS)
def test_conditions(seen: View, values: str, ready: str) -> None:
    rendered = render(seen)
    found = [value[0] for value in conditions(rendered).values()]
    assert list(conditions(rendered)) == [
        "Ready", "Reconciling", "Stalled", "ModelVerified", "WorkloadReady", "RolloutComplete",
    ]  # fmt: skip
    assert " ".join(found) == values
    assert reasons(rendered)["Ready"] == ready


@pytest.mark.parametrize(
    ("ready", "seconds", "stalled"),
    [("False", 14, "False"), ("False", 15, "True"), ("False", 600, "True"), ("True", 600, "False")],
)
def test_a_manifest_that_was_applied_together_with_its_service_is_awaited(
    ready: str, seconds: int, stalled: str
) -> None:
    """Counted from when it stopped being ready: one that was not ready anyway waits for no manifest of a later spec."""
    began = (NOW - timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")
    previous = {"conditions": [{"type": "Ready", "status": ready, "reason": "any", "lastTransitionTime": began}]}
    told = status.render(view(blocker=MISSING, seen=observed(manifest=None), target=""), previous, NOW)
    assert (conditions(told)["Stalled"], status.is_awaiting(told)) == (stalled, stalled == "False")
    assert reasons(told)["Ready"] == "ManifestMissing"


def test_a_paused_service_awaits_no_manifest() -> None:
    told = render(view(service(paused=True), blocker=MISSING, seen=observed(manifest=None), target=""))
    assert conditions(told)["Stalled"] == "True"


@pytest.mark.parametrize("seen", [pytest.param(row.values[0], id=row.id) for row in ROWS])
def test_reconciling_and_stalled_exclude_each_other(seen: View) -> None:
    found = conditions(render(seen))
    assert (found["Reconciling"], found["Stalled"]) != ("True", "True")
    assert found["Ready"] != "True" or found["Stalled"] == "False"


def test_a_settled_status_is_whole() -> None:
    rendered = render(view())
    assert rendered | {"conditions": []} == {
        "observedGeneration": 3,
        "conditions": [],
        "replicas": 2,
        "readyReplicas": 2,
        "updatedReplicas": 2,
        "selector": "pinrail.dev/service=chat",
        "url": "http://chat.team.svc/v1",
        "revision": {"current": target(service()), "target": target(service())},
        "model": {"digest": DIGEST, "verifiedReplicas": 2},
    }
    assert {c["lastTransitionTime"] for c in rendered["conditions"]} == {STAMP}
    assert {c["observedGeneration"] for c in rendered["conditions"]} == {3}


def test_the_same_view_gives_the_same_status() -> None:
    first = render(view())
    assert render(view(), first, NOW + timedelta(hours=1)) == first


def test_a_transition_time_moves_with_its_condition_alone() -> None:
    first = render(view(pods=(A, pod("chat-b", is_ready=False))))
    later = render(view(), first, NOW + timedelta(minutes=1))
    times = {c["type"]: c["lastTransitionTime"] for c in later["conditions"]}
    assert times["Ready"] == times["WorkloadReady"] == "2026-01-02T03:05:05Z"
    assert times["RolloutComplete"] == times["Stalled"] == STAMP


def test_wrong_files_are_named_with_the_next_step_and_what_still_serves() -> None:
    seen = view(pods=(OLD, OLD, faulty(WRONG, "chat-c")), live=live_objects(service(), total=3, updated=1))
    said = messages(render(seen))
    assert "tokenizer.json: changed" in said["ModelVerified"]
    assert "pinrail verify" in said["Stalled"]
    assert "2 replicas of the previous revision go on serving" in said["Stalled"]


def test_the_last_complete_revision_is_kept_while_another_rolls_out() -> None:
    before = render(view())
    rolling = view(service(limits={"maxNumSeqs": 8}), live=live_objects(service()))
    rendered = render(rolling, before)
    assert rendered["revision"] == {"current": target(service()), "target": rolling.target}


def test_one_replica_is_spoken_of_as_one() -> None:
    one = service(replicas=1)
    ready = messages(render(view(one, pods=(A,), live=live_objects(one, replicas=1))))
    assert ready["WorkloadReady"] == "at least 1 replica is ready"
    starting = messages(render(view(one, pods=(pod("chat-a", is_ready=False),), live=live_objects(one, replicas=1))))
    assert starting["WorkloadReady"] == "0 of 1 replica is ready"


def test_an_old_pin_that_goes_on_serving_shows_its_digest() -> None:
    old = manifest(weights="8" * 64).digest
    seen = view(blocker=Blocker(Blocked.DIGEST_MISMATCH, "x"), pods=(OLD,), digests={"old": old})
    assert render(seen)["model"] == {"digest": old, "verifiedReplicas": 0}


def test_a_status_says_which_engine_and_numerics_all_replicas_report() -> None:
    assert render(running(RUNS, RUNS))["model"] == {
        "digest": PINNING.digest, "engineVersion": "1", "numerics": {"instructions": "avx2", "weightDtype": "int8"},
        "verifiedReplicas": 2,
    }  # fmt: skip
    mixed = render(running(RUNS, OTHER, verification={"mode": "Warn"}))["model"]
    assert ("engineVersion" in mixed, mixed["numerics"]["weightDtype"]) == (False, "int8")
    assert mixed["verifiedReplicas"] == 1, "the other one is not what is pinned"
    assert "numerics" not in render(running(Runtime(engine_version="1"), Runtime(engine_version="1")))["model"]


def test_another_engine_that_serves_is_named_with_the_next_step() -> None:
    said = messages(render(running(RUNS, OTHER, verification={"mode": "Warn"})))["ModelVerified"]
    assert said == (
        "pod chat-b reports another engine than its manifest pins: spec.engine.version: got 2, want 1; it serves, "
        "since spec.verification.mode is Warn; next: set spec.engine to what the manifest pins, or pin what runs"
    )
    assert "spec.engine to what the manifest pins" in messages(render(view(pods=(A, faulty(ENGINE, "x")))))["Stalled"]


def test_what_no_replica_reports_is_said_not_to_be_verified_from_outside() -> None:
    said = messages(render(running(UNSAID, RUNS)))["ModelVerified"]
    assert said.endswith(
        "; 1 of 2 ready replicas does not report spec.engine.version, spec.numerics.weightDtype, so that is not "
        "verified from outside"
    )
    assert messages(render(running(RUNS, RUNS)))["ModelVerified"] == f"all ready replicas report {PINNING.digest}"
    assert "from outside" not in messages(render(view()))["ModelVerified"], "nothing is pinned"


@pytest.mark.parametrize(("said", "wanted"), [((RUNS, RUNS), False), ((RUNS, UNSAID), False), ((RUNS,), True)])
def test_a_replica_that_has_not_said_what_is_pinned_is_looked_at_soon(said: Any, wanted: bool) -> None:
    assert running(*said).has_unheard is wanted
    assert not view().has_unheard


def scaling_view(usage: float, mode: str = "Active", **changes: Any) -> View:
    asked = scaled(mode=mode)
    decision = decide(asked.scaling, [Report(load(usage))] * 2, current=2, starting=0, history=(), now=0.0)
    scale = {"spec": {"replicas": decision.replicas}} if mode == "Active" and decision.replicas != 2 else None
    return view(asked, **{"decision": decision, "done": Plan(scale=scale), **changes})


def test_scaling_reports_its_figures() -> None:
    message = "200 of 200 KV blocks and 0 of 20 request slots need 3 replicas"
    assert render(scaling_view(1.0))["scaling"] == {
        "desiredReplicas": 3, "reason": "CacheDemand", "demandBlocks": 200, "supplyBlocks": 200, "reporting": 2,
        "message": message,
        "lastScale": {"from": 2, "to": 3, "reason": "CacheDemand", "message": message, "time": "2026-01-02T03:04:05Z"},
    }  # fmt: skip


def test_the_last_change_stays_when_later_decisions_change_nothing() -> None:
    first = render(scaling_view(1.0))
    assert render(scaling_view(0.8), first)["scaling"]["lastScale"] == first["scaling"]["lastScale"]


@pytest.mark.parametrize("mode", ["Recommend", "Paused"])
def test_what_is_only_recommended_is_no_change(mode: str) -> None:
    assert "lastScale" not in render(scaling_view(1.0, mode)).get("scaling", {})


def test_a_scaling_that_was_not_carried_out_is_no_change() -> None:
    blocked = render(scaling_view(1.0, done=Plan(), blocker=Blocker(Blocked.REFUSED, "exceeded quota")))
    assert "lastScale" not in blocked["scaling"]
    assert reasons(blocked)["ScalingActive"] == "Refused"
    assert "lastScale" in render(scaling_view(1.0), blocked)["scaling"]


def test_a_crash_beyond_the_least_number_waits_for_nobody() -> None:
    seen = view(scaled(), pods=(pod("chat-a"), faulty(CRASH, "chat-b")))
    assert target(scaled()) == target(service())
    assert (conditions(render(seen))["Ready"], conditions(render(seen))["Stalled"]) == ("True", "False")


def test_a_deployment_that_cannot_make_pods_is_quoted() -> None:
    live = live_objects(service(), total=1, updated=0)
    deployment = next(o for ref, o in live.items() if ref.kind == "Deployment")
    quota = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": "exceeded quota"}
    deployment["status"]["conditions"] = [quota]
    said = messages(render(view(pods=(OLD,), live=live)))
    assert said["Stalled"] == "FailedCreate: exceeded quota; 1 replica of the previous revision goes on serving"
    assert said["WorkloadReady"] == "1 of 2 replicas are ready; FailedCreate: exceeded quota"


@pytest.mark.parametrize("key", ["desiredReplicas", "reason", "reporting", "supplyBlocks"])
def test_a_decision_that_differs_is_written(key: str) -> None:
    first = render(scaling_view(0.78))
    before = {**first, "scaling": {**first["scaling"], key: "other"}}
    assert render(scaling_view(0.78), before) == first


def test_small_moves_of_the_load_are_not_written() -> None:
    first = render(scaling_view(0.78))
    assert render(scaling_view(0.79), first) == first
    assert render(scaling_view(0.84), first) != first


def test_the_last_decision_stays_while_there_is_none() -> None:
    first = render(scaling_view(0.8))
    assert render(view(scaled()), first)["scaling"] == first["scaling"]


def test_a_fixed_number_reports_no_scaling() -> None:
    first = render(scaling_view(0.8))
    assert "scaling" not in render(view(), first)
    assert "ScalingActive" not in conditions(render(view(), first))


@pytest.mark.parametrize(
    ("seen", "value", "reason"),
    [
        (scaling_view(0.8), "True", "Steady"),
        (scaling_view(0.8, "Recommend"), "False", "RecommendOnly"),
        (view(scaled(mode="Paused")), "False", "ScalingPaused"),
        (view(scaled()), "Unknown", "NoDecision"),
    ],
)
def test_scaling_active(seen: View, value: str, reason: str) -> None:
    (found,) = [c for c in render(seen)["conditions"] if c["type"] == "ScalingActive"]
    assert (found["status"], found["reason"]) == (value, reason)


def test_every_scaling_reason_has_its_words() -> None:
    assert set(scaling_status.MESSAGES) == set(Reason)


def test_a_refused_spec_keeps_what_is_known() -> None:
    before = render(view())
    whole = body()
    whole["metadata"]["generation"] = 4
    rendered = status.refused(whole, SpecError("spec.replicas", "got 'x', want a number"), before, NOW)
    assert rendered["observedGeneration"] == 4
    assert rendered["readyReplicas"] == 2
    found = conditions(rendered)
    assert (found["Ready"], found["Reconciling"], found["Stalled"]) == ("False", "False", "True")
    assert messages(rendered)["Stalled"] == "spec.replicas: got 'x', want a number; mend the field and apply again"
    assert status.refused(whole, SpecError("spec.replicas", "got 'x', want a number"), rendered, NOW) == rendered
