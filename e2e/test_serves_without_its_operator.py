"""The operator is uninstalled and installed again: the very same pods go on serving, and are looked after again."""

from collections.abc import Callable
from typing import Any

import pytest
from world import SERVICE, Service, kubectl, wait_for

SYSTEM = "pinrail-system"
OPERATOR = "deployment/pinrail-operator"
RIGHTS = "clusterrole/pinrail-operator"


@pytest.fixture(scope="module")
def service(make_service: Callable[..., Service]) -> Service:
    limits = {**SERVICE["spec"]["limits"], "maxNumSeqs": 8}
    service = make_service("alone", scaling=None, replicas=1, limits=limits)
    service.wait_until("Ready", "True")
    return service


def pods(service: Service) -> dict[str, int]:
    """Restarts by uid."""
    return {p.metadata.uid: sum(c.restart_count for c in p.status.container_statuses or ()) for p in service.pods()}


def is_there(what: str) -> bool:
    return what.partition("/")[2] in kubectl("get", what, "-n", SYSTEM, "--ignore-not-found", "-o", "name")


def test_an_uninstalled_operator_is_not_missed_and_a_new_one_restarts_nothing(service: Service, release: Any) -> None:
    before, uid = pods(service), service.get()["metadata"]["uid"]
    release.uninstall()
    try:
        wait_for("the operator's end", lambda: "operator" not in kubectl("get", "pods", "-n", SYSTEM, "-o", "name"))
        assert not is_there(OPERATOR)
        assert not is_there(RIGHTS)
        assert "Paris" in service.ask("What is the capital of France?")
        service.patch({"replicas": 2})  # nobody is there to see it
        assert service.get()["metadata"]["uid"] == uid, "the CRDs are kept, and so is the service"
        assert "Paris" in service.ask("What is the capital of France?")
        assert pods(service) == before
    finally:
        release.install()
    wait_for("2 ready replicas", lambda: service.status().get("readyReplicas") == 2, show=service.describe)
    after = pods(service)
    assert len(after) == 2
    assert before.items() <= after.items(), "the pod of before, not restarted"
    assert service.condition("RolloutComplete")["status"] == "True"
