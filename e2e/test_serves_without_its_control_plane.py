"""The API server, etcd and the operator each go away for a while, as a crash would take them, while clients ask.

Nobody who asks may notice, no pod may be replaced or restarted, the number of replicas may not jump when they are back,
and what was changed meanwhile is caught up with. PINRAIL_E2E_AWAY sets how many seconds each is away.
"""

import os
import time
from collections.abc import Callable

import pytest
from load import LEAST, LIMITS, under_load
from machine import without
from world import Service, kubectl, wait_for

AWAY = float(os.environ.get("PINRAIL_E2E_AWAY", "25"))
SYSTEM = "pinrail-system"
OPERATOR = "app.kubernetes.io/name=pinrail-operator"


@pytest.fixture(scope="module")
def service(make_service: Callable[..., Service]) -> Service:
    service = make_service("lonely", limits=LIMITS)  # it scales: a gap in the figures must not move it
    service.wait_until("Ready", "True")
    return service


def runs(service: Service) -> dict[str, int]:
    """Restarts by the uid of each pod."""
    return {p.metadata.uid: sum(c.restart_count for c in p.status.container_statuses or ()) for p in service.pods()}


def catches_up(service: Service, seconds: int) -> float:
    """Seconds until an edit that restarts nothing is carried out."""
    service.patch({"rollout": {"progressDeadlineSeconds": seconds}})
    began = time.monotonic()

    def deadline() -> bool:
        where = "jsonpath={.spec.progressDeadlineSeconds}"
        return kubectl("get", "deployment", service.name, "-n", service.namespace, "-o", where) == str(seconds)

    wait_for("the operator's work", deadline, show=service.describe)
    service.wait_until("Ready", "True")
    return time.monotonic() - began


def test_no_request_and_no_pod_is_lost_while_parts_of_the_control_plane_are_away(service: Service) -> None:
    before = runs(service)
    took: dict[str, float] = {}
    with under_load(service) as load:
        for number, name in enumerate(("kube-apiserver", "etcd")):
            with without(name):
                time.sleep(AWAY)
            took[name] = catches_up(service, 4000 + number)
        kubectl("delete", "pod", "-n", SYSTEM, "-l", OPERATOR, "--grace-period=0", "--force")
        took["operator"] = catches_up(service, 4002)
    print("; ".join(f"{name}: caught up {seconds:.1f} s after it was back" for name, seconds in took.items()))
    assert load.failures == [], f"after {load.answers}"
    assert min(load.answers.values()) >= LEAST, load.answers
    assert runs(service) == before, "the pods of before, not restarted"
    assert len(before) == 1
