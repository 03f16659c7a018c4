"""Deletion of a service, of its namespace and of the CRDs, with a real garbage collector and real Deployments.

Nothing may be stuck, whether the operator runs, is gone, or is in a roll-out; and nobody else's object is touched.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from apiserver_documents import pin, service
from control_plane import ALONE, ControlPlane
from kubectl import Kube
from operator_process import Process, free_port, until
from parts import KUBERNETES
from processes import Process as Program

from pinrail_operator import names

pytestmark = pytest.mark.apiserver

CRDS = str(Path(__file__).parents[2] / "crds")
CONTROLLERS = "garbage-collector-controller,namespace-controller,deployment-controller,replicaset-controller"
GONE = 60.0  # seconds at most
OURS = "deployments,replicasets,pods,services,configmaps,pdb"


@dataclass
class Cluster:
    """A control plane with controllers, and one operator for all namespaces."""

    kubeconfig: Path
    folder: Path
    port: int
    operator: Process | None = None

    def start(self) -> Process:
        """The operator; a new one where it was stopped."""
        if self.operator is None or self.operator.child.poll() is not None:
            everywhere = {"PINRAIL_NAMESPACES": "", "PINRAIL_RESYNC_SECONDS": "5"}
            self.operator = Process(self.kubeconfig, "default", self.folder / "operator.log", self.port, **everywhere)
            until(self.operator.leads, "leading", 40)
        return self.operator


@pytest.fixture(scope="module")
def controlled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The kubeconfig of a control plane of these tests' own, since they delete its CRDs."""
    folder = tmp_path_factory.mktemp("controlled")
    with ControlPlane.start(folder, flags=ALONE) as api:
        Kube(api.kubeconfig)("apply", "--server-side", "-f", CRDS)
        Kube(api.kubeconfig).wait_for_crds()
        command = [KUBERNETES.program("kube-controller-manager"), f"--kubeconfig={api.kubeconfig}",
                   f"--controllers={CONTROLLERS}", "--leader-elect=false", "--secure-port=0"]  # fmt: skip
        controllers = Program.start("kube-controller-manager", command, folder / "controllers.log")
        try:
            yield api.kubeconfig
        finally:
            controllers.stop(5.0)


@pytest.fixture(scope="module")
def world(controlled: Path) -> Iterator[Cluster]:
    made = Cluster(controlled, controlled.parent, free_port())
    yield made
    if made.operator is not None and made.operator.child.poll() is None:
        made.operator.stop()


def namespace(world: Cluster, name: str) -> Kube:
    """With a service that runs, another one, and what belongs to nobody of ours."""
    Kube(world.kubeconfig)("create", "namespace", name)
    kube = Kube(world.kubeconfig, name)
    kube("create", "configmap", "theirs", "--from-literal=a=b")
    kube("label", "configmap", "theirs", f"{names.SERVICE}=chat")  # whoever copies our labels is not ours
    kube("create", "deployment", "theirs", "--image=theirs")
    kube.apply(pin(), service(), service() | {"metadata": {"name": "other"}})
    return kube


def ours(kube: Kube, name: str) -> list[str]:
    found = kube("get", OURS, "-l", f"{names.SERVICE}={name}", "-o", "name").split()
    return [o for o in found if o != "configmap/theirs"]


def others(kube: Kube) -> dict[str, str]:
    """What is not the service chat's, with the version of its last write."""
    found = kube.get(f"{OURS},infs,pin")["items"]
    is_others = [o for o in found if o["metadata"]["name"].partition("-")[0] != "chat"]
    return {f"{o['kind']}/{o['metadata']['name']}": o["metadata"]["uid"] for o in is_others}


def seconds_until(is_true: Callable[[], bool], what: str) -> float:
    began = time.monotonic()
    until(is_true, what, GONE)
    return time.monotonic() - began


@pytest.mark.parametrize("situation", ["up", "rolling out", "down"])
def test_a_deleted_service_and_a_deleted_namespace_are_gone_within_a_minute(
    world: Cluster, situation: str, capsys: pytest.CaptureFixture[str]
) -> None:
    operator = world.start()
    kube = namespace(world, situation.replace(" ", "-"))
    pods = 2 if situation != "rolling out" else 3
    until(lambda: len(kube.get("pods", "-l", f"{names.SERVICE}=chat")["items"]) == 2, "two pods")
    if situation == "rolling out":
        kube.apply(service(nodeSelector={"disk": "ssd"}))
        until(lambda: len(kube.get("rs", "-l", f"{names.SERVICE}=chat")["items"]) == 2, "a second revision")
    until(lambda: len(kube.get("pods", "-l", f"{names.SERVICE}=other")["items"]) == 2, "two pods of the other")
    until(lambda: len(ours(kube, "chat")) >= 5 + pods, "all objects")
    if situation == "down":
        operator.stop()
    before = others(kube)
    kube("delete", "infs", "chat", "--timeout=10s")
    service_gone = seconds_until(lambda: ours(kube, "chat") == [], "an empty house")
    time.sleep(1)
    assert ours(kube, "chat") == []
    assert others(kube) == before
    kube("delete", "namespace", kube.namespace, "--wait=false")
    everywhere = Kube(kube.kubeconfig)
    namespace_gone = seconds_until(lambda: not everywhere.exists("namespace", kube.namespace), "the namespace's end")
    with capsys.disabled():
        print(f"\n  T22 operator {situation}: all of a service gone after {service_gone:.1f} s, "
              f"its namespace after {namespace_gone:.1f} s", end="", flush=True)  # fmt: skip


def test_deleted_crds_take_their_services_along_and_may_come_back(
    world: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    operator = world.start()
    kube = namespace(world, "crds")
    until(lambda: len(kube.get("pods", "-l", f"{names.SERVICE}=chat")["items"]) == 2, "two pods")
    theirs = kube.get("deployment", "theirs")["metadata"]["uid"]
    kube("delete", "-f", CRDS, "--wait=false")
    gone = seconds_until(lambda: "pinrail.dev" not in kube("get", "crd", "-o", "name"), "the CRDs' end")
    left = seconds_until(lambda: ours(kube, "chat") == [], "an empty house")
    assert kube.get("deployment", "theirs")["metadata"]["uid"] == theirs
    kube("apply", "--server-side", "-f", CRDS)
    kube.wait_for_crds()
    assert operator.child.poll() is None, operator.log.read_text()[-3000:]
    kube.apply(pin(), service())
    back = seconds_until(lambda: kube.exists("deployment", "chat"), "the Deployment")
    assert operator.stop() == 0  # though its watches have failed, and may just be begun anew
    with capsys.disabled():
        print(f"\n  T22 CRDs gone after {gone:.1f} s, what services consisted of after {left:.1f} s more; "
              f"back {back:.1f} s after they were", end="", flush=True)  # fmt: skip
