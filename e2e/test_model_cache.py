"""Fetched models that pods share: one download for all, nothing removed that a pod has, room made once none does."""

import functools
import json
import os
import shutil
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client
from world import SERVICE, Service, apply, kubectl, wait_for

from pinrail_contract.folder import no_progress
from pinrail_contract.pin_command import pin_folder
from pinrail_contract.pins import API_VERSION, KIND, ModelManifest, Source

USER = 65532  # of every pod
REQUEST = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=e2e"
RESOURCES = {"requests": {"cpu": "200m", "memory": "512Mi"}, "limits": {"memory": "2Gi"}}  # three fit the node
MAX_SIZE = "400Mi"  # room for one of the two models, of 258 MiB each


@dataclass
class Origin:
    """An https server on the node, which pods trust by a ConfigMap."""

    url: str
    asked: list[str] = field(default_factory=list)  # paths, in order

    def downloads(self, folder: str) -> list[str]:
        return sorted(path.rsplit("/", 1)[1] for path in self.asked if path.startswith(f"/{folder}/"))


class _Handler(SimpleHTTPRequestHandler):
    def __init__(self, asked: list[str], *args: Any, **named: Any) -> None:
        self.asked = asked
        super().__init__(*args, **named)

    def do_GET(self) -> None:
        self.asked.append(self.path)
        super().do_GET()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def origin(volume: Any, tmp_path: Path) -> Iterator[Origin]:
    """It has the model, as `one`, and as `two` with a file that differs by a line's end."""
    (node,) = client.CoreV1Api().list_node().items
    address = next(a.address for a in node.status.addresses if a.type == "InternalIP")
    names = ["-addext", f"subjectAltName=IP:{address}"]
    subprocess.run(["openssl", *REQUEST.split(), *names, "-keyout", "key", "-out", "cert"], cwd=tmp_path, check=True)
    shutil.copytree(volume.folder, tmp_path / "site" / "one")
    shutil.copytree(volume.folder, tmp_path / "site" / "two")
    with (tmp_path / "site" / "two" / "tokenizer_config.json").open("a") as file:
        file.write("\n")
    asked: list[str] = []
    handler = functools.partial(_Handler, asked, directory=str(tmp_path / "site"))
    server = ThreadingHTTPServer((address, 0), handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "cert", tmp_path / "key")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    trusted = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "origin"},
               "data": {"ca.crt": (tmp_path / "cert").read_text()}}  # fmt: skip
    apply(trusted, namespace=volume.namespace)
    yield Origin(f"https://{address}:{server.server_address[1]}", asked)
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def cache(volume: Any) -> Iterator[Path]:
    """The folder on the node of the claim `cache`."""
    name, folder = f"{volume.namespace}-cache", volume.folder.parents[1] / f"{volume.namespace}-cache"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    os.chown(folder, USER, USER)
    common = {"accessModes": ["ReadWriteMany"], "storageClassName": "e2e"}
    kubectl("apply", "--server-side", "-f", "-", stdin=json.dumps({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name},
        "spec": {**common, "capacity": {"storage": "1Gi"}, "persistentVolumeReclaimPolicy": "Retain",
                 "hostPath": {"path": str(folder), "type": "Directory"}},
    }))  # fmt: skip
    claim = {
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "cache"},
        "spec": {**common, "volumeName": name, "resources": {"requests": {"storage": "1Gi"}}},
    }  # fmt: skip
    apply(claim, namespace=volume.namespace)
    yield folder
    kubectl("delete", "pv", name, "--wait=false")
    shutil.rmtree(folder, ignore_errors=True)


def pin(origin: Origin, name: str, volume: Any, site: Path) -> ModelManifest:
    """The ModelManifest of what the server has under a name, applied."""
    manifest = pin_folder(site / name, Source(f"{origin.url}/{name}/"), no_progress)
    document = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": name}, "spec": manifest.to_spec()}
    apply(document, namespace=volume.namespace)
    return manifest


def cached(name: str, manifest: ModelManifest) -> dict[str, Any]:
    """The spec's fields of a service of that manifest."""
    model = {
        "name": SERVICE["spec"]["model"]["name"], "manifestRef": {"name": name}, "digest": manifest.digest,
        "caConfigMapRef": {"name": "origin", "key": "ca.crt"},
        "cache": {"persistentVolumeClaim": {"claimName": "cache"}, "maxSize": MAX_SIZE},
    }  # fmt: skip
    return {"model": model, "scaling": None, "resources": RESOURCES}


def test_replicas_download_once_and_room_is_made_once_no_pod_has_a_model(
    origin: Origin, cache: Path, volume: Any, make_service: Callable[..., Service], tmp_path: Path
) -> None:
    one, two = (pin(origin, name, volume, tmp_path / "site") for name in ("one", "two"))
    first = make_service("first", replicas=2, **cached("one", one))
    first.wait_until("Ready", "True")
    assert len(first.pods()) == 2
    assert first.ask("What is the capital of France?") == "The capital of France is Paris."
    assert origin.downloads("one") == sorted(f.path for f in one.files)

    second = make_service("second", replicas=1, **cached("two", two))
    stalled = second.wait_until("Stalled", "True")
    assert stalled["reason"] == "CacheFailed"
    assert "the cache has no room for sha256-" in stalled["message"]
    assert "1 model in use" in stalled["message"]
    assert "next: where it is full, raise spec.model.cache.maxSize" in stalled["message"]
    assert (cache / one.files_digest.replace(":", "-")).exists()

    first.patch({"suspend": True})
    wait_for("the end of the first's pods", lambda: not first.pods(), show=first.describe)
    second.wait_until(
        "Ready", "True", timeout=420.0
    )  # the kubelet starts a fetch that fails again after up to 5 minutes
    assert not (cache / one.files_digest.replace(":", "-")).exists()
    assert origin.downloads("two") == sorted(f.path for f in two.files)
    assert second.ask("What is the capital of France?") == "The capital of France is Paris."
