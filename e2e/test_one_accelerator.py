"""A node with one accelerator, which the old pod holds: a roll-out that would wait for ever is helped along."""

import json
from collections.abc import Callable, Iterator

import pytest
from kubernetes import client
from load import LIMITS
from world import SMALL, Service, kubectl, wait_for

GPU = "nvidia.com/gpu"
ONE = {"requests": {**SMALL["requests"], GPU: "1"}, "limits": {**SMALL["limits"], GPU: "1"}}


@pytest.fixture(scope="module")
def accelerator(cluster: None) -> Iterator[None]:
    """The node says that it has one; no device plugin is asked, so any image runs."""
    (node,) = client.CoreV1Api().list_node().items
    paths = [f"/status/{part}/{GPU.replace('/', '~1')}" for part in ("capacity", "allocatable")]

    def tell(*patches: dict[str, str]) -> None:
        kubectl("patch", "node", node.metadata.name, "--subresource=status", "--type=json", "-p", json.dumps(patches))

    tell(*({"op": "add", "path": path, "value": "1"} for path in paths))
    yield
    tell(*({"op": "remove", "path": path} for path in paths))


def test_the_only_accelerator_is_handed_over(accelerator: None, make_service: Callable[..., Service]) -> None:
    rollout = {"onUnschedulable": "Replace"}
    service = make_service("single", scaling=None, replicas=1, limits=LIMITS, resources=ONE, rollout=rollout)
    service.wait_until("Ready", "True")
    (old,) = service.pods()
    service.patch({"engine": {"env": [{"name": "GREETING", "value": "hello"}]}})
    wait_for("the old pod's end", lambda: old.metadata.uid not in {p.metadata.uid for p in service.pods()},
             show=service.describe)  # fmt: skip
    service.wait_until("Ready", "True")
    (told,) = (e for e in service.events() if e.reason == "Replacing")
    assert told.type == "Warning"
    strategy = client.AppsV1Api().read_namespaced_deployment(service.name, service.namespace).spec.strategy
    assert strategy.rolling_update.max_surge == 1, "the spec's own strategy is back"
    assert "Paris" in service.ask("What is the capital of France?")


def test_a_roll_out_that_waits_says_what_holds_the_accelerator(
    accelerator: None, make_service: Callable[..., Service]
) -> None:
    service = make_service("waits", scaling=None, replicas=2, limits=LIMITS, resources=ONE)
    blocked = wait_for(
        "the reason", lambda: service.condition("WorkloadReady") if "nvidia" in str(service.status()) else None
    )
    assert "Insufficient nvidia.com/gpu" in blocked["message"]
    assert "next:" in blocked["message"]
