"""A real etcd and kube-apiserver for all tests of this folder, with our CRDs; each test has a namespace of its own."""

import itertools
import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kubernetes import config

ROOT = Path(__file__).parents[2]
SHARED = ("e2e/cluster", "tests/operator", "tests/contract", "tests/apiserver")
sys.path[:0] = [str(ROOT / folder) for folder in SHARED]

from control_plane import ALONE, ControlPlane  # noqa: E402
from faults_audit import Audit  # noqa: E402
from faults_proxy import Proxy, proxied  # noqa: E402
from kubectl import Kube  # noqa: E402
from operator_process import CHART, Process  # noqa: E402
from parts import HELM  # noqa: E402

from pinrail_operator.api import Api  # noqa: E402
from pinrail_operator.cluster import Cluster  # noqa: E402

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def audit(tmp_path_factory: pytest.TempPathFactory) -> Audit:
    """What the API server says was written."""
    return Audit(tmp_path_factory.mktemp("audit"))


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory, audit: Audit) -> Iterator[ControlPlane]:
    flags = (*ALONE, *audit.flags())
    with ControlPlane.start(tmp_path_factory.mktemp("apiserver"), flags=flags) as started:
        kube = Kube(started.kubeconfig)
        kube("apply", "--server-side", "-f", str(ROOT / "crds"))
        kube.wait_for_crds()
        yield started


@pytest.fixture
def kube(control_plane: ControlPlane) -> Kube:
    """kubectl in a new namespace."""
    name = f"test-{next(_numbers)}"
    Kube(control_plane.kubeconfig)("create", "namespace", name)
    return Kube(control_plane.kubeconfig, name)


@pytest.fixture
async def api(control_plane: ControlPlane) -> Any:
    made = Api(config.new_client_from_config(str(control_plane.kubeconfig)), lambda: True)
    yield made
    made.close()


@pytest.fixture
def cluster(api: Api) -> Cluster:
    return Cluster(api)


@pytest.fixture(scope="session")
def helm() -> str:
    return str(HELM.program("helm"))


@pytest.fixture
def rights(kube: Any, helm: str, tmp_path: Path) -> Iterator[Path]:
    """A kubeconfig that holds a token of the chart's service account, and nothing else."""
    values = ["--set", f"watchNamespaces={{{kube.namespace}}}", "--set", "replicas=0"]
    rendered = subprocess.run(
        [helm, "template", "p", str(CHART), "-n", kube.namespace, *values], check=True, capture_output=True, text=True
    )
    kube("apply", "-f", "-", stdin=rendered.stdout)
    token = kube("create", "token", "p-operator").strip()
    document = json.loads(kube.kubeconfig.read_text())
    document["users"][0]["user"] = {"token": token}
    file = tmp_path / "kubeconfig"
    file.write_text(json.dumps(document))
    yield file
    kube("delete", "--ignore-not-found", "-f", "-", stdin=rendered.stdout)  # other tests look for operators everywhere


@pytest.fixture
def start(kube: Any, rights: Path, tmp_path: Path, free_port: Callable[[], int]) -> Iterator[Callable[..., Process]]:
    """Starts operators; what still runs at the end is ended, and its log must hold no traceback."""
    started: list[Process] = []

    def one(kubeconfig: Path = rights, **env: str) -> Process:
        log = tmp_path / f"operator-{len(started)}.log"
        started.append(Process(kubeconfig, kube.namespace, log, free_port(), **env))
        return started[-1]

    yield one
    for process in started:
        if process.child.poll() is None:
            process.child.send_signal(signal.SIGCONT)
            process.stop()
        assert process.may_trace or "Traceback" not in process.log.read_text(), process.log.read_text()[-3000:]


@pytest.fixture
def proxy(rights: Path, tmp_path: Path) -> Iterator[tuple[Proxy, Path]]:
    """A proxy that may misbehave, and the kubeconfig of the chart's rights that leads through it."""
    with proxied(rights, tmp_path / "proxied") as both:
        yield both
