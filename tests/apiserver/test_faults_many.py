"""Very many services, and one that never works: how long until all are there, what it takes, and who is held up.

PINRAIL_FAULTS=full makes a thousand and looks for two minutes whether anything is written without need; else a hundred.
"""

import json
import os
import statistics
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from apiserver_documents import pin, service
from faults_audit import Audit
from kubernetes import client, config
from operator_process import Process, until

from pinrail_operator import names

pytestmark = pytest.mark.apiserver

IS_FULL = os.environ.get("PINRAIL_FAULTS") == "full"
SERVICES = 1000 if IS_FULL else 100
RESYNC = 100 if IS_FULL else 5  # seconds; each service is looked at once in it, whatever happens
STEADY = 120.0 if IS_FULL else 6.0  # seconds in which nothing is to be written: longer than RESYNC
CONVERGED = 300.0  # seconds at most
MEMORY = 300  # MiB at most
EDITS = 40 if IS_FULL else 15
HELD_UP = 1.1  # times as long as without the poison, at most
NOISE = 0.1  # seconds by which two medians on a shared machine differ anyway

GROUP = ("pinrail.dev", "v1alpha1")
POISON = {"nodeSelector": {"a b": "x"}}  # taken by the CRD, refused in a Deployment


class Api:
    """Many small requests, faster than kubectl's."""

    def __init__(self, kubeconfig: Path, namespace: str) -> None:
        self.http = config.new_client_from_config(str(kubeconfig))
        self.services, self.apps, self.namespace = (
            client.CustomObjectsApi(self.http),
            client.AppsV1Api(self.http),
            namespace,
        )

    def create(self, name: str, **spec: Any) -> None:
        body = service(replicas=1, **spec) | {"metadata": {"name": name}}
        self.services.create_namespaced_custom_object(*GROUP, self.namespace, "inferenceservices", body)

    def edit(self, name: str, spec: dict[str, Any]) -> None:
        self.services.patch_namespaced_custom_object(
            *GROUP, self.namespace, "inferenceservices", name, {"spec": spec}
        )  # fmt: skip

    def seconds_of_an_edit(self, name: str, replicas: int) -> float:
        """From the edit to the Deployment that follows it."""
        began = time.monotonic()
        self.edit(name, {"replicas": replicas})
        until(lambda: self.apps.read_namespaced_deployment(name, self.namespace).spec.replicas == replicas, "it", 30)
        return time.monotonic() - began


@pytest.fixture
def api(kube: Any) -> Iterator[Api]:
    made = Api(kube.kubeconfig, kube.namespace)
    yield made
    made.http.close()


def told(operator: Process, series: str) -> float:
    """A figure of the operator's own metrics."""
    with urllib.request.urlopen(f"http://127.0.0.1:{operator.port}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(series))


@contextmanager
def poisoned(api: Api) -> Iterator[None]:
    """A service that can never be brought about, edited ten times a second."""
    api.create("poison", **POISON)
    ended = threading.Event()

    def stir() -> None:
        for i in range(3000):
            if ended.wait(0.1):
                return
            api.edit("poison", {"replicas": i % 7})

    thread = threading.Thread(target=stir)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(10)


def is_settled(kube: Any) -> bool:
    made = kube("get", "deployments", "-l", names.SERVICE, "-o", "name").count("\n")
    seen = kube("get", "infs", "-o", "jsonpath={.items[*].status.observedGeneration}").split()
    return bool(made == SERVICES and seen == ["1"] * SERVICES)


def test_many_services_settle_and_then_nothing_is_written_and_a_poison_delays_nobody(
    kube: Any, start: Callable[..., Process], api: Api, audit: Audit, capsys: pytest.CaptureFixture[str]
) -> None:
    """More than any queue inside Kopf holds, and all there before the operator starts."""
    kube.apply(pin())
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda i: api.create(f"chat-{i}"), range(SERVICES)))
    began = time.monotonic()
    operator = start(PINRAIL_RESYNC_SECONDS=str(RESYNC))
    until(operator.leads, "leading")
    until(lambda: told(operator, "pinrail_operator_status_writes_total") >= SERVICES, "all statuses", CONVERGED)
    until(lambda: is_settled(kube), "all Deployments and statuses", CONVERGED)  # a new service may cost two statuses
    converged = time.monotonic() - began

    until(lambda: told(operator, "pinrail_operator_queue_length") == 0, "an empty queue", CONVERGED)
    time.sleep(2)
    quiet_since, looks = time.time(), told(operator, "pinrail_operator_reconciles_total")
    time.sleep(STEADY)
    looks = told(operator, "pinrail_operator_reconciles_total") - looks
    written = [w for w in audit.writes(kube.namespace, quiet_since) if w.resource != "leases"]
    assert written == []
    assert looks >= SERVICES / 2, "nothing was looked at, so nothing is shown"

    alone = statistics.median(api.seconds_of_an_edit(f"chat-{i}", 2) for i in range(EDITS))
    with poisoned(api):
        beside = statistics.median(api.seconds_of_an_edit(f"chat-{i}", 3) for i in range(EDITS))
    # Its own status has to meet a moment between two edits, which among a thousand services is once they have ended.
    until(lambda: "Refused" in json.dumps(kube.get("infs", "poison").get("status", {})), "the poison's status", 60.0)
    memory = operator.resident()
    with capsys.disabled():
        print(f"\n  T6 {SERVICES} services: settled {converged:.1f} s after start, {memory:.0f} MiB, "
              f"{len(written)} writes in {STEADY:g} s and {looks:.0f} looks; an edit takes {alone * 1000:.0f} ms, "
              f"beside a poison {beside * 1000:.0f} ms", end="", flush=True)  # fmt: skip
    assert converged <= CONVERGED
    assert memory <= MEMORY
    assert beside <= alone * HELD_UP + NOISE
