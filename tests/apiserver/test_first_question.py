"""How soon a pod is asked for its digest once it is ready: by its event, and not at a tick."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from apiserver_documents import pin, service
from operator_builders import DIGEST
from operator_process import until

from pinrail_contract import endpoints
from pinrail_contract.metrics import MANIFEST_INFO, VERIFIED
from pinrail_operator import names

pytestmark = pytest.mark.apiserver

OTHER = "sha256:" + "9" * 64
LONG = 600  # seconds; no tick and no resync comes while a test runs
SOON = 5.0  # seconds; a look takes less


class Engine:
    """Answers for a pod at an address of its own, and notes when it was asked."""

    def __init__(self, ip: str) -> None:
        self.ip, self.digest, self.asked = ip, DIGEST, list[float]()
        engine = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                engine.asked.append(time.monotonic())
                self.send_response(200)
                self.end_headers()
                self.wfile.write(f'{MANIFEST_INFO}{{digest="{engine.digest}",verification="{VERIFIED}"}} 1\n'.encode())

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer((ip, endpoints.PORT), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


def free_address() -> str:
    """One of this machine's own, at whose engine port nobody listens."""
    for last in range(10, 250):
        with socket.socket() as probe:
            if probe.connect_ex((address := f"127.77.3.{last}", endpoints.PORT)) != 0:
                return address
    raise AssertionError("all are taken")


@pytest.fixture
def engine() -> Iterator[Callable[[], Engine]]:
    started: list[Engine] = []

    def one() -> Engine:
        started.append(Engine(free_address()))
        return started[-1]

    yield one
    for server in started:
        server.close()


def add_pod(kube: Any, name: str) -> None:
    template = kube.get("deployment", "chat")["spec"]["template"]
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, **template["metadata"]}}
    kube.apply({**pod, "spec": template["spec"]})


def settle(kube: Any, start: Any) -> None:
    """An operator that has nothing to do and looks at nothing by itself."""
    operator = start(PINRAIL_TICK_SECONDS=str(LONG), PINRAIL_RESYNC_SECONDS=str(LONG))
    until(operator.leads, "leading")
    kube.apply(pin(), service(replicas=1))
    until(lambda: kube.exists("deployment", "chat"), "the Deployment")
    until(lambda: "conditions" in kube.get("infs", "chat").get("status", {}), "the status")


def become_ready(kube: Any, name: str, ip: str) -> float:
    ready = {"phase": "Running", "podIP": ip, "conditions": [{"type": "Ready", "status": "True"}]}
    kube.patch_status("pod", name, ready)
    return time.monotonic()


def test_a_pod_is_asked_at_once_when_it_becomes_ready(
    kube: Any, start: Any, engine: Callable[[], Engine], say: Callable[[str], None]
) -> None:
    settle(kube, start)
    waits = []
    for i in range(5):
        one = engine()
        add_pod(kube, f"chat-{i}")
        assert one.asked == [], "before it is ready, nobody asks"
        at = become_ready(kube, f"chat-{i}", one.ip)
        until(lambda: bool(one.asked), "the question", SOON)  # noqa: B023
        waits.append(one.asked[0] - at)
    say(f"first question {min(waits) * 1000:.0f} to {max(waits) * 1000:.0f} ms after kubectl had written Ready")


def test_a_wrong_pod_is_out_within_a_look_of_its_readiness(
    kube: Any, start: Any, engine: Callable[[], Engine], say: Callable[[str], None]
) -> None:
    settle(kube, start)
    one = engine()
    one.digest = OTHER
    add_pod(kube, "chat-a")
    at = become_ready(kube, "chat-a", one.ip)
    until(lambda: kube.get("pod", "chat-a")["metadata"]["labels"][names.SERVICE] == "chat.quarantine", "it", SOON)
    say(f"a wrong pod left the Service {time.monotonic() - at:.1f} s after it was ready, two kubectl's starts included")
