"""Plans are values: the first one is golden, the steady one is empty, and each difference changes one thing."""

import copy
import dataclasses
from pathlib import Path
from typing import Any

import pytest
import yaml
from operator_builders import (
    DIGEST,
    IMAGE,
    LABELS,
    UID,
    cached,
    live_objects,
    load,
    manifest,
    observed,
    record,
    scaled,
    service,
    target,
)  # fmt: skip

from pinrail_operator import names, pods
from pinrail_operator.autoscale import Decision, Report, decide
from pinrail_operator.checks import Blocked, Blocker
from pinrail_operator.observed import Ref
from pinrail_operator.plan import Plan, is_rolled_out, plan_for, target_revision
from pinrail_operator.scaling_policy import ScalingMode, ScalingPolicy
from pinrail_operator.types import InferenceService

GOLDEN = Path(__file__).parent / "golden"
RICH = {
    "model": {"name": "org/tiny", "manifestRef": {"name": "tiny-v1"}, "digest": DIGEST},
    "engine": {"dtype": "float32", "env": [{"name": "OMP_NUM_THREADS", "value": "2"}]},
    "limits": {"maxModelLen": 2048, "kvCacheMemory": "256Mi"},
    "resources": {"requests": {"cpu": "1"}, "limits": {"memory": "2Gi"}},
    "nodeSelector": {"disk": "ssd"},
    "tolerations": [{"key": "gpu", "operator": "Exists"}],
    "affinity": {"nodeAffinity": {}},
    "priorityClassName": "high",
    "runtimeClassName": "gvisor",
    "imagePullSecrets": [{"name": "regcred"}],
    "drain": {"timeoutSeconds": 60},
    "disruption": {"minAvailable": 1},
}

TUNED = {
    "engine": {"backend": "native", "quantization": "int8", "prefixCache": False, "cacheEvents": True,
               "tracesEndpoint": "http://collector:4318/v1/traces"},
    "limits": {"kvCacheMemory": "auto", "maxQueuedTokens": 65536, "maxQueueWaitSeconds": 30},
    "scheduling": {"policy": "sjf", "targetStepMilliseconds": 100, "stepsInFlight": 2},
    "topologySpreadConstraints": [
        {"maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "ScheduleAnyway"}
    ],
    "podLabels": {"team": "search"},
    "podAnnotations": {"prometheus.io/scrape": "true"},
    "rollout": {"maxSurge": 0, "maxUnavailable": "25%", "progressDeadlineSeconds": 600},
    "revisionHistoryLimit": 0,
}  # fmt: skip

PRIVATE = {
    "model": {"name": "tiny", "manifestRef": {"name": "tiny-v1"}, "digest": DIGEST,
              "tokenSecretRef": {"name": "hub", "key": "token"}, "caConfigMapRef": {"name": "company", "key": "ca.pem"},
              "credentialsSecretRef": {"name": "reader"}, "endpoint": "https://hub.test"},
    "engine": {"env": [{"name": "PINRAIL_SOURCE_TOKEN", "value": "old"}, {"name": "OMP_NUM_THREADS", "value": "2"}]},
}  # fmt: skip

CONFINED = {
    "engine": {"tracesEndpoint": "http://collector.obs:4318/v1/traces"},
    "security": {
        "networkPolicy": {
            "enabled": True,
            "from": [{"podSelector": {}}, {"namespaceSelector": {"matchLabels": {"team": "gateways"}}}],
            "egressPorts": [9000],
        }
    },
}


def first_plan(asked: InferenceService, uri: str = "pvc://models/tiny/v1") -> Plan:
    return plan_for(asked, observed(manifest=manifest(uri)), None, IMAGE, None)


def settled(plan: Plan) -> list[Any]:
    """What stays of a plan's objects: a newborn Deployment is applied again, with its stamp."""
    return [dict(o) for o in (*plan.policies, *(o for o in plan.apply if "annotations" in o["metadata"]), *plan.settle)]


def decision(policy: ScalingPolicy, current: int, usage: float) -> Decision:
    reports = [Report(load(usage))] * current
    return decide(policy, reports, current=current, starting=0, history=(), now=0.0)


@pytest.mark.parametrize(
    ("name", "plan"),
    [
        ("volume", first_plan(service(**RICH))),
        ("web", first_plan(service(), "https://models.test/tiny/")),
        ("tuned", first_plan(service(**TUNED))),
        ("private", first_plan(service(**PRIVATE), "https://models.test/tiny/")),
        ("cached-claim", first_plan(cached(), "https://models.test/tiny/")),
        ("cached-host", first_plan(cached({"hostPath": {"path": "/var/cache/pinrail"}}), "s3://models/tiny")),
        ("confined", first_plan(service(**CONFINED).asked_from("pinrail-system"), "https://models.test:8443/tiny/")),
    ],
    ids=["volume", "web", "tuned", "private", "cached-claim", "cached-host", "confined"],
)
def test_the_first_plan_is_the_golden_one(name: str, plan: Plan) -> None:
    """Where a pod differs from the golden one, raise pods.TEMPLATE_VERSION: every service rolls."""
    file = GOLDEN / f"{name}.yaml"
    rendered = yaml.safe_dump_all(settled(plan), sort_keys=False, width=120)
    if not file.exists():
        file.write_text(rendered)
    assert list(yaml.safe_load_all(file.read_text())) == list(yaml.safe_load_all(rendered))
    assert plan.scale is not None


def test_a_settled_service_has_nothing_to_do() -> None:
    plan = plan_for(service(), observed(live_objects(service())), None, IMAGE, None)
    assert plan == Plan()
    assert plan.is_empty
    assert str(plan) == "nothing to do"


def test_a_plan_with_any_part_is_not_empty() -> None:
    body = {"kind": "Service", "metadata": {"name": "chat"}, "spec": {"replicas": 1}}
    parts = [Plan(apply=(body,)), Plan(scale=body), Plan(settle=(body,)), Plan(delete=(Ref("ConfigMap", "old"),))]
    assert not any(plan.is_empty for plan in parts)


def test_without_a_manifest_there_is_no_target() -> None:
    assert target_revision(service(), observed(manifest=None), IMAGE) == ""
    assert target_revision(service(), observed(), IMAGE) == target(service())


def test_the_applied_deployment_says_nothing_of_replicas() -> None:
    (deployment,) = first_plan(service()).settle
    assert "replicas" not in deployment["spec"]
    live = live_objects(service(nodeSelector={"disk": "ssd"}))
    record, drifted = plan_for(service(), observed(live), None, IMAGE, None).apply
    assert (record["kind"], drifted["kind"]) == ("ControllerRevision", "Deployment")
    assert drifted == deployment


@pytest.mark.parametrize("asked", [service(), service(replicas=0), scaled(3), scaled(3, mode="Paused")], ids=str)
def test_a_new_deployment_is_born_with_its_replicas(asked: InferenceService) -> None:
    plan, least = first_plan(asked), asked.least_replicas
    newborn = plan.apply[-1]
    assert (newborn["kind"], newborn["spec"]["replicas"]) == ("Deployment", least)
    assert "annotations" not in newborn["metadata"]
    assert plan.scale is not None
    assert plan.scale["spec"] == {"replicas": least}
    assert str(plan).endswith(f"apply Deployment chat, scale chat to {least}, apply Deployment chat")


@pytest.mark.parametrize("asked", [service(), scaled(2, mode="Paused"), scaled(2)], ids=str)
def test_a_birth_that_was_interrupted_is_ended_by_the_next_reconcile(asked: InferenceService) -> None:
    live = live_objects(asked)
    del live[Ref("Deployment", "chat")]["metadata"]["annotations"]
    plan = plan_for(asked, observed(live), None, IMAGE, None)
    assert str(plan) == "scale chat to 2, apply Deployment chat"


@pytest.mark.parametrize("asked", [service(), scaled()], ids=["fixed", "scaled"])
def test_suspended_runs_no_pods_and_keeps_the_rest(asked: InferenceService) -> None:
    asked = dataclasses.replace(asked, suspended=True)
    plan = plan_for(asked, observed(live_objects(asked)), None, IMAGE, None)
    assert str(plan) == "scale chat to 0"
    assert target(asked) == target(service())


@pytest.mark.parametrize("mode", list(ScalingMode))
def test_what_was_suspended_begins_with_its_minimum(mode: str) -> None:
    asked = scaled(3, mode=mode)
    plan = plan_for(asked, observed(live_objects(asked, replicas=0)), None, IMAGE, None)
    assert str(plan) == "scale chat to 3"


def test_how_pods_are_replaced_rolls_none() -> None:
    changed = service(rollout={"maxSurge": "50%", "progressDeadlineSeconds": 60}, revisionHistoryLimit=10)
    (deployment,) = plan_for(changed, observed(live_objects(service())), None, IMAGE, None).apply
    assert deployment["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": "50%", "maxUnavailable": 0}
    assert deployment["spec"]["progressDeadlineSeconds"] == 60
    assert deployment["spec"]["revisionHistoryLimit"] == 10
    assert target(changed) == target(service())


def test_a_users_label_never_replaces_ours() -> None:
    asked = service(podLabels={"team": "search"})
    labels = pods.template(asked, manifest(), IMAGE)["metadata"]["labels"]
    assert labels == {"team": "search", **names.labels(asked), names.REVISION: target(asked)}


@pytest.mark.parametrize(("given", "counted"), [(None, LABELS), ({"a": "b"}, {"a": "b"})], ids=["none", "own"])
def test_a_spread_constraint_without_a_selector_counts_the_services_pods(given: Any, counted: dict[str, str]) -> None:
    constraint = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}
    asked = service(
        topologySpreadConstraints=[constraint | ({"labelSelector": {"matchLabels": given}} if given else {})]
    )
    (made,) = pods.template(asked, manifest(), IMAGE)["spec"]["topologySpreadConstraints"]
    assert made == {**constraint, "labelSelector": {"matchLabels": counted}}


@pytest.mark.parametrize(
    "stopped",
    [
        pytest.param({"blocker": Blocker(Blocked.DIGEST_MISMATCH, "x")}, id="blocked"),
        pytest.param({"paused": True}, id="paused"),
        pytest.param({"manifest": None}, id="no manifest"),
    ],
)
def test_nothing_is_touched(stopped: dict[str, Any]) -> None:
    asked = service(paused=stopped.get("paused", False), nodeSelector={"disk": "ssd"})
    seen = observed(live_objects(service(), replicas=1), manifest=stopped.get("manifest", manifest()))
    assert plan_for(asked, seen, stopped.get("blocker"), IMAGE, None).is_empty


@pytest.mark.parametrize("kind", ["Deployment", "Service", "ConfigMap", "PodDisruptionBudget"])
def test_a_missing_object_is_applied_alone(kind: str) -> None:
    live = {ref: o for ref, o in live_objects(service()).items() if ref.kind != kind}
    known = (record(target(service())),)
    plan = plan_for(service(), observed(live, history=known), None, IMAGE, None)
    assert [o["kind"] for o in plan.apply] == [kind]


@pytest.mark.parametrize(
    ("asked", "current", "usage", "written"),
    [
        pytest.param(service(replicas=3), 2, None, 3, id="a fixed number is written"),
        pytest.param(service(replicas=2), 2, None, None, id="a fixed number that holds is not"),
        pytest.param(scaled(2), 0, None, 2, id="a new service starts with its minimum"),
        pytest.param(scaled(), 2, 1.0, 3, id="the scaler's number is written"),
        pytest.param(scaled(), 2, 0.8, None, id="the scaler keeps what there is"),
        pytest.param(scaled(mode="Recommend"), 2, 1.0, None, id="a recommendation is not written"),
        pytest.param(scaled(mode="Paused"), 2, None, None, id="a paused scaler leaves what there is"),
    ],
)
def test_replicas(asked: InferenceService, current: int, usage: float | None, written: int | None) -> None:
    live = live_objects(asked, replicas=current) if current else {}
    said = decision(asked.scaling, current, usage) if asked.scaling and usage is not None else None
    plan = plan_for(asked, observed(live), None, IMAGE, said)
    assert (plan.scale["spec"]["replicas"] if plan.scale else None) == written


def test_config_maps_of_older_pins_go_when_no_pod_mounts_them() -> None:
    old = names.config_map(service(), manifest(weights="8" * 64))
    live = live_objects(service())
    current = next(o for ref, o in live.items() if ref.kind == "ConfigMap")
    live[Ref("ConfigMap", old)] = {**copy.deepcopy(current), "metadata": {**current["metadata"], "name": old}}
    plan = plan_for(service(), observed(live), None, IMAGE, None)
    assert plan == Plan(delete=(Ref("ConfigMap", old),))
    rolling = {**live, **live_objects(service(), updated=1)}
    assert plan_for(service(), observed(rolling), None, IMAGE, None).delete == ()


def test_the_config_map_of_a_new_pin_stays_while_the_deployment_is_still_of_the_old_one() -> None:
    old = live_objects(service())
    new = {ref: o for ref, o in live_objects(service(), pinned=manifest("s3://bucket/x")).items() if ref not in old}
    plan = plan_for(service(), observed({**old, **new}, manifest=manifest("s3://bucket/x")), None, IMAGE, None)
    assert ([ref.kind for ref in new], plan.delete) == (["ConfigMap"], ())


def test_a_config_map_of_someone_else_stays() -> None:
    live = live_objects(service())
    live[Ref("ConfigMap", "theirs")] = {"kind": "ConfigMap", "metadata": {"name": "theirs", "labels": LABELS}}
    assert plan_for(service(), observed(live), None, IMAGE, None).is_empty


@pytest.mark.parametrize(
    ("change", "rolls"),
    [
        ({}, False),
        ({"replicas": 7}, False),
        ({"paused": True}, False),
        ({"disruption": {"minAvailable": 1}}, False),
        ({"model": {"name": "tiny", "manifestRef": {"name": "renamed"}, "digest": DIGEST}}, False),
        ({"model": {"name": "other", "manifestRef": {"name": "tiny-v1"}, "digest": DIGEST}}, True),
        ({"model": {"name": "tiny", "manifestRef": {"name": "tiny-v1"}, "digest": "sha256:" + "0" * 64}}, True),
        ({"limits": {"maxNumSeqs": 8}}, True),
        ({"limits": {"maxNumSeqs": 32}}, False),
        ({"engine": {"env": [{"name": "A", "value": "1"}]}}, True),
        ({"resources": {"limits": {"memory": "1Gi"}}}, True),
        ({"nodeSelector": {"disk": "ssd"}}, True),
        ({"tolerations": [{"operator": "Exists"}]}, True),
        ({"affinity": {"podAffinity": {}}}, True),
        ({"priorityClassName": "high"}, True),
        ({"runtimeClassName": "gvisor"}, True),
        ({"imagePullSecrets": [{"name": "r"}]}, True),
        ({"drain": {"timeoutSeconds": 5}}, True),
        ({"verification": {"mode": "Warn"}}, True),
        ({"suspend": True}, False),
        ({"rollout": {"maxSurge": 2}}, False),
        ({"revisionHistoryLimit": 1}, False),
        ({"engine": {"backend": "auto", "quantization": "none", "prefixCache": True, "cacheEvents": False}}, False),
        ({"engine": {"backend": "native"}}, True),
        ({"engine": {"prefixCache": False}}, True),
        ({"scheduling": {"policy": "fcfs"}}, False),
        ({"scheduling": {"policy": "edf"}}, True),
        ({"limits": {"kvCacheMemory": "512Mi"}}, False),
        ({"limits": {"kvCacheMemory": "auto"}}, True),
        ({"limits": {"maxQueueWaitSeconds": 1}}, True),
        ({"security": {}}, False),
        ({"security": {"apiKeySecretRef": {"name": "keys"}}}, True),
        ({"security": {"networkPolicy": {"enabled": True, "from": [{"podSelector": {}}]}}}, False),
        ({"parallelism": {"tensor": 1, "pipeline": 1}}, False),
        ({"topologySpreadConstraints": []}, False),
        ({"topologySpreadConstraints": [{"maxSkew": 1}]}, True),
        ({"podLabels": {}}, False),
        ({"podLabels": {"team": "a"}}, True),
        ({"podAnnotations": {"a": "b"}}, True),
        ({"engine": {"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]}}, True),
        ({"resourceClaims": []}, False),
        ({"resourceClaims": [{"name": "gpu", "resourceClaimName": "one"}]}, True),
        ({"disruption": {"protectStartup": False}}, False),
        ({"disruption": {"protectStartup": True}}, True),
    ],
    ids=str,
)
def test_what_rolls_the_pods(change: dict[str, Any], rolls: bool) -> None:
    assert (target(service(**change)) != target(service())) is rolls


def test_the_source_and_the_image_roll_the_pods_too() -> None:
    base = target(service())
    assert target(service(), manifest("pvc://models/elsewhere")) != base
    assert pods.revision(service(), manifest(), "other@sha256:" + "0" * 64) != base


@pytest.mark.parametrize(
    ("counts", "complete"),
    [
        ({}, True),
        ({"updated": 1}, False),
        ({"observed_generation": 0}, False),
        ({"total": 3}, False),
        ({"total": 0, "updated": 0}, False),
    ],
    ids=str,
)
def test_is_rolled_out(counts: dict[str, int], complete: bool) -> None:
    workload = observed(live_objects(service(), **counts)).workload
    assert is_rolled_out(workload, target(service())) is complete
    assert not is_rolled_out(workload, "another")


def test_a_service_of_no_replicas_is_rolled_out() -> None:
    workload = observed(live_objects(service(replicas=0), replicas=0)).workload
    assert is_rolled_out(workload, target(service()))


def test_owner_references_let_everything_go_with_the_service() -> None:
    for applied in first_plan(service()).apply:
        (owner,) = applied["metadata"]["ownerReferences"]
        assert (owner["uid"], owner["kind"], owner["controller"]) == (UID, "InferenceService", True)


def test_a_pod_passes_the_restricted_profile() -> None:
    """The rules of Pod Security's `restricted`, and a root file system that nothing writes to."""
    for uri in ("pvc://models/x", "https://models.test/x/"):
        spec = pods.template(service(), manifest(uri), IMAGE)["spec"]
        assert spec["securityContext"]["runAsNonRoot"]
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert spec["automountServiceAccountToken"] is False
        assert all(set(v) & {"configMap", "emptyDir", "persistentVolumeClaim"} for v in spec["volumes"])
        for container in (*spec.get("initContainers", ()), *spec["containers"]):
            security = container["securityContext"]
            assert security["capabilities"] == {"drop": ["ALL"]}
            assert security["allowPrivilegeEscalation"] is False
            assert security["readOnlyRootFilesystem"] is True


def test_keys_are_files_of_the_engine_alone_and_never_variables() -> None:
    asked = service(security={"apiKeySecretRef": {"name": "chat-keys"}})
    spec = pods.template(asked, manifest("https://models.test/x/"), IMAGE)["spec"]
    (volume,) = [v for v in spec["volumes"] if v["name"] == "api-keys"]
    assert volume["secret"] == {"secretName": "chat-keys", "defaultMode": 0o440, "optional": True}
    (engine,), (fetch,) = spec["containers"], spec["initContainers"]
    (mount,) = [m for m in engine["volumeMounts"] if m["name"] == "api-keys"]
    assert mount == {"name": "api-keys", "mountPath": pods.API_KEYS_DIR, "readOnly": True}
    assert f"--api-keys-dir={pods.API_KEYS_DIR}" in engine["args"]
    assert "api-keys" not in [m["name"] for m in fetch["volumeMounts"]]
    assert [v["name"] for v in engine["env"]] == ["HOME"]


def test_a_pod_is_given_time_to_drain() -> None:
    spec = pods.template(service(drain={"timeoutSeconds": 45}), manifest(), IMAGE)["spec"]
    assert spec["terminationGracePeriodSeconds"] == pods.PRE_STOP + 45 + 10
    assert spec["containers"][0]["lifecycle"]["preStop"] == {"sleep": {"seconds": pods.PRE_STOP}}


def test_a_claim_without_a_folder_is_mounted_whole() -> None:
    (engine,) = pods.template(service(), manifest("pvc://models/"), IMAGE)["spec"]["containers"]
    mount = next(m for m in engine["volumeMounts"] if m["name"] == "model")
    assert "subPath" not in mount
    assert mount["readOnly"] is True


def test_the_engine_starts_on_an_argument_line_that_it_parses() -> None:
    from pinrail_contract.launch import LaunchSpec

    (engine,) = pods.template(service(**RICH), manifest(), IMAGE)["spec"]["containers"]
    spec = LaunchSpec.parse(engine["args"][1:])
    assert (spec.host, spec.digest, spec.model_dir) == ("0.0.0.0", DIGEST, "/models")
    assert spec.manifest == "/etc/pinrail/manifest.json"


@pytest.mark.parametrize(("size", "tries"), [(10**9, 720), (700 * 10**9, 2800)])
def test_a_large_model_has_longer_to_start(size: int, tries: int) -> None:
    pinned = manifest()
    large = dataclasses.replace(pinned, files=tuple(dataclasses.replace(f, size=size // 3) for f in pinned.files))
    container = pods.template(service(), large, IMAGE)["spec"]["containers"][0]
    assert container["startupProbe"]["failureThreshold"] == tries


def test_the_engines_container_is_given_nothing_of_the_source() -> None:
    plan = first_plan(service(**PRIVATE), "https://models.test/tiny/")
    spec = plan.settle[0]["spec"]["template"]["spec"]
    (engine,) = spec["containers"]
    assert all("valueFrom" not in v for v in engine["env"])
    assert not {m["name"] for m in engine["volumeMounts"]} - {"manifest", "model", "tmp"}
    variables = [v["name"] for v in spec["initContainers"][0]["env"]]
    assert len(variables) == len(set(variables))


def test_a_bucket_is_read_with_the_keys_of_a_secret() -> None:
    plan = first_plan(service(**PRIVATE), "s3://models/tiny")
    (fetch,) = plan.settle[0]["spec"]["template"]["spec"]["initContainers"]
    variables = {v["name"]: v for v in fetch["env"]}
    assert variables["AWS_ENDPOINT_URL"]["value"] == "https://hub.test"
    key, region = (variables[name]["valueFrom"]["secretKeyRef"] for name in ("AWS_ACCESS_KEY_ID", "AWS_REGION"))
    assert key == {"name": "reader", "key": "AWS_ACCESS_KEY_ID"}
    assert region == {"name": "reader", "key": "AWS_REGION", "optional": True}


@pytest.mark.parametrize(
    ("part", "used_by", "of_no_use_to"),
    [
        ("tokenSecretRef", "https://models.test/tiny/", "s3://models/tiny"),
        ("credentialsSecretRef", "s3://models/tiny", "https://models.test/tiny/"),
        ("endpoint", "s3://models/tiny", "https://models.test/tiny/"),
        ("caConfigMapRef", "https://models.test/tiny/", "pvc://models/tiny"),
    ],
)
def test_pods_roll_when_what_opens_their_source_changes(part: str, used_by: str, of_no_use_to: str) -> None:
    """And only where the source makes use of it: else nothing of it reaches a pod."""
    with_it = service(**PRIVATE)
    without = service(**{**PRIVATE, "model": {k: v for k, v in PRIVATE["model"].items() if k != part}})
    assert target(with_it, manifest(used_by)) != target(without, manifest(used_by))
    for elsewhere in (manifest(of_no_use_to), manifest()):
        assert pods.template(with_it, elsewhere, IMAGE) == pods.template(without, elsewhere, IMAGE)
