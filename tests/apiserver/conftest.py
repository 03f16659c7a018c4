"""A real etcd and kube-apiserver for all tests of this folder, with our CRDs; each test has a namespace of its own."""

import itertools
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes import config

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "e2e" / "cluster"), str(ROOT / "tests" / "operator"), str(Path(__file__).parent)]

from control_plane import ControlPlane  # noqa: E402
from parts import HELM, KUBERNETES  # noqa: E402

from pinrail_operator.api import Api  # noqa: E402
from pinrail_operator.cluster import Cluster  # noqa: E402

_numbers = itertools.count(1)


@dataclass(frozen=True)
class Kube:
    """kubectl, as a user has it."""

    kubeconfig: Path
    namespace: str = "default"

    def run(self, *words: str, stdin: str = "", kubeconfig: Path | None = None) -> subprocess.CompletedProcess[str]:
        kubectl = KUBERNETES.program("kubectl")
        command = [str(kubectl), "--kubeconfig", str(kubeconfig or self.kubeconfig), "-n", self.namespace, *words]
        return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=60)

    def __call__(self, *words: str, stdin: str = "") -> str:
        """Standard output; a failure fails the test."""
        done = self.run(*words, stdin=stdin)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def get(self, *words: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self("get", *words, "-o", "json"))
        return found

    def exists(self, *words: str) -> bool:
        return self.run("get", *words).returncode == 0

    def apply(self, *documents: Mapping[str, Any]) -> str:
        return self("apply", "-f", "-", stdin=yaml.safe_dump_all([dict(d) for d in documents]))

    def refusal(self, document: Mapping[str, Any]) -> str:
        """What the API server says to a document that it must not take."""
        done = self.run("apply", "-f", "-", stdin=yaml.safe_dump(dict(document)))
        assert done.returncode != 0, f"was taken: {done.stdout}"
        return done.stderr

    def patch_status(self, kind: str, name: str, status: Mapping[str, Any]) -> None:
        patch = json.dumps({"status": status})
        self("patch", kind, name, "--subresource=status", "--type=merge", "-p", patch)


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with ControlPlane.start(tmp_path_factory.mktemp("apiserver")) as started:
        kube = Kube(started.kubeconfig)
        kube("apply", "--server-side", "-f", str(ROOT / "crds"))
        wait_for_crds(kube)
        yield started


def wait_for_crds(kube: Kube) -> None:
    """`kubectl wait` fails at once for one that has no conditions yet: it is asked again, for half a minute."""
    deadline = time.monotonic() + 30
    while (done := kube.run("wait", "--for=condition=Established", "crd", "--all", "--timeout=30s")).returncode != 0:
        assert time.monotonic() < deadline, done.stderr
        time.sleep(0.1)


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
