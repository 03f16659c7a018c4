"""Reconciles against a real API server: what it creates, who owns which field, and what it leaves alone.

No controller runs, so pods are made by hand here, in the words of a kubelet.
"""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from apiserver_documents import pin, service
from operator_builders import DIGEST, IMAGE, load, manifest

from pinrail_contract.termination import Reason, Termination
from pinrail_operator.cluster import Cluster
from pinrail_operator.errors import Conflict, NotLeader
from pinrail_operator.events import Event, EventType
from pinrail_operator.metrics import Scrape
from pinrail_operator.reconcile import Reconciler
from pinrail_operator.types import ServiceKey

pytestmark = pytest.mark.apiserver

KINDS = ("deployment", "service", "configmap", "poddisruptionbudget", "controllerrevision")
ROOT = Path(__file__).parents[2]
SCALED = {"replicas": None, "scaling": {"minReplicas": 1, "maxReplicas": 4}}


class FixedScraper:
    def __init__(self, usage: float = 0.5) -> None:
        self.usage = usage

    async def scrape(self, pods: Any) -> dict[str, Scrape]:
        return {p.name: Scrape(load(self.usage), DIGEST) for p in pods}


class Operator:
    """Reconciles the service `chat` of one namespace."""

    def __init__(self, cluster: Cluster, namespace: str, usage: float = 0.5) -> None:
        self.key = ServiceKey(namespace, "chat")
        self.reconciler = Reconciler(
            cluster=cluster, scraper=FixedScraper(usage), engine_image=IMAGE, tick=5.0, resync=300.0
        )

    async def __call__(self, times: int = 1) -> None:
        for _ in range(times):
            await self.reconciler.reconcile(self.key)


@pytest.fixture
def operator(cluster: Cluster, kube: Any) -> Operator:
    return Operator(cluster, kube.namespace)


def versions(kube: Any) -> dict[str, str]:
    """Every object of the namespace that is ours or the user's, and the version of its last write."""
    found = kube.get("deployments,services,configmaps,pdb,controllerrevisions,infs,pin,events")["items"]
    return {f"{o['kind']}/{o['metadata']['name']}": o["metadata"]["resourceVersion"] for o in found}


def condition(kube: Any, kind: str) -> tuple[str, str]:
    found = {c["type"]: c for c in kube.get("infs", "chat")["status"]["conditions"]}
    return found[kind]["status"], found[kind]["reason"]


def add_pod(kube: Any, name: str, **status: Any) -> None:
    """A pod of the Deployment, with a status of its kubelet."""
    template = kube.get("deployment", "chat")["spec"]["template"]
    kube.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, **template["metadata"]}} | {
        "spec": template["spec"]
    })  # fmt: skip
    kube.patch_status("pod", name, status)


READY = {"phase": "Running", "podIP": "10.0.0.1", "conditions": [{"type": "Ready", "status": "True"}]}


def roll_out(kube: Any, replicas: int) -> None:
    """What the Deployment's controller would report."""
    generation = kube.get("deployment", "chat")["metadata"]["generation"]
    counts = {"replicas": replicas, "updatedReplicas": replicas, "observedGeneration": generation}
    kube.patch_status("deployment", "chat", counts)


async def test_a_service_becomes_five_objects_that_it_owns(operator: Operator, kube: Any) -> None:
    kube.apply(pin(), service())
    await operator()
    uid = kube.get("infs", "chat")["metadata"]["uid"]
    for kind in KINDS:
        found = kube.get(kind, "-l", "pinrail.dev/service=chat")["items"]
        assert [o["metadata"]["ownerReferences"][0]["uid"] for o in found] == [uid], kind
    assert kube.get("deployment", "chat")["spec"]["replicas"] == 2
    assert condition(kube, "Reconciling") == ("True", "ReplicasStarting")


async def test_a_second_reconcile_writes_nothing(operator: Operator, kube: Any) -> None:
    kube.apply(pin(), service(resources={"requests": {"cpu": "1000m", "memory": "1024Mi"}}))
    await operator()
    await operator()
    before = versions(kube)
    await operator(3)
    assert versions(kube) == before


async def test_every_example_settles(cluster: Cluster, kube: Any) -> None:
    """Applied once, no example is written again: the API server's spelling of a field is never taken for drift."""
    kube("apply", "-f", str(ROOT / "crds" / "examples"))
    names = [i["metadata"]["name"] for i in kube.get("infs")["items"]]
    operator = Operator(cluster, kube.namespace)
    for _ in range(2):
        for name in names:
            await operator.reconciler.reconcile(ServiceKey(kube.namespace, name))
    before = versions(kube)
    for name in names:
        await operator.reconciler.reconcile(ServiceKey(kube.namespace, name))
    assert versions(kube) == before
    assert {f"Deployment/{name}" for name in names} <= set(before)


SPELLED_OTHERWISE = {
    "an empty variable": {"engine": {"env": [{"name": "X", "value": ""}]}},
    "an empty list": {"affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}}},
    "empty texts": {"tolerations": [{"key": "", "operator": "Exists", "value": ""}]},
    "half a core": {"resources": {"requests": {"cpu": ".5"}}},
    "an exabyte": {"resources": {"requests": {"memory": "0.001E"}}},
}


@pytest.mark.parametrize("spec", [pytest.param(spec, id=name) for name, spec in SPELLED_OTHERWISE.items()])
async def test_what_the_api_server_spells_otherwise_is_not_applied_again(
    operator: Operator, kube: Any, spec: dict[str, Any]
) -> None:
    kube.apply(pin(), service(**spec))
    await operator()
    assert await operator.reconciler.reconcile(operator.key) == 300.0


async def test_a_variable_that_someone_added_is_not_fought_over(operator: Operator, kube: Any) -> None:
    kube.apply(pin(), service())
    await operator()
    kube("set", "env", "deployment/chat", "FOO=1")
    assert await operator.reconciler.reconcile(operator.key) == 300.0


async def test_each_fact_has_one_writer(operator: Operator, kube: Any) -> None:
    kube.apply(pin(), service())
    await operator(2)
    live = json.loads(kube("get", "deployment", "chat", "-o", "json", "--show-managed-fields"))
    owned = {m["manager"]: m["fieldsV1"] for m in live["metadata"]["managedFields"]}
    assert set(owned) == {"pinrail", "pinrail-scaler"}
    assert owned["pinrail-scaler"] == {"f:spec": {"f:replicas": {}}}
    assert "f:replicas" not in owned["pinrail"]["f:spec"]


async def test_users_objects_carry_no_trace_of_the_operator(operator: Operator, kube: Any) -> None:
    kube.apply(pin(), service())
    asked = kube.get("infs", "chat")
    await operator(2)
    live = kube.get("infs", "chat")
    assert live["spec"] == asked["spec"]
    assert live["metadata"].get("finalizers") is None
    assert live["metadata"].get("annotations") == asked["metadata"].get("annotations")


async def test_an_edit_of_the_deployment_is_taken_back(operator: Operator, kube: Any) -> None:
    kube.apply(pin(), service())
    await operator()
    kube("set", "image", "deployment/chat", "engine=someone/else:latest")
    kube("scale", "deployment/chat", "--replicas=7")
    await operator()
    live = kube.get("deployment", "chat")
    assert live["spec"]["template"]["spec"]["containers"][0]["image"] == IMAGE
    assert live["spec"]["replicas"] == 2


async def test_a_field_that_is_taken_out_of_the_spec_goes(operator: Operator, kube: Any) -> None:
    kube.apply(pin(), service(nodeSelector={"disk": "ssd"}))
    await operator()
    kube.apply(service())
    await operator()
    assert "nodeSelector" not in kube.get("deployment", "chat")["spec"]["template"]["spec"]


async def test_a_missing_manifest_starts_nothing(operator: Operator, kube: Any) -> None:
    kube.apply(service())
    await operator()
    assert condition(kube, "Reconciling") == ("True", "ManifestMissing")
    operator.reconciler.now = lambda: datetime.now(UTC) + timedelta(seconds=30)
    await operator()
    assert not kube.exists("deployment", "chat")
    assert condition(kube, "ModelVerified") == ("False", "ManifestMissing")
    assert condition(kube, "Stalled") == ("True", "ManifestMissing")
    (event,) = kube.get("events")["items"]
    assert "pinrail pin" in event["message"]
    kube.apply(pin())
    await operator()
    assert kube.exists("deployment", "chat")


async def test_a_digest_that_is_not_the_manifests_leaves_what_serves(operator: Operator, kube: Any) -> None:
    kube.apply(pin(), service())
    await operator()
    before = {k: v for k, v in versions(kube).items() if not k.startswith(("InferenceService", "Event"))}
    kube.apply(service(model={**service()["spec"]["model"], "digest": "sha256:" + "0" * 64}))
    await operator()
    after = {k: v for k, v in versions(kube).items() if not k.startswith(("InferenceService", "Event"))}
    assert after == before
    assert condition(kube, "Stalled") == ("True", "DigestMismatch")
    assert kube.get("infs", "chat")["status"]["observedGeneration"] == 2


async def test_a_new_pin_rolls_and_the_old_manifest_goes_when_it_has(operator: Operator, kube: Any) -> None:
    kube.apply(pin(), service())
    await operator()
    roll_out(kube, 2)
    other = manifest(weights="9" * 64)
    kube.apply(pin("9" * 64, "tiny-v2"))
    kube.apply(service(model={"name": "tiny", "manifestRef": {"name": "tiny-v2"}, "digest": other.digest}))
    await operator(2)
    assert len(kube.get("configmap", "-l", "pinrail.dev/service=chat")["items"]) == 2
    roll_out(kube, 2)
    await operator()
    (left,) = kube.get("configmap", "-l", "pinrail.dev/service=chat")["items"]
    assert "9" * 64 in left["data"]["manifest.json"]


async def test_ready_pods_are_counted_and_verified(operator: Operator, kube: Any) -> None:
    kube.apply(pin(), service())
    await operator()
    for name in ("chat-a", "chat-b"):
        add_pod(kube, name, **READY)
    roll_out(kube, 2)
    await operator()
    status = kube.get("infs", "chat")["status"]
    assert status["model"] == {"digest": DIGEST, "verifiedReplicas": 2}
    assert (status["replicas"], status["readyReplicas"]) == (2, 2)
    assert condition(kube, "Ready") == ("True", "Serving")
    assert condition(kube, "Reconciling") == ("False", "Settled")
    kube("wait", "--for=condition=Ready", "infs/chat", "--timeout=1s")


async def test_a_pod_with_wrong_files_is_named(operator: Operator, kube: Any) -> None:
    kube.apply(pin(), service())
    await operator()
    said = Termination(Reason.MODEL_MISMATCH, "tokenizer.json: truncated: has 3 bytes, want 1563271")
    ended = {"terminated": {"exitCode": 64, "message": said.render(), "reason": "Error"}}
    engine = {"name": "engine", "image": "x", "imageID": "x", "ready": False, "restartCount": 1, "lastState": ended,
              "state": {"waiting": {"reason": "CrashLoopBackOff"}}}  # fmt: skip
    add_pod(kube, "chat-a", phase="Running", containerStatuses=[engine])
    await operator(2)
    assert condition(kube, "ModelVerified") == ("False", "ModelMismatch")
    (event,) = kube.get("events", "--field-selector=reason=ModelMismatch")["items"]
    assert "tokenizer.json: truncated" in event["message"]
    assert "pinrail verify" in event["message"]
    assert event["type"] == "Warning"


async def test_load_writes_replicas_and_nothing_else(cluster: Cluster, kube: Any) -> None:
    operator = Operator(cluster, kube.namespace, usage=1.0)
    kube.apply(pin(), service(**SCALED))
    await operator()
    add_pod(kube, "chat-a", **READY)
    await operator()
    assert kube.get("deployment", "chat")["spec"]["replicas"] == 2
    assert kube.get("infs", "chat")["status"]["scaling"]["reason"] == "CacheDemand"
    (event,) = kube.get("events", "--field-selector=reason=Scaled")["items"]
    assert event["message"].startswith("from 1 to 2 replicas: 100 of 100 KV blocks")


@pytest.mark.parametrize("spec", [{"replicas": 0}, {**SCALED, "suspend": True}], ids=["none", "suspended"])
async def test_no_pod_is_asked_for_even_for_a_moment(operator: Operator, kube: Any, spec: dict[str, Any]) -> None:
    """It is made, then stamped: two generations; one whose replicas changed in between would be of a third."""
    kube.apply(pin(), service(**spec))
    await operator(2)
    live = kube.get("deployment", "chat")
    assert (live["metadata"]["generation"], live["spec"]["replicas"]) == (2, 0)
    roll_out(kube, 0)
    await operator()
    assert condition(kube, "Ready") == ("True", "Suspended" if "suspend" in spec else "NoReplicasWanted")
    assert condition(kube, "Reconciling") == ("False", "Settled")


@pytest.mark.parametrize("writes", range(1, 8))
async def test_a_birth_that_dies_at_any_write_ends_the_same(
    operator: Operator, kube: Any, monkeypatch: pytest.MonkeyPatch, writes: int
) -> None:
    kube.apply(pin(), service(replicas=0))
    done, apply = 0, Cluster._apply

    async def dies(self: Cluster, *words: Any) -> None:
        nonlocal done
        done += 1
        if done > writes:
            raise ConnectionError("killed")
        await apply(self, *words)

    with monkeypatch.context() as patched:
        patched.setattr(Cluster, "_apply", dies)
        if writes < 7:
            with pytest.raises(ConnectionError):
                await operator()
    await operator(2)
    live = json.loads(kube("get", "deployment", "chat", "-o", "json", "--show-managed-fields"))
    owned = {m["manager"]: m["fieldsV1"] for m in live["metadata"]["managedFields"]}
    assert owned["pinrail-scaler"] == {"f:spec": {"f:replicas": {}}}
    assert "f:replicas" not in owned["pinrail"]["f:spec"]
    assert (live["metadata"]["generation"], live["spec"]["replicas"]) == (2, 0)


async def test_someone_elses_deployment_is_not_taken_over(operator: Operator, kube: Any) -> None:
    kube("create", "deployment", "chat", "--image=theirs")
    kube.apply(pin(), service())
    await operator()
    assert kube.get("deployment", "chat")["spec"]["template"]["spec"]["containers"][0]["image"] == "theirs"
    assert condition(kube, "Stalled") == ("True", "NameTaken")


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"nodeSelector": {"a b": "x"}}, "nodeSelector"),
        ({"tolerations": [{"operator": "Exists", "value": "x"}]}, "tolerations"),
        ({"podLabels": {"team": "a b"}}, "labels"),
    ],
)
async def test_what_the_api_server_refuses_is_told_in_its_words(
    operator: Operator, kube: Any, spec: dict[str, Any], said: str
) -> None:
    kube.apply(pin(), service(**spec))
    await operator()
    assert condition(kube, "Stalled") == ("True", "Refused")
    (event,) = kube.get("events")["items"]
    assert said in event["message"]


async def test_a_paused_service_is_left_alone(operator: Operator, kube: Any) -> None:
    kube.apply(pin(), service())
    await operator()
    kube.apply(service(paused=True, replicas=5))
    await operator()
    assert kube.get("deployment", "chat")["spec"]["replicas"] == 2
    assert condition(kube, "Reconciling") == ("False", "Paused")


async def test_a_status_that_is_based_on_an_old_version_is_not_written(cluster: Cluster, kube: Any) -> None:
    kube.apply(pin(), service())
    body = await cluster.service(ServiceKey(kube.namespace, "chat"))
    assert body is not None
    kube.apply(service(replicas=3))
    with pytest.raises(Conflict, match="modified"):
        await cluster.write_status(body, {"replicas": 1})


async def test_a_follower_writes_nothing(cluster: Cluster, kube: Any) -> None:
    kube.apply(pin(), service())
    before = versions(kube)
    with pytest.raises(NotLeader):
        await Operator(Cluster(replace(cluster.api, may_write=lambda: False)), kube.namespace)()
    assert versions(kube) == before


async def test_two_equal_events_are_one(cluster: Cluster, kube: Any) -> None:
    kube.apply(service())
    body = await cluster.service(ServiceKey(kube.namespace, "chat"))
    assert body is not None
    for _ in range(2):
        await cluster.post(body, Event(EventType.NORMAL, "Tested", f"at {datetime.now(UTC):%Y}"))
    (event,) = kube.get("events")["items"]
    assert event["involvedObject"]["kind"] == "InferenceService"
    assert "Tested" in kube("describe", "infs", "chat")


async def test_pods_pass_the_restricted_profile(operator: Operator, kube: Any) -> None:
    kube("label", "namespace", kube.namespace, "pod-security.kubernetes.io/enforce=restricted")
    kube.apply(pin(uri="https://models.test/tiny/"), service())
    await operator()
    add_pod(kube, "chat-a", **READY)
    assert kube.exists("pod", "chat-a")


async def test_an_unknown_namespace_is_refused_in_words(cluster: Cluster) -> None:
    from pinrail_operator.plan import Plan

    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x", "namespace": "no-such"}}
    outcome = await cluster.apply("no-such", Plan(apply=(body,)))
    assert 'namespaces "no-such" not found' in str(outcome.refused)
    assert (outcome.done, outcome.is_scaled) == (Plan(), False)


async def test_a_token_stays_in_its_secret(operator: Operator, kube: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Nor does the operator need the right to read it: the kubelet alone does."""
    kube.apply({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "hub"}, "stringData": {"token": "canary"}})
    model = {**service()["spec"]["model"], "tokenSecretRef": {"name": "hub", "key": "token"}}
    kube.apply(pin(uri="https://models.test/tiny/"), service(model=model))
    await operator(2)
    waits = {"reason": "CreateContainerConfigError", "message": "couldn't find key token in Secret hub"}
    add_pod(kube, "chat-1", initContainerStatuses=[
        {"name": "fetch", "state": {"waiting": waits}, "ready": False, "image": "", "imageID": "", "restartCount": 0}
    ])  # fmt: skip
    await operator(2)
    assert condition(kube, "WorkloadReady") == ("False", "CreateContainerConfigError")
    kinds = "deployments,pods,services,configmaps,pdb,infs,pin,events,controllerrevisions"
    seen = kube("get", kinds, "-o", "json") + caplog.text
    assert "couldn't find key token" in seen
    assert "canary" not in seen
    assert "Y2FuYXJ5" not in seen
    assert "Y2FuYXJ5" in kube("get", "secret", "hub", "-o", "yaml")
