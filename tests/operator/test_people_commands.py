"""What `pinrail status`, `explain` and `diff` say, from what was read; golden texts are whole screens."""

import copy
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from operator_builders import DIGEST, IMAGE, MANIFEST_SPEC, body, live_objects, load, manifest, observed, pod, target

from pinrail_contract.errors import PinrailError
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
from pinrail_operator.scaling_policy import ScalingPolicy
from pinrail_operator.status import render
from pinrail_operator.types import InferenceService
from pinrail_operator.view import View

NOW = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)
GOLDEN = Path(__file__).parent / "golden"
SCALED = {"replicas": None, "scaling": {"minReplicas": 1, "maxReplicas": 4}}
OTHER_IMAGE = "registry.test/pinrail/engine@sha256:" + "b" * 64


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
        digests={"chat-1": DIGEST, "chat-2": DIGEST},
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
        reports={"chat-1": Report(DIGEST), "chat-2": Report("sha256:" + "9" * 64)},
    )  # fmt: skip
    return explanation(facts, NOW)


def pair(old: dict[str, Any] | None, schema: dict[str, Any] | None = None, **spec: Any) -> Pair:
    return Pair(new=body(**spec), old=old, schema=schema or {})


def diffed(seen: Observed, compared_pair: Pair, operator_image: str = IMAGE) -> dict[str, Any]:
    return compared(compared_pair, Surroundings(observed=seen, operator_image=operator_image))


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
    told = operator_upgrade(whole, service, observed(live, seen.pods))
    assert (told["effect"], told["objects"]) == ("objects", ["PodDisruptionBudget"])


def test_a_restart_that_the_spec_asks_for_is_not_blamed_on_the_operator() -> None:
    _, _, seen = living()
    edited = body({"observedGeneration": 2}, limits={"maxNumSeqs": 8})
    told = operator_upgrade(edited, InferenceService.from_body(edited), seen)
    assert told["effect"] == "restart"
    assert told["why"].startswith("the spec already asks")


def test_without_a_deployment_an_upgrade_is_not_known() -> None:
    whole, service, _ = living()
    assert operator_upgrade(whole, service, observed())["effect"] is None


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
