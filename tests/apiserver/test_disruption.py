"""What may take a pod away, on a real API server: its eviction subresource, and marks that autoscalers heed.

No controller runs, so pods say by hand how they are, and the budget what its controller would have counted.
"""

import json
from typing import Any

import pytest
from apiserver_documents import pin, service
from operator_builders import IMAGE

from pinrail_operator.cluster import Cluster
from pinrail_operator.reconcile import Reconciler
from pinrail_operator.startup_protection import WRITTEN
from pinrail_operator.types import ServiceKey

pytestmark = pytest.mark.apiserver


class Silent:
    async def scrape(self, pods: Any) -> dict[str, Any]:
        return {}


class Scene:
    """One service of two replicas, its operator, and pods made from its Deployment's template."""

    def __init__(self, cluster: Cluster, kube: Any) -> None:
        self.cluster, self.kube = cluster, kube
        self.operator = Reconciler(cluster=cluster, scraper=Silent(), engine_image=IMAGE, tick=5.0, resync=300.0)

    async def begin(self, **spec: Any) -> None:
        self.kube.apply(pin(), service(**spec))
        await self.look(2)

    async def look(self, times: int = 1) -> None:
        for _ in range(times):
            await self.operator.reconcile(ServiceKey(self.kube.namespace, "chat"))

    def add(self, name: str, ready: bool, **annotations: str) -> None:
        template = self.kube.get("deployment", "chat")["spec"]["template"]
        born = {**template["metadata"].get("annotations", {}), **annotations}
        self.kube.apply({"apiVersion": "v1", "kind": "Pod", "spec": template["spec"],
                         "metadata": {**template["metadata"], "name": name, "annotations": born}})  # fmt: skip
        self.set_ready(name, ready)

    def set_ready(self, name: str, ready: bool) -> None:
        conditions = [{"type": "Ready", "status": str(ready)}]
        status = {"phase": "Running", "podIP": "10.0.0.1", "conditions": conditions}
        self.kube.patch_status("pod", name, status)

    def annotations(self, name: str) -> dict[str, str]:
        """Without what kubectl keeps for itself."""
        found = self.kube.get("pod", name)["metadata"].get("annotations", {})
        return {key: value for key, value in found.items() if not key.startswith("kubectl.")}

    def count(self, healthy: int) -> None:
        """What the budget's controller would say of two replicas, one of which must stay."""
        generation = self.kube.get("pdb", "chat")["metadata"]["generation"]
        allowed = max(0, healthy - 1)
        told = {"observedGeneration": generation, "expectedPods": 2, "currentHealthy": healthy, "desiredHealthy": 1}
        self.kube.patch_status("pdb", "chat", {**told, "disruptionsAllowed": allowed})

    def evict(self, name: str) -> str:
        """As `kubectl drain` does; empty where the pod went, else the API server's words."""
        document = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
        path = f"/api/v1/namespaces/{self.kube.namespace}/pods/{name}/eviction"
        done = self.kube.run("create", "--raw", path, "-f", "-", stdin=json.dumps(document))
        return done.stderr if done.returncode else ""

    def is_going(self, name: str) -> bool:
        return not self.kube.exists("pod", name) or "deletionTimestamp" in self.kube.get("pod", name)["metadata"]


@pytest.fixture
def scene(cluster: Cluster, kube: Any) -> Scene:
    return Scene(cluster, kube)


async def test_the_last_ready_replica_is_never_evicted(scene: Scene) -> None:
    await scene.begin(disruption={"minAvailable": 1})
    scene.add("chat-a", ready=True)
    scene.add("chat-b", ready=False)
    scene.count(healthy=1)
    assert "violate the pod's disruption budget" in scene.evict("chat-a")
    assert not scene.is_going("chat-a")


@pytest.mark.parametrize("healthy", [0, 1], ids=["the budget is missed", "the budget is just met"])
async def test_a_pod_that_is_not_ready_holds_up_no_drain(scene: Scene, healthy: int) -> None:
    """With no policy given, one of a budget that is missed could not be evicted: seen in the test below."""
    await scene.begin(disruption={"minAvailable": 1})
    scene.add("chat-broken", ready=False)
    scene.count(healthy)
    assert scene.evict("chat-broken") == ""
    assert scene.is_going("chat-broken")


async def test_without_the_policy_a_broken_pod_would_hold_a_node(scene: Scene) -> None:
    """Why it is set: Kubernetes' default counts a broken pod as one to be protected while too few are ready."""
    await scene.begin(disruption={"minAvailable": 1})
    scene.kube("patch", "pdb", "chat", "--type=merge", "-p", '{"spec": {"unhealthyPodEvictionPolicy": null}}')
    scene.add("chat-broken", ready=False)
    scene.count(healthy=0)
    assert "violate the pod's disruption budget" in scene.evict("chat-broken")
    scene.kube("patch", "pdb", "chat", "--type=merge", "-p", '{"spec": {"unhealthyPodEvictionPolicy": "AlwaysAllow"}}')
    scene.count(healthy=0)
    assert scene.evict("chat-broken") == ""


async def test_a_budget_of_an_earlier_operator_gets_the_policy_and_no_pod_restarts(scene: Scene) -> None:
    await scene.begin()
    before = scene.kube.get("deployment", "chat")["metadata"]["generation"]
    stale = (
        '{"metadata": {"annotations": {"pinrail.dev/applied": "old"}}, "spec": {"unhealthyPodEvictionPolicy": null}}'
    )
    scene.kube("patch", "pdb", "chat", "--type=merge", "-p", stale)
    scene.operator.touch(ServiceKey(scene.kube.namespace, "chat"))
    await scene.look()
    assert scene.kube.get("pdb", "chat")["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow"
    assert scene.kube.get("deployment", "chat")["metadata"]["generation"] == before


async def test_a_pod_is_protected_while_it_loads_and_may_be_moved_once_it_is_ready(scene: Scene) -> None:
    await scene.begin(disruption={"protectStartup": True}, podAnnotations={"team": "search"})
    scene.add("chat-a", ready=False)
    scene.add("chat-b", ready=True)
    assert set(WRITTEN) <= set(scene.annotations("chat-b")), "no operator has looked yet"
    await scene.look()
    assert scene.annotations("chat-b") == {"team": "search"}
    found = scene.annotations("chat-a")
    assert found["karpenter.sh/do-not-disrupt"] == "true"
    assert found["cluster-autoscaler.kubernetes.io/safe-to-evict"] == "false"
    scene.set_ready("chat-a", True)
    await scene.look()
    assert scene.annotations("chat-a") == {"team": "search"}


async def test_what_a_user_puts_on_a_pod_for_good_stays(scene: Scene) -> None:
    await scene.begin(podAnnotations={"karpenter.sh/do-not-disrupt": "true"})
    scene.add("chat-a", ready=True)
    await scene.look(2)
    assert scene.annotations("chat-a") == {"karpenter.sh/do-not-disrupt": "true"}


async def test_taking_the_field_back_rolls_the_pods_as_any_change_of_theirs_does(scene: Scene) -> None:
    await scene.begin(disruption={"protectStartup": True})
    before = scene.kube.get("deployment", "chat")["spec"]["template"]["metadata"]
    scene.kube.apply(service())
    await scene.look()
    after = scene.kube.get("deployment", "chat")["spec"]["template"]["metadata"]
    assert before["labels"] != after["labels"]
    assert set(WRITTEN).isdisjoint(after.get("annotations", {}))


async def test_devices_and_variables_of_secrets_reach_the_deployment_and_stay_settled(scene: Scene, kube: Any) -> None:
    """Asked again, there is nothing to apply: what the API server returns is what was meant."""
    claims = [{"name": "gpu", "resourceClaimTemplateName": "one-gpu"}, {"name": "net", "resourceClaimName": "shared"}]
    key = {"name": "tracing", "key": "headers", "optional": True}
    env = [{"name": "A", "valueFrom": {"secretKeyRef": key}}, {"name": "B", "value": "1"}]
    resources = {"claims": [{"name": "gpu"}, {"name": "net", "request": "one"}], "limits": {"memory": "2048Mi"}}
    await scene.begin(resourceClaims=claims, resources=resources, engine={"env": env})
    pod = kube.get("deployment", "chat")["spec"]["template"]["spec"]
    assert pod["resourceClaims"] == claims
    assert pod["containers"][0]["resources"]["claims"] == resources["claims"]
    assert [v for v in pod["containers"][0]["env"] if v["name"] != "HOME"] == env
    generation = kube.get("deployment", "chat")["metadata"]["generation"]
    scene.operator.touch(ServiceKey(kube.namespace, "chat"))
    await scene.look(2)
    assert kube.get("deployment", "chat")["metadata"]["generation"] == generation
    kube.apply(service(resourceClaims=claims[:1], resources={"claims": [{"name": "gpu"}]}))
    await scene.look()
    pod = kube.get("deployment", "chat")["spec"]["template"]["spec"]
    assert (pod["resourceClaims"], pod["containers"][0]["resources"]) == (claims[:1], {"claims": [{"name": "gpu"}]})
