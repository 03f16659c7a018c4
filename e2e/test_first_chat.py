"""From `kubectl apply` to a streamed answer, and what a person sees on the way."""

from collections.abc import Callable
from typing import Any

import pytest
from world import MANIFEST, SERVICE, Service, kubectl, wait_for

from pinrail_contract.pins import ModelManifest


@pytest.fixture(scope="module")
def service(make_service: Callable[..., Service]) -> Service:
    service = make_service("chat", scaling=None, replicas=1)
    service.wait_until("Ready", "True")
    return service


def test_the_openai_client_streams_a_sensible_answer(service: Service) -> None:
    assert "Paris" in service.ask("What is the capital of France?")


def test_the_status_says_what_runs(service: Service) -> None:
    pinned = ModelManifest.from_spec(MANIFEST["spec"]).digest
    model = service.status()["model"]
    assert (model["digest"], model["verifiedReplicas"]) == (pinned, 1)
    assert service.condition("ModelVerified")["status"] == "True"
    served = service.openai().models.list().data[0]
    assert served.id == SERVICE["spec"]["model"]["name"]
    assert (served.model_extra or {})["manifest_digest"] == pinned


def test_kubectl_get_shows_the_pin_and_the_replicas(service: Service) -> None:
    header, row = kubectl("get", "infs", "-n", service.namespace).splitlines()
    columns = dict(zip(header.split(), row.split(), strict=False))
    assert columns["NAME"] == "chat"
    assert columns["READY"] == "True" or "1" in columns["READY"], (header, row)


def test_pods_are_restricted_and_hold_no_token(service: Service) -> None:
    (pod,) = service.pods()
    context: Any = pod.spec.containers[0].security_context
    assert context.read_only_root_filesystem
    assert context.capabilities.drop == ["ALL"]
    assert pod.spec.security_context.run_as_non_root
    assert pod.spec.automount_service_account_token is False
    assert "@sha256:" in pod.spec.containers[0].image


def test_kubectl_scale_works_where_scaling_is_absent(service: Service) -> None:
    kubectl("scale", "infs/chat", "-n", service.namespace, "--replicas=2")
    service.wait_until("Ready", "True")
    assert service.status()["readyReplicas"] == 2
    kubectl("scale", "infs/chat", "-n", service.namespace, "--replicas=1")
    service.wait_until("Ready", "True")


def test_delete_leaves_nothing_behind(service: Service) -> None:
    kubectl("delete", "infs", "chat", "-n", service.namespace, "--wait=true", "--timeout=60s")
    kinds = "deployments,replicasets,pods,services,configmaps,poddisruptionbudgets,controllerrevisions,secrets"

    def left() -> bool:
        found = kubectl("get", kinds, "-n", service.namespace, "-o", "name").split()
        return [name for name in found if name != "configmap/kube-root-ca.crt"] == []

    wait_for("an empty namespace", left, show=lambda: kubectl("get", kinds, "-n", service.namespace))
