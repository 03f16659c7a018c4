"""Roll-outs that find no node, and scale-ins, against a real API server.

No controller and no scheduler run, so pods, ReplicaSets and counts are written by hand here, in their words.
"""

import asyncio
import json
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
from apiserver_documents import pin, service
from object_graph import normalised
from operator_builders import DIGEST, IMAGE, load

from pinrail_operator import diff_command, explain_command, names
from pinrail_operator.api import Api
from pinrail_operator.cluster import Cluster
from pinrail_operator.errors import NotLeader
from pinrail_operator.manifests import replicas
from pinrail_operator.metrics import Scrape
from pinrail_operator.plan import Plan
from pinrail_operator.reconcile import Reconciler
from pinrail_operator.types import InferenceService, ServiceKey

pytestmark = pytest.mark.apiserver

READY = {"phase": "Running", "podIP": "10.0.0.1", "conditions": [{"type": "Ready", "status": "True"}]}
WORDS = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu"
NO_NODE = {
    "phase": "Pending",
    "conditions": [
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": WORDS,
         "lastTransitionTime": "2026-01-02T03:04:05Z"},
    ],
}  # fmt: skip


class Usage:
    """Every pod says how full its cache is."""

    def __init__(self, **usage: float) -> None:
        self.usage = usage

    async def scrape(self, pods: Any) -> dict[str, Scrape]:
        return {p.name: Scrape(load(self.usage.get(p.name[-1], 0.5)), DIGEST) for p in pods}


async def look(cluster: Cluster, namespace: str, times: int = 1, **usage: float) -> None:
    """Reconciles of an operator that was just started."""
    one = Reconciler(cluster=cluster, scraper=Usage(**usage), engine_image=IMAGE, tick=5.0, resync=300.0)
    for _ in range(times):
        await one.reconcile(ServiceKey(namespace, "chat"))


def add_pod(kube: Any, name: str, status: dict[str, Any]) -> None:
    template = kube.get("deployment", "chat")["spec"]["template"]
    kube.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, **template["metadata"]},
                "spec": template["spec"]})  # fmt: skip
    kube.patch_status("pod", name, status)


def add_replica_set(kube: Any, name: str) -> None:
    template = kube.get("deployment", "chat")["spec"]["template"]
    labels = {**template["metadata"]["labels"], "pod-template-hash": name}
    spec = {"selector": {"matchLabels": labels}, "template": {**template, "metadata": {"labels": labels}}}
    kube.apply({"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": name, "labels": labels},
                "spec": spec})  # fmt: skip


def tell(kube: Any, total: int, updated: int, **status: Any) -> None:
    generation = kube.get("deployment", "chat")["metadata"]["generation"]
    counts = {"replicas": total, "updatedReplicas": updated, "observedGeneration": generation}
    kube.patch_status("deployment", "chat", counts | status)


def condition(kube: Any, kind: str) -> tuple[str, str, str]:
    found = {c["type"]: c for c in kube.get("infs", "chat")["status"]["conditions"]}
    return found[kind]["status"], found[kind]["reason"], found[kind]["message"]


async def stuck(cluster: Cluster, kube: Any, policy: str, replicas: int = 1) -> None:
    """A roll-out whose new pod has no node while the old ones serve."""
    rollout = {"onUnschedulable": policy}
    kube.apply(pin(), service(replicas=replicas, rollout=rollout))
    await look(cluster, kube.namespace, 2)
    for i in range(replicas):
        add_pod(kube, f"chat-old-{i}", READY)
    add_replica_set(kube, "chat-old")
    tell(kube, replicas, replicas)
    kube.apply(service(replicas=replicas, rollout=rollout, nodeSelector={"gpu": "new"}))
    await look(cluster, kube.namespace)
    add_pod(kube, "chat-new", NO_NODE)
    add_replica_set(kube, "chat-new")
    tell(kube, replicas + 1, 1)


def strategy(kube: Any) -> tuple[int, int]:
    rolling = kube.get("deployment", "chat")["spec"]["strategy"]["rollingUpdate"]
    return rolling["maxSurge"], rolling["maxUnavailable"]


async def test_wait_says_what_waits_and_what_is_next(cluster: Cluster, kube: Any) -> None:
    await stuck(cluster, kube, "Wait")
    before = kube.get("deployment", "chat")["spec"]
    await look(cluster, kube.namespace)
    status, reason, message = condition(kube, "RolloutComplete")
    assert (status, reason) == ("False", "Unschedulable")
    assert message.startswith(f"pod chat-new has no node since 2026-01-02T03:04:05Z: {WORDS}; next: ")
    assert kube.get("deployment", "chat")["spec"] == before
    settled = kube.get("infs", "chat")["metadata"]["resourceVersion"]
    await look(cluster, kube.namespace, 2)
    assert kube.get("infs", "chat")["metadata"]["resourceVersion"] == settled


async def test_replace_lets_one_go_and_takes_it_back(cluster: Cluster, kube: Any) -> None:
    await stuck(cluster, kube, "Replace")
    await look(cluster, kube.namespace, 2)
    assert strategy(kube) == (0, 1)
    assert condition(kube, "RolloutComplete")[:2] == ("False", "Replacing")
    assert "nothing serves until" in condition(kube, "RolloutComplete")[2]
    live = json.loads(kube("get", "deployment", "chat", "-o", "json", "--show-managed-fields"))
    writers = {
        m["manager"] for m in live["metadata"]["managedFields"] if "f:strategy" in m["fieldsV1"].get("f:spec", {})
    }
    assert writers == {"pinrail"}
    kube("delete", "pod", "chat-old-0", "--grace-period=0", "--force")
    kube.patch_status(
        "pod", "chat-new", {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "True"}]}
    )
    tell(kube, 1, 1)
    await look(cluster, kube.namespace, 2)
    assert strategy(kube) == (1, 0)
    assert names.ROLLOUT not in kube.get("deployment", "chat")["metadata"]["annotations"]
    assert condition(kube, "RolloutComplete")[:2] == ("True", "RolledOut")


async def test_abort_goes_back_and_stays_there_until_the_spec_changes(cluster: Cluster, kube: Any) -> None:
    await stuck(cluster, kube, "Abort", 2)
    old = kube.get("replicaset", "chat-old")["spec"]["template"]
    old["metadata"]["labels"].pop("pod-template-hash")
    await look(cluster, kube.namespace)
    live = kube.get("deployment", "chat")
    assert live["spec"]["template"]["spec"] == old["spec"]
    assert live["spec"]["template"]["metadata"]["labels"] == old["metadata"]["labels"]
    kube("delete", "pod", "chat-new", "--grace-period=0", "--force")
    tell(kube, 2, 2)
    await look(cluster, kube.namespace)
    assert condition(kube, "Stalled")[:2] == ("True", "RolloutAborted")
    assert "until the spec changes" in condition(kube, "RolloutComplete")[2]
    assert kube.get("infs", "chat")["status"]["readyReplicas"] == 2
    before = kube.get("deployment,infs")["items"]
    await look(cluster, kube.namespace, 2)
    assert kube.get("deployment,infs")["items"] == before
    kube("set", "image", "deployment/chat", "engine=someone/else:latest")
    await look(cluster, kube.namespace)
    assert kube.get("deployment", "chat")["spec"]["template"]["spec"]["containers"][0]["image"] == IMAGE
    kube.apply(service(rollout={"onUnschedulable": "Abort"}, nodeSelector={"gpu": "other"}))
    await look(cluster, kube.namespace)
    live = kube.get("deployment", "chat")
    assert live["spec"]["template"]["spec"]["nodeSelector"] == {"gpu": "other"}
    assert names.ROLLOUT not in live["metadata"]["annotations"]


def graph(kube: Any) -> list[Any]:
    """All that is ours, without what differs between two runs of the same thing."""
    found = kube.get("deployments,services,configmaps,pdb,infs", "-l", names.SERVICE)["items"]
    found += kube.get("infs")["items"]
    return normalised(found, kube.namespace)


@pytest.mark.parametrize("policy", ["Replace", "Abort"])
async def test_an_operator_that_dies_at_any_write_leaves_the_next_one_to_the_same_end(
    cluster: Cluster, control_plane: Any, kube: Any, policy: str
) -> None:
    await stuck(cluster, kube, policy)
    await look(cluster, kube.namespace, 3)
    undisturbed = graph(kube)
    for writes in count():
        other = replace(kube, namespace=f"{kube.namespace}-{policy.lower()}-{writes}")
        kube("create", "namespace", other.namespace)
        await stuck(cluster, other, policy)
        left = iter([True] * writes)
        dying = Cluster(replace(cluster.api, may_write=lambda left=left: next(left, False)))  # type: ignore[misc]
        try:
            await look(dying, other.namespace)
            died = False
        except NotLeader:
            died = True
        await look(cluster, other.namespace, 3)
        assert graph(other) == undisturbed, f"dead after {writes} writes"
        if not died:
            break
    assert writes >= 2  # the Deployment and the status at least


async def test_an_overdue_roll_out_is_stalled_and_says_which_pod_waits(cluster: Cluster, kube: Any) -> None:
    await stuck(cluster, kube, "Wait")
    late = {"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded", "message": "timed out"}
    tell(kube, 2, 1, conditions=[late])
    kube.patch_status(
        "pod", "chat-new", {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "True"}]}
    )
    await look(cluster, kube.namespace)
    status, reason, message = condition(kube, "Stalled")
    assert (status, reason) == ("True", "ProgressDeadlineExceeded")
    assert "pod chat-new is starting (waiting since 20" in message
    assert condition(kube, "Reconciling")[0] == "False"


def costs(kube: Any) -> dict[str, str]:
    return {
        p["metadata"]["name"]: p["metadata"].get("annotations", {}).get(names.DELETION_COST, "")
        for p in kube.get("pods")["items"]
    }


async def test_a_scale_in_marks_the_emptiest_once(cluster: Cluster, kube: Any) -> None:
    kube.apply(pin(), service(replicas=3))
    await look(cluster, kube.namespace, 2)
    for name in ("chat-a", "chat-b", "chat-c"):
        add_pod(kube, name, READY)
    tell(kube, 3, 3)
    await look(cluster, kube.namespace, 2, a=0.9, b=0.1, c=0.5)
    assert set(costs(kube).values()) == {""}
    kube.apply(service(replicas=2))
    await look(cluster, kube.namespace, 1, a=0.9, b=0.1, c=0.5)
    assert costs(kube) == {"chat-a": "91", "chat-b": "11", "chat-c": "51"}
    assert kube.get("deployment", "chat")["spec"]["replicas"] == 2
    tell(kube, 3, 3)
    before = kube.get("pods")["items"]
    await look(cluster, kube.namespace, 3, a=0.8, b=0.2, c=0.4)
    assert kube.get("pods")["items"] == before


async def test_a_pod_that_cannot_be_marked_does_not_stop_the_scale_in(cluster: Cluster, kube: Any) -> None:
    kube.apply(pin(), service(replicas=3))
    await look(cluster, kube.namespace, 2)
    asked = InferenceService.from_body(kube.get("infs", "chat"))
    await cluster.apply(kube.namespace, Plan(costs=(("gone", 5),), scale=replicas(asked, 2)))
    assert kube.get("deployment", "chat")["spec"]["replicas"] == 2
    assert not kube.exists("pod", "gone")


class Counted:
    """The API, and how often it was read."""

    def __init__(self, api: Api) -> None:
        self.api, self.reads = api, 0

    def __getattr__(self, name: str) -> Any:
        self.reads += name == "get"
        return getattr(self.api, name)


SCALED = {"replicas": None, "scaling": {"minReplicas": 2, "maxReplicas": 4}}


async def test_a_scaling_service_costs_three_reads_a_tick(api: Api, kube: Any) -> None:
    """The service, its Deployment and its pods; before the quiet objects were kept, it was all of them: nine."""
    kube.apply(pin(), service(**SCALED))
    counted, now = Counted(api), [0.0]
    one = Reconciler(cluster=Cluster(counted), scraper=Usage(), engine_image=IMAGE, tick=5.0, resync=300.0,  # type: ignore[arg-type]
                     clock=lambda: now[0])  # fmt: skip
    key = ServiceKey(kube.namespace, "chat")

    async def reads() -> int:
        before = counted.reads
        await one.reconcile(key)
        now[0] += 5.0
        return counted.reads - before

    assert await reads() == 9
    for name in ("chat-a", "chat-b"):
        add_pod(kube, name, READY)
    tell(kube, 2, 2)
    assert [await reads() for _ in range(4)] == [9, 3, 3, 3]
    kube("label", "service", "chat", "app.kubernetes.io/managed-by=somebody", "--overwrite")
    one.touch(key)
    assert [await reads() for _ in range(3)] == [9, 9, 3]
    assert kube.get("service", "chat")["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "pinrail"
    kube("delete", "configmap", "-l", names.SERVICE)
    now[0] += 300.0
    assert [await reads() for _ in range(3)] == [9, 9, 3]
    assert len(kube.get("configmap", "-l", names.SERVICE)["items"]) == 1
    kube.apply(service(replicas=None, scaling={"minReplicas": 2, "maxReplicas": 5}))
    assert await reads() == 9


@pytest.mark.parametrize("policy", ["Replace", "Abort"])
async def test_explain_and_diff_compare_with_a_roll_out_that_is_helped_along(
    cluster: Cluster, kube: Any, policy: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is to be written, nor restarted by an upgrade, and both say what goes on."""
    await stuck(cluster, kube, policy)
    await look(cluster, kube.namespace, 2)
    tell(kube, 2, 1)
    said = condition(kube, "RolloutComplete")[2].partition(";")[0]
    monkeypatch.setenv("KUBECONFIG", str(kube.kubeconfig))
    for command, key in ((diff_command.command, "pods"), (explain_command.command, "upgrade")):
        capsys.readouterr()
        assert await asyncio.to_thread(command.run, ["chat", "-n", kube.namespace, "-o", "json"]) == 0
        told = json.loads(capsys.readouterr().out)
        part = told[0][key] if key == "pods" else told[key]["operator"]
        assert part["steered"].startswith(said)
        assert part.get("writes", []) == part.get("objects", []) == []
        assert part.get("restart", False) is False
        assert part.get("effect", "none") == "none"
