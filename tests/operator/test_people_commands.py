"""What `pinrail status`, `explain` and `diff` say, from what was read; golden texts are whole screens."""

import copy
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from operator_builders import DIGEST, IMAGE, MANIFEST_SPEC, body, live_objects, load, manifest, observed, pod, target

from pinrail_contract.errors import PinrailError
from pinrail_contract.pins import ModelManifest
from pinrail_contract.runtime import Runtime
from pinrail_contract.termination import Reason as Ending
from pinrail_contract.termination import Termination
from pinrail_operator import diff_command, names, status_command
from pinrail_operator.autoscale import Report as Load
from pinrail_operator.autoscale import decide
from pinrail_operator.diff import Pair, Surroundings, compared, defaulted, diff_text, exit_code, with_manifest
from pinrail_operator.explain import Facts, Report, explanation, operator_upgrade, share, verdict
from pinrail_operator.explain_text import explain_text
from pinrail_operator.manifests import objects_for
from pinrail_operator.observed import Observed, Ref
from pinrail_operator.overview import overview, overview_text, what_matters
from pinrail_operator.phrases import age, size
from pinrail_operator.quarantine import BARRED, MOST, SERVES, judge
from pinrail_operator.scaling_policy import ScalingPolicy
from pinrail_operator.status import render
from pinrail_operator.types import InferenceService
from pinrail_operator.view import View

NOW = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)
GOLDEN = Path(__file__).parent / "golden"
SCALED = {"replicas": None, "scaling": {"minReplicas": 1, "maxReplicas": 4}}
OTHER_IMAGE = "registry.test/pinrail/engine@sha256:" + "b" * 64


RUNS = Runtime(
    engine_version="0.1.0", backend="native", instructions="avx2", weight_dtype="bfloat16", compute_dtype="float32",
    kv_cache_dtype="bfloat16",
)  # fmt: skip


def living(**spec: Any) -> tuple[dict[str, Any], InferenceService, Observed]:
    """A service that serves from two pods, with the status that its operator wrote five minutes ago."""
    whole = body(**spec)
    whole["metadata"]["creationTimestamp"] = "2026-11-28T12:00:00Z"
    service = InferenceService.from_body(whole)
    pods = tuple(pod(name, revision=target(service)) for name in ("chat-1", "chat-2"))
    seen = observed(live_objects(service), pods)
    decision = None
    if isinstance(service.replicas, ScalingPolicy):
        loads = [Load(load(0.4)), Load(load(0.8))]
        decision = decide(service.replicas, loads, current=2, starting=0, history=(), now=0.0)
    view = View(
        service=service, observed=seen, target=target(service), blocker=None, decision=decision,
        digests={"chat-1": DIGEST, "chat-2": DIGEST}, runtimes={"chat-1": RUNS, "chat-2": RUNS},
    )  # fmt: skip
    return {**whole, "status": render(view, {}, NOW - timedelta(minutes=5))}, service, seen


def pod_body(service: InferenceService, name: str) -> dict[str, Any]:
    container = {"name": "engine", "restartCount": 1, "ready": True, "state": {"running": {}}}
    labels = {names.REVISION: target(service)}
    return {
        "metadata": {"name": name, "creationTimestamp": "2026-11-30T11:59:00Z", "labels": labels},
        "spec": {"nodeName": "node-a"},
        "status": {"conditions": [{"type": "Ready", "status": "True"}], "containerStatuses": [container]},
    }


def explained() -> dict[str, Any]:
    whole, service, seen = living(**SCALED)
    live = copy.deepcopy(dict(seen.live))
    live[Ref("PodDisruptionBudget", "chat")]["status"] = {
        "disruptionsAllowed": 1, "currentHealthy": 2, "desiredHealthy": 1,
    }  # fmt: skip
    facts = Facts(
        body=whole, service=service, observed=observed(live, seen.pods),
        pods=(pod_body(service, "chat-1"), pod_body(service, "chat-2")),
        reports={"chat-1": Report(DIGEST, runtime=RUNS), "chat-2": Report("sha256:" + "9" * 64, runtime=RUNS)},
    )  # fmt: skip
    return explanation(facts, NOW)


def pair(old: dict[str, Any] | None, schema: dict[str, Any] | None = None, **spec: Any) -> Pair:
    return Pair(new=body(**spec), old=old, schema=schema or {})


def diffed(seen: Observed, compared_pair: Pair, operator_image: str = IMAGE) -> dict[str, Any]:
    return compared(compared_pair, Surroundings(observed=seen, now=NOW, operator_image=operator_image))


def golden(name: str, text: str) -> None:
    assert text + "\n" == (GOLDEN / name).read_text(), f"tests/operator/golden/{name}"


def test_explain_is_one_screen() -> None:
    golden("explain.txt", explain_text(explained()))


def test_explain_says_where_the_figures_are_from() -> None:
    whole, service, seen = living(replicas=None, scaling={"maxReplicas": 4, "metrics": {"source": "Prometheus"}})
    told = explanation(Facts(body=whole, service=service, observed=seen), NOW)
    assert told["replicas"]["policy"]["source"] == "Prometheus"
    assert "figures from Prometheus last 30 s" in explain_text(told)


def test_a_quarantined_pod_is_listed_with_what_it_reported() -> None:
    whole, service, seen = living()
    body = pod_body(service, "chat-2")
    body["metadata"]["labels"] |= {names.SERVICE: "chat.quarantine"}
    body["metadata"]["annotations"] = {names.QUARANTINE: "pod chat-2 reports sha256:other, want sha256:this"}
    told = explanation(Facts(body=whole, service=service, observed=seen, pods=(body,)), NOW)
    (line,) = [line for line in explain_text(told).splitlines() if line.strip().startswith("chat-2")]
    assert "quarantined" in line
    assert "MISMATCH" in line
    assert "pod chat-2 reports sha256:other, want sha256:this" in explain_text(told)


def test_what_an_init_container_verified_is_what_the_pod_reports_where_its_engine_does_not() -> None:
    whole, service, seen = living()
    body = pod_body(service, "chat-1")
    ended = {"exitCode": 0, "message": Termination(Ending.VERIFIED, DIGEST).render()}
    body["status"]["initContainerStatuses"] = [{"name": names.VERIFY, "state": {"terminated": ended}}]
    silent = {"chat-1": Report(problem="its metrics page does not say what it verified")}
    told = explanation(Facts(body=whole, service=service, observed=seen, pods=(body,), reports=silent), NOW)
    assert (told["pods"][0]["verified"], told["pods"][0]["notHeard"]) == (True, None)


def test_explain_names_each_field_in_which_an_engine_is_not_the_pinned_one() -> None:
    pinned = ModelManifest.from_spec({**MANIFEST_SPEC, "engine": {"version": "0.2.0"}})
    whole, service, _ = living(model={"name": "tiny", "manifestRef": {"name": "tiny-v1"}, "digest": pinned.digest})
    bodies = tuple(pod_body(service, name) for name in ("chat-1", "chat-2", "chat-3"))
    for one in bodies:
        one["spec"]["containers"] = [{"name": "engine", "args": [f"--digest={pinned.digest}"]}]
    right, other = Report(pinned.digest, runtime=replace(RUNS, engine_version="0.2.0")), Report(pinned.digest, "", RUNS)
    facts = Facts(
        body=whole, service=service, observed=observed(manifest=pinned), pods=bodies,
        reports={"chat-1": other, "chat-2": right, "chat-3": other},
    )  # fmt: skip
    told = explanation(facts, NOW)
    assert [p["verified"] for p in told["pods"]] == [False, True, False]
    assert told["pods"][0]["runs"] == RUNS.to_spec()
    said = explain_text(told)
    assert "runs as   0.2.0" in said
    assert "chat-1, chat-3 run 0.1.0, backend native, instructions avx2, weightDtype bfloat16" in said
    assert "chat-2 runs 0.2.0" in said
    assert "chat-3 reports spec.engine.version: got 0.1.0, want 0.2.0" in said
    assert f"reports {pinned.digest}, want" not in said


def test_status_of_one_service_says_what_runs() -> None:
    whole = living()[0]
    said = overview_text(overview([whole], NOW), namespaces=False, details=True)
    assert f"\nruns {RUNS}\nReady: verified replicas serve tiny" in said
    del whole["status"]["model"]["engineVersion"], whole["status"]["model"]["numerics"]
    assert "\nruns not known\n" in overview_text(overview([whole], NOW), namespaces=False, details=True)


def test_another_engine_is_compared_with_the_image_that_verifies_for_it() -> None:
    """The one that runs already; a new service takes the operator's own."""
    engine = {"type": "vllm", "image": OTHER_IMAGE}
    whole = body(engine=engine)
    service = InferenceService.from_body(whole).verified_by(IMAGE)
    live = {Ref.of(o): o for o in objects_for(service, manifest(), OTHER_IMAGE)}
    live[Ref("Deployment", "chat")] |= {"status": {"observedGeneration": 1, "replicas": 2, "updatedReplicas": 2}}
    seen = observed(live, (pod("chat-1"),))
    told = diffed(seen, pair(whole, engine=engine), operator_image=OTHER_IMAGE)
    assert (told["refusals"], told["pods"]["restart"]) == ([], False)
    changed = diffed(seen, pair(whole, engine={**engine, "args": ["--seed=1"]}), operator_image="")
    assert changed["pods"]["revision"]["old"] != changed["pods"]["revision"]["new"]


def test_status_is_a_table() -> None:
    stuck = body({"observedGeneration": 2, "conditions": []}) | {}
    stuck["metadata"]["name"] = "new"
    lines = overview([living(**SCALED)[0], living()[0] | {"metadata": stuck["metadata"] | {"name": "all"}}, stuck], NOW)
    golden("status.txt", overview_text(lines, namespaces=True, details=False))


def test_diff_is_a_paragraph_a_document() -> None:
    whole, _, seen = living()
    changed = diffed(seen, pair(whole, limits={"maxNumSeqs": 8}, replicas=3))
    wrong = {"model": {"name": "tiny", "manifestRef": {"name": "tiny-v1"}, "digest": "sha256:" + "0" * 64}}
    refused = diffed(seen, pair(whole, **wrong))
    golden("diff.txt", diff_text([changed, refused, diffed(seen, pair(whole))]))


def test_without_services_status_says_so() -> None:
    assert overview_text([], namespaces=False, details=False) == "there is no InferenceService"


@pytest.mark.parametrize(
    ("changed", "shown"),
    [
        ({}, "Serving"),
        ({"Stalled": "True"}, "Stalled"),
        ({"Ready": "False"}, "Ready"),
        ({"Reconciling": "True", "Ready": "False"}, "Ready"),
        ({"Reconciling": "True"}, "Reconciling"),
        ({"ScalingActive": "False"}, "ScalingActive"),
    ],
)
def test_the_condition_that_matters(changed: dict[str, str], shown: str) -> None:
    whole = living(**SCALED)[0]
    for condition in whole["status"]["conditions"]:
        if condition["type"] in changed:
            condition |= {"status": changed[condition["type"]], "reason": condition["type"]}
    assert what_matters(whole)["reason"] == shown


def test_a_status_of_an_older_spec_is_not_taken_for_the_newest() -> None:
    whole = living()[0]
    whole["metadata"]["generation"] += 1
    assert what_matters(whole)["reason"] == "NotSeen"


@pytest.mark.parametrize(
    ("report", "wanted"),
    [(Report(DIGEST), True), (Report("files differ"), False), (Report("sha256:" + "9" * 64), False), (Report(), None)],
)
def test_only_the_pinned_digest_is_verified_and_silence_is_not_known(report: Report, wanted: bool | None) -> None:
    assert verdict(report, DIGEST) is wanted


def test_an_upgrade_that_only_writes_objects_restarts_nothing() -> None:
    whole, service, seen = living()
    live = copy.deepcopy(dict(seen.live))
    live[Ref("PodDisruptionBudget", "chat")]["metadata"]["annotations"] = {}
    told = operator_upgrade(whole, service, observed(live, seen.pods), {}, NOW)
    assert (told["effect"], told["objects"]) == ("objects", ["PodDisruptionBudget"])


def test_a_restart_that_the_spec_asks_for_is_not_blamed_on_the_operator() -> None:
    _, _, seen = living()
    edited = body({"observedGeneration": 2}, limits={"maxNumSeqs": 8})
    told = operator_upgrade(edited, InferenceService.from_body(edited), seen, {}, NOW)
    assert told["effect"] == "restart"
    assert told["why"].startswith("the spec already asks")


def held() -> tuple[dict[str, Any], InferenceService, Observed]:
    """A service whose Service and Deployment are as a verdict wants them: one more pod is wrong, and is barred."""
    whole, service, _ = living()
    pods = (pod("chat-1", mark=SERVES), pod("chat-2", mark=BARRED))
    apart = tuple(pod(f"gone-{i}", is_quarantined=True) for i in range(MOST))
    seen = observed(live_objects(service), pods, quarantined=apart)
    verdict = judge(service, seen, {}, target(service))
    live = dict(seen.live)
    for wanted in objects_for(service, manifest(), IMAGE, verdict=verdict):
        live[Ref.of(wanted)] = {**wanted, "metadata": {**wanted["metadata"], "generation": 1}}
    live[Ref("Deployment", "chat")] |= {"status": {"observedGeneration": 1, "replicas": 2, "updatedReplicas": 2}}
    live[Ref("Deployment", "chat")]["spec"] |= {"replicas": 2}
    return whole, service, observed(live, pods, quarantined=apart)


def test_an_upgrade_of_a_service_whose_roll_out_is_held_writes_nothing_and_says_why() -> None:
    whole, service, seen = held()
    told = operator_upgrade(whole, service, seen, {}, NOW)
    assert (told["effect"], told["objects"]) == ("none", [])
    assert told["steered"] == f"the roll-out stands still, since pod chat-2 reports something else, want {DIGEST}"
    told = diffed(seen, pair(whole))
    assert (exit_code([told]), told["pods"]["writes"]) == (0, [])
    assert "  the roll-out stands still, since pod chat-2" in diff_text([told])


def test_a_pod_that_reports_its_pin_again_frees_the_service_that_it_held() -> None:
    whole, service, seen = held()
    told = operator_upgrade(whole, service, seen, dict.fromkeys(("chat-1", "chat-2"), Report(DIGEST)), NOW)
    assert (told["effect"], told["objects"], told["steered"]) == ("objects", ["Service", "Deployment"], None)


def test_an_engine_that_names_its_version_alone_is_judged_by_it() -> None:
    """What another engine than ours does not say is its digest, which its init container has compared."""
    pinned = ModelManifest.from_spec({**MANIFEST_SPEC, "engine": {"version": "0.2.0"}})
    whole, service, _ = living(model={**body()["spec"]["model"], "digest": pinned.digest})
    running = pod("chat-1", pin=pinned.digest, verified=pinned.digest, revision=target(service, pinned))
    apart = tuple(pod(f"gone-{i}", revision=running.revision, is_quarantined=True) for i in range(MOST))
    seen = observed(live_objects(service, pinned=pinned), (running,), manifest=pinned, quarantined=apart)
    said = Report(problem="its metrics page does not say what it verified", runtime=Runtime(engine_version="0.1.0"))
    steered = operator_upgrade(whole, service, seen, {"chat-1": said}, NOW)["steered"]
    assert steered.startswith("the roll-out stands still, since pod chat-1 reports another engine")
    assert operator_upgrade(whole, service, seen, {"chat-1": Report(problem="silent")}, NOW)["steered"] is None


@pytest.mark.parametrize(
    ("allowed", "why"),
    [
        (frozenset[str](), "CacheNotAllowed blocks it"),
        (frozenset({"/var/cache/pinrail"}), "it renders the same"),
        (None, "it renders the same"),
    ],
    ids=["none", "this one", "not known"],
)
def test_an_upgrade_is_blocked_by_a_folder_of_the_node_that_the_operator_does_not_allow(
    allowed: frozenset[str] | None, why: str
) -> None:
    web = manifest("https://models.test/tiny/")
    cache = {"hostPath": {"path": "/var/cache/pinrail"}, "maxSize": "500Gi"}
    whole, service, _ = living(model={**body()["spec"]["model"], "digest": web.digest, "cache": cache})
    pods = (pod("chat-1", pin=web.digest, revision=target(service, web)),)
    seen = observed(live_objects(service, pinned=web), pods, manifest=web)
    told = explanation(Facts(body=whole, service=service, observed=seen, host_caches=allowed), NOW)
    assert why in told["upgrade"]["operator"]["why"]


@pytest.mark.parametrize(
    ("spec", "manifest_of", "why"),
    [({"paused": True}, manifest(), "spec.paused is true"), ({}, manifest(weights="9" * 64), "DigestMismatch blocks")],
    ids=["paused", "blocked"],
)
def test_an_upgrade_restarts_nothing_of_a_service_that_is_left_as_it_is(
    spec: dict[str, Any], manifest_of: Any, why: str
) -> None:
    _, _, seen = living()
    edited = body({"observedGeneration": 2}, limits={"maxNumSeqs": 8}, **spec)
    there = observed(seen.live, seen.pods, manifest=manifest_of)
    told = operator_upgrade(edited, InferenceService.from_body(edited), there, {}, NOW)
    assert (told["effect"], told["objects"]) == ("none", [])
    assert why in told["why"]


def test_explain_names_fields_that_have_no_effect_on_the_source() -> None:
    token = {"tokenSecretRef": {"name": "hub", "key": "token"}}
    whole, service, seen = living(model={**body()["spec"]["model"], **token})
    told = explanation(Facts(body=whole, service=service, observed=seen), NOW)
    assert told["pinned"]["unused"] == ["spec.model.tokenSecretRef"]
    assert "  unused    spec.model.tokenSecretRef: no effect on this source\n" in explain_text(told)
    assert explained()["pinned"]["unused"] == []


def test_without_a_deployment_an_upgrade_is_not_known() -> None:
    whole, service, _ = living()
    assert operator_upgrade(whole, service, observed(), {}, NOW)["effect"] is None


@pytest.mark.parametrize(
    ("value", "up", "wanted"), [(2, True, 2), ("25%", True, 1), ("25%", False, 0), ("0%", True, 0)]
)
def test_a_share_of_two_pods_is_rounded_as_the_deployments_controller_does(
    value: int | str, up: bool, wanted: int
) -> None:
    assert share(value, 2, up=up) == wanted


def test_a_service_that_keeps_its_own_default_image_does_not_move_to_the_operators() -> None:
    whole, _, seen = living()
    told = diffed(seen, pair(whole), operator_image=OTHER_IMAGE)
    assert (told["pods"]["image"], told["pods"]["restart"], exit_code([told])) == (IMAGE, False, 0)


def test_dropping_the_image_goes_back_to_the_operators_default() -> None:
    whole, _, seen = living(engine={"image": IMAGE})
    told = diffed(seen, pair(whole), operator_image=OTHER_IMAGE)
    assert (told["pods"]["image"], told["pods"]["restart"]) == (OTHER_IMAGE, True)


def test_without_a_known_image_a_restart_is_not_known_and_no_refusal() -> None:
    told = diffed(observed(), pair(None), operator_image="")
    assert (told["pods"]["restart"], told["refusals"], exit_code([told])) == (None, [], 1)


def test_a_network_policy_is_among_what_is_written_and_restarts_nothing() -> None:
    whole, _, seen = living()
    confined = {"security": {"networkPolicy": {"enabled": True}}}
    told = diffed(seen, pair(whole, **confined))
    assert (told["pods"]["writes"], told["pods"]["restart"], exit_code([told])) == (["NetworkPolicy"], False, 1)
    live = live_objects(InferenceService.from_body(body(**confined)).asked_from("sys"))
    assert diffed(observed(live, seen.pods), pair(body(**confined), **confined))["pods"]["writes"] == []


def test_a_network_policy_that_an_operator_would_write_is_explained() -> None:
    whole, service, seen = living(security={"networkPolicy": {"enabled": True}})
    bare = {ref: o for ref, o in seen.live.items() if ref.kind != "NetworkPolicy"}
    told = operator_upgrade(whole, service, observed(bare, seen.pods), {}, NOW)
    assert (told["effect"], told["objects"]) == ("objects", ["NetworkPolicy"])


def test_a_policy_that_lets_older_pods_fetch_is_no_difference_to_explain() -> None:
    whole, _, _ = living(security={"networkPolicy": {"enabled": True}})
    service = InferenceService.from_body(whole)
    old, new = (manifest(uri) for uri in ("s3://bucket/x", "pvc://models/tiny/v1"))
    live = {**live_objects(service, pinned=old), **live_objects(service, updated=1)}
    wide = {Ref("NetworkPolicy", "chat"): live_objects(service, pinned=old)[Ref("NetworkPolicy", "chat")]}
    told = operator_upgrade(whole, service, observed({**live, **wide}, manifest=new), {}, NOW)
    assert (told["effect"], told["objects"]) == ("none", [])


def test_what_is_paused_is_left_alone() -> None:
    whole, _, seen = living()
    told = diffed(seen, pair(whole, paused=True, limits={"maxNumSeqs": 8}))
    assert (told["pods"]["restart"], told["pods"]["moved"], exit_code([told])) == (False, 0, 1)


def test_suspending_removes_every_replica() -> None:
    whole, _, seen = living()
    told = diffed(seen, pair(whole, suspend=True))
    assert (told["pods"]["restart"], told["pods"]["moved"]) == (False, 2)


def test_a_narrower_bound_moves_the_replicas_above_it() -> None:
    whole, _, seen = living(**SCALED)
    told = diffed(seen, pair(whole, replicas=None, scaling={"minReplicas": 1, "maxReplicas": 1}))
    assert (told["pods"]["restart"], told["pods"]["replicas"]) == (False, {"old": 2, "new": 1})


def test_a_manifest_of_the_same_file_counts_before_it_is_applied() -> None:
    spec = copy.deepcopy(MANIFEST_SPEC) | {"source": {"uri": "pvc://models/tiny/v2"}}
    document = {"apiVersion": "pinrail.dev/v1alpha1", "kind": "ModelManifest", "spec": spec}
    assert with_manifest(observed(manifest=None), document).manifest == manifest("pvc://models/tiny/v2")
    assert with_manifest(observed(), {**document, "spec": {}}).manifest_problem.startswith(
        "spec.schemaVersion: got None"
    )


def test_labels_that_others_added_are_no_change() -> None:
    whole, _, seen = living()
    whole["metadata"] |= {"labels": {"theirs": "1", "ours": "1"}}
    new = pair(whole).new
    new["metadata"]["labels"] = {"ours": "2"}  # type: ignore[index]
    told = diffed(seen, Pair(new=new, old=whole, schema={}))
    assert told["fields"] == [{"field": "metadata.labels.ours", "old": "1", "new": "2"}]


SCHEMA = {
    "properties": {
        "engine": {"default": {}, "properties": {"type": {"default": "pinrail"}}},
        "env": {"items": {"properties": {"value": {"default": ""}}}},
    }
}


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        ({}, {"engine": {"type": "pinrail"}}),
        ({"engine": None}, {"engine": {"type": "pinrail"}}),
        ({"engine": {"type": "x"}, "env": [{}]}, {"engine": {"type": "x"}, "env": [{"value": ""}]}),
    ],
)  # fmt: skip
def test_defaults_are_filled_in_at_every_depth(value: Any, wanted: Any) -> None:
    assert defaulted(SCHEMA, value) == wanted


@pytest.mark.parametrize(
    ("seconds", "wanted"), [(0, "0s"), (119, "119s"), (120, "2m"), (7200, "2h"), (172800, "2d"), (None, "not known")]
)
def test_ages(seconds: int | None, wanted: str) -> None:
    assert age(seconds) == wanted


@pytest.mark.parametrize(("count", "wanted"), [(512, "512 B"), (269060552, "269 MB"), (1563271, "1.56 MB")])
def test_sizes(count: int, wanted: str) -> None:
    assert size(count) == wanted


@pytest.mark.parametrize("command", ["status", "explain", "diff"])
def test_a_commands_module_imports_no_client(command: str) -> None:
    code = f"import sys, pinrail_operator.{command}_command; print([m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


HEAVY = ("kubernetes", "urllib3", "yaml", "asyncio", "kopf")


def test_without_a_kubeconfig_the_error_says_where_it_looked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    with pytest.raises(PinrailError, match=rf"kubeconfig {tmp_path}/none: .*; next: set KUBECONFIG or --context"):
        status_command.command.run([])


WRONG_FILES = {
    "nothing": ("", "holds no document, want InferenceService or ModelManifest"),
    "another kind": ("apiVersion: v1\nkind: Pod", "document 1: kind: got 'Pod' of 'v1', want InferenceService"),
    "no name": ("apiVersion: pinrail.dev/v1alpha1\nkind: InferenceService", "metadata.name: got None, want a name"),
}


@pytest.mark.parametrize(("text", "said"), WRONG_FILES.values(), ids=WRONG_FILES)
def test_a_file_that_cannot_be_compared_ends_with_2(
    text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "wrong.yaml"
    path.write_text(text)
    assert diff_command.command.run(["-f", str(path)]) == 2
    assert said in capsys.readouterr().err
