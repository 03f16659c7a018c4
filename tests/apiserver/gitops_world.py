"""An operator at work on the service `chat`, beside which GitOps tools look at the user's manifest.

No controller runs, so pods and counts are written by hand, in the words of those who would write them.
"""

import json
from typing import Any

from operator_builders import DIGEST, IMAGE, load

from pinrail_operator.cluster import Cluster
from pinrail_operator.metrics import Scrape
from pinrail_operator.reconcile import Reconciler
from pinrail_operator.types import ServiceKey

READY = {"phase": "Running", "podIP": "10.0.0.1", "conditions": [{"type": "Ready", "status": "True"}]}


class FullCaches:
    """Every pod calls for another one."""

    async def scrape(self, pods: Any) -> dict[str, Scrape]:
        return {p.name: Scrape(load(1.0), DIGEST) for p in pods}


class Operator:
    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self.key = ServiceKey(namespace, "chat")
        self.reconciler = Reconciler(cluster=cluster, scraper=FullCaches(), engine_image=IMAGE, tick=5.0, resync=300.0)

    async def look(self, times: int) -> None:
        """As after a change of anything that belongs to the service."""
        self.reconciler.touch(self.key)
        for _ in range(times):
            await self.reconciler.reconcile(self.key)


async def work(kube: Any, cluster: Cluster) -> None:
    """Reconciles of all kinds: made, rolled out, looked at again, scaled up where it scales, blocked and freed."""
    operator = Operator(cluster, kube.namespace)
    await operator.look(2)
    add_pods(kube)
    await operator.look(3)
    kube("delete", "service", "chat")
    kube("create", "service", "clusterip", "chat", "--tcp=80")  # somebody else's
    await operator.look(2)
    assert condition(kube, "Stalled") == "True"
    kube("delete", "service", "chat")
    await operator.look(3)
    assert condition(kube, "Stalled") == "False"
    found = kube.get("infs", "chat")
    assert ("scaling" in found["spec"]) == ("lastScale" in found["status"].get("scaling", {}))


def add_pods(kube: Any) -> None:
    """As many as the Deployment asks for, all of them ready."""
    deployment = kube.get("deployment", "chat")
    replicas, template = deployment["spec"]["replicas"], deployment["spec"]["template"]
    for i in range(replicas):
        metadata = {"name": f"chat-{i}", **template["metadata"]}
        kube.apply({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]})
        kube.patch_status("pod", f"chat-{i}", READY)
    counts = {"replicas": replicas, "updatedReplicas": replicas, "readyReplicas": replicas}
    kube.patch_status("deployment", "chat", counts | {"observedGeneration": deployment["metadata"]["generation"]})


def condition(kube: Any, kind: str) -> str:
    return next(str(c["status"]) for c in kube.get("infs", "chat")["status"]["conditions"] if c["type"] == kind)


def live(kube: Any) -> list[dict[str, Any]]:
    """The manifest and the service, as they stand."""
    words = (("pin", "tiny-v1"), ("infs", "chat"))
    return [json.loads(kube("get", *two, "-o", "json", "--show-managed-fields")) for two in words]


def versions(kube: Any) -> list[tuple[str, int]]:
    """Of each, the version of its last write and its generation."""
    return [(o["metadata"]["resourceVersion"], o["metadata"]["generation"]) for o in live(kube)]
