"""A model from https: fetched in an init container, whose failure reaches the user in words."""

import copy
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client
from world import MANIFEST, SERVICE, Service, apply

REQUEST = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=e2e"


@pytest.fixture
def untrusted(cluster: None, tmp_path: Path) -> Iterator[str]:
    """An https server on the node whose certificate no pod trusts."""
    (node,) = client.CoreV1Api().list_node().items
    address = next(a.address for a in node.status.addresses if a.type == "InternalIP")
    subprocess.run(["openssl", *REQUEST.split(), "-keyout", "key", "-out", "cert"], cwd=tmp_path, check=True)
    server = ThreadingHTTPServer((address, 0), SimpleHTTPRequestHandler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "cert", tmp_path / "key")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"https://{address}:{server.server_address[1]}/model/"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_source_that_pods_do_not_trust_is_named(
    untrusted: str, volume: Any, make_service: Callable[..., Service]
) -> None:
    manifest = copy.deepcopy(MANIFEST)
    manifest["metadata"]["name"] = "remote"
    manifest["spec"]["source"] = {"uri": untrusted}
    apply(manifest, namespace=volume.namespace)
    model = {**SERVICE["spec"]["model"], "manifestRef": {"name": "remote"}}  # the same bytes: the same digest
    service = make_service("remote", scaling=None, replicas=1, model=model)
    stalled = service.wait_until("Stalled", "True")
    assert stalled["reason"] == "FetchFailed"
    assert ": the source cannot be trusted: self-signed certificate" in stalled["message"]  # of one of the files
    assert "next:" in stalled["message"]
    assert service.condition("Ready")["status"] == "False"
