"""What the e2e tests act on: a cluster with the operator in it, and services made from the example."""

import copy
import json
import socket
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import httpx
import openai
import yaml
from kubernetes import client

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "crds" / "examples" / "smollm2.yaml"
MANIFEST, SERVICE = yaml.safe_load_all(EXAMPLE.read_text())
GROUP, VERSION = "pinrail.dev", "v1alpha1"
SMALL = {"requests": {"cpu": "200m", "memory": "1Gi"}, "limits": {"memory": "3Gi"}}  # two fit a node of two cores
T = TypeVar("T")
SLOW = 180.0  # seconds; only waited for in full when a test fails


def kubectl(*words: str, stdin: str = "", check: bool = True) -> str:
    """Standard output; a failure shows standard error."""
    done = subprocess.run(["kubectl", *words], input=stdin, capture_output=True, text=True)
    assert done.returncode == 0 or not check, f"kubectl {' '.join(words)}: {done.stderr}"
    return done.stdout


def apply(*documents: dict[str, Any], namespace: str) -> None:
    kubectl("apply", "--server-side", "-n", namespace, "-f", "-", stdin=yaml.safe_dump_all(documents))


def wait_for(what: str, look: Callable[[], T | None], timeout: float = SLOW, show: Callable[[], str] = str) -> T:
    """What `look` returns once it is not None or False; a time-out fails with `show`."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        seen = look()
        if seen is not None and seen is not False:
            return seen
        time.sleep(0.5)
    raise AssertionError(f"{what}: not seen in {timeout:.0f} s\n{show()}")


def accepts(address: str, port: int) -> bool:
    """Whether a connection is accepted: nodes learn of a ready pod a moment after the API server does."""
    try:
        socket.create_connection((address, port), timeout=5.0).close()
    except OSError:
        return False
    return True


@dataclass
class Service:
    """One InferenceService in the cluster, as its user sees it."""

    namespace: str
    name: str
    clients: list[httpx.Client] = field(default_factory=list)

    def get(self) -> dict[str, Any]:
        api = client.CustomObjectsApi()
        found = api.get_namespaced_custom_object(GROUP, VERSION, self.namespace, "inferenceservices", self.name)
        return dict(found)

    def status(self) -> dict[str, Any]:
        return dict(self.get().get("status", {}))

    def condition(self, kind: str) -> dict[str, Any]:
        """Empty until the operator has written it for the newest spec."""
        body = self.get()
        status = body.get("status", {})
        if status.get("observedGeneration") != body["metadata"]["generation"]:
            return {}
        return next((c for c in status.get("conditions", []) if c["type"] == kind), {})

    def wait_until(self, kind: str, status: str, timeout: float = SLOW) -> dict[str, Any]:
        def look() -> dict[str, Any] | None:
            condition = self.condition(kind)
            return condition if condition.get("status") == status else None

        return wait_for(f"{kind}={status} of {self.name}", look, timeout, self.describe)

    def describe(self) -> str:
        words = ("-n", self.namespace)
        return kubectl("describe", "infs", self.name, *words) + kubectl("get", "pods", "-o", "wide", *words)

    def pods(self) -> list[Any]:
        selector = f"pinrail.dev/service={self.name}"
        return list(client.CoreV1Api().list_namespaced_pod(self.namespace, label_selector=selector).items)

    def events(self) -> list[Any]:
        found = client.CoreV1Api().list_namespaced_event(self.namespace).items
        return [
            e for e in found if e.involved_object.kind == "InferenceService" and e.involved_object.name == self.name
        ]

    def patch(self, spec: dict[str, Any]) -> None:
        patch = json.dumps({"spec": spec})
        kubectl("patch", "infs", self.name, "-n", self.namespace, "--type=merge", "-p", patch)

    def openai(self) -> openai.OpenAI:
        """The official client, through the Service's ClusterIP."""
        spec = client.CoreV1Api().read_namespaced_service(self.name, self.namespace).spec
        address, port = spec.cluster_ip, spec.ports[0].port
        wait_for(f"kube-proxy's rules for {address}", lambda: accepts(address, port), show=self.describe)
        http = httpx.Client(trust_env=False, timeout=SLOW)
        self.clients.append(http)
        return openai.OpenAI(base_url=f"http://{address}:{port}/v1", api_key="none", http_client=http, max_retries=0)

    def close(self) -> None:
        for http in self.clients:
            http.close()

    def ask(self, question: str) -> str:
        """A greedy, streamed answer."""
        stream = self.openai().chat.completions.create(
            model=SERVICE["spec"]["model"]["name"],
            messages=[{"role": "user", "content": question}],
            temperature=0,
            max_completion_tokens=32,
            stream=True,
        )
        return "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)


def service_document(name: str, **spec: Any) -> dict[str, Any]:
    """The example's service under another name, with fields of its spec replaced; None removes one."""
    document: dict[str, Any] = copy.deepcopy(SERVICE)
    document["metadata"]["name"] = name
    document["spec"]["resources"] = SMALL
    for key, value in spec.items():
        document["spec"].pop(key, None)
        if value is not None:
            document["spec"][key] = value
    return document
