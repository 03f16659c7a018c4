"""A cluster with the operator and the model in it.

The cluster is the one that KUBECONFIG leads to: `make e2e` starts one, and any other will do that can pull the images
of PINRAIL_E2E_IMAGES (JSON: engine, operator) and whose node sees PINRAIL_E2E_VOLUME at the same path.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client, config
from world import MANIFEST, ROOT, Service, apply, kubectl, service_document, wait_for

from pinrail_contract.cache import cache, volumes

SYSTEM = "pinrail-system"
RELEASE = "pinrail"
CHART = ROOT / "charts" / "pinrail"
MODEL = "smollm2-135m-instruct"
RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}


@dataclass(frozen=True)
class Volume:
    """Where a module's services find the model."""

    namespace: str
    folder: Path  # the model's, on the node


@pytest.fixture(scope="session")
def images() -> dict[str, str]:
    path = Path(os.environ.get("PINRAIL_E2E_IMAGES") or cache() / "cluster" / "images.json")
    return dict(json.loads(path.read_text()))


@pytest.fixture(scope="session")
def cluster() -> None:
    config.load_kube_config()


@dataclass(frozen=True)
class Release:
    """The chart, as a user has it: a release of Helm beside CRDs, which Helm makes and never touches again."""

    values: tuple[str, ...]

    def install(self) -> None:
        """Returns once the operator is ready. CRDs of an earlier run are renewed first, as docs/gitops.md has it."""
        kubectl("apply", "--server-side", "--force-conflicts", "-f", str(CHART / "crds"))
        self._helm("upgrade", "--install", RELEASE, str(CHART), *self.values, "--wait", "--timeout=180s")

    def uninstall(self) -> None:
        """Returns once its objects are gone; pods may still be ending."""
        self._helm("uninstall", RELEASE, "--wait", "--timeout=120s")

    def _helm(self, *words: str) -> None:
        done = subprocess.run(["helm", *words, "--namespace", SYSTEM], capture_output=True, text=True)
        assert done.returncode == 0, f"helm {words[0]}: {done.stderr}"


@pytest.fixture(scope="session")
def release(images: dict[str, str]) -> Release:
    repository, digest = images["operator"].split("@")
    values = {
        "image.repository": repository,
        "image.digest": digest,
        "engine.image": images["engine"],
        "tickSeconds": "2",
    }
    words = [f"--set-string={k}={v}" if k != "tickSeconds" else f"--set={k}={v}" for k, v in values.items()]
    return Release(tuple(words))


@pytest.fixture(scope="session")
def operator(cluster: None, release: Release) -> Iterator[None]:
    _namespace(SYSTEM)
    release.install()
    crds = ("crd/inferenceservices.pinrail.dev", "crd/modelmanifests.pinrail.dev")
    established = ("wait", "--for=condition=Established", *crds)  # fails at once for one that has no conditions yet
    wait_for("the CRDs", lambda: kubectl(*established, check=False).count("condition met") == len(crds))
    yield
    sys.stderr.write(kubectl("logs", "-n", SYSTEM, "deployment/pinrail-operator", "--tail=60", check=False))


@pytest.fixture(scope="module")
def volume(request: pytest.FixtureRequest, operator: None) -> Iterator[Volume]:
    """A namespace of the module's own: its claim `models` holds a copy of the model, its manifest pins it."""
    namespace = "e2e-" + request.path.stem.removeprefix("test_").replace("_", "-")
    folder = Path(os.environ.get("PINRAIL_E2E_VOLUME") or cache() / "e2e") / namespace
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(volumes() / "models" / MODEL, folder / MODEL)
    _namespace(namespace, RESTRICTED)
    kubectl("apply", "--server-side", "-f", "-", stdin=json.dumps(_persistent_volume(namespace, folder)))
    apply(_claim(namespace), MANIFEST, namespace=namespace)
    yield Volume(namespace, folder / MODEL)
    kubectl("delete", "namespace", namespace, "--wait=false")
    kubectl("delete", "pv", namespace, "--wait=false")
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def make_service(volume: Volume) -> Iterator[Callable[..., Service]]:
    """Apply the example under a name of its own, with fields of its spec replaced."""
    made: list[Service] = []

    def make(name: str, **spec: Any) -> Service:
        apply(service_document(name, **spec), namespace=volume.namespace)
        made.append(Service(volume.namespace, name))
        return made[-1]

    yield make
    for service in made:
        service.close()


def _namespace(name: str, labels: dict[str, str] | None = None) -> None:
    api = client.CoreV1Api()

    def is_not_ending() -> bool:
        found = api.list_namespace(field_selector=f"metadata.name={name}").items
        return not found or found[0].status.phase == "Active"

    wait_for(f"the end of an earlier {name}", is_not_ending)
    document = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels or {}}}
    kubectl("apply", "--server-side", "-f", "-", stdin=json.dumps(document))
    wait_for(
        f"the default service account of {name}",
        lambda: any(a.metadata.name == "default" for a in api.list_namespaced_service_account(name).items),
    )


def _persistent_volume(name: str, folder: Path) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadOnlyMany"],
            "storageClassName": "e2e",
            "persistentVolumeReclaimPolicy": "Retain",
            "hostPath": {"path": str(folder), "type": "Directory"},
        },
    }


def _claim(volume: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "models"},
        "spec": {
            "accessModes": ["ReadOnlyMany"],
            "storageClassName": "e2e",
            "volumeName": volume,
            "resources": {"requests": {"storage": "1Gi"}},
        },
    }
