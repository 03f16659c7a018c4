"""A service of a vLLM-compatible engine, from the document to a scale-up, with a stand-in that the rendered pod starts.

The stand-in runs the very words that the API server holds for the container; what our init container left is written
into the pod's status as a kubelet would.
"""

import os
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import vllm_stand_in
from apiserver_documents import pin, service
from operator_builders import DIGEST, IMAGE

from pinrail_contract.pins import ModelManifest
from pinrail_contract.termination import Reason, Termination
from pinrail_operator import names
from pinrail_operator.cluster import Cluster
from pinrail_operator.metrics import Scraper
from pinrail_operator.reconcile import Reconciler
from pinrail_operator.types import ServiceKey

pytestmark = pytest.mark.apiserver

VLLM = "registry.test/vllm/vllm-openai@sha256:" + "c" * 64
SPEC = {
    "engine": {"type": "vllm", "image": VLLM, "args": ["--gpu-memory-utilization=0.9", "--enforce-eager"]},
    "limits": {"maxNumSeqs": 2, "blockSize": 16},
    "replicas": None,
    "scaling": {"minReplicas": 1, "maxReplicas": 4},
}
GOOD = Termination(Reason.VERIFIED, DIGEST)
WRONG = Termination(Reason.MODEL_MISMATCH, "1 file differs from manifest x: tokenizer.json: changed")


class StandIn:
    """The engine's container, on 127.0.0.1."""

    def __init__(self, args: list[str], port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.callers = ThreadPoolExecutor(8)
        self.process = subprocess.Popen(
            [sys.executable, vllm_stand_in.__file__, *args], env={**os.environ, "VLLM_STAND_IN": f"127.0.0.1:{port}"},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self.process.stdout is not None
        said = self.process.stdout.readline()
        assert said == "ready\n", self.process.communicate()[1]

    def get(self, path: str) -> str:
        with urllib.request.urlopen(self.url + path, timeout=10) as answer:
            return str(answer.read(), "utf-8")

    def ask(self, times: int) -> None:
        """Completions that stay open; returns when all have been taken in."""
        for _ in range(times):
            self.callers.submit(urllib.request.urlopen, self.url + "/v1/completions", b"{}", 60)
        for _ in range(1000):
            page = self.get("/metrics")
            taken = [float(line.split()[-1]) for line in page.splitlines() if line.startswith(COUNTS)]
            if sum(taken) == times:
                return
        raise AssertionError(f"not all were taken in: {taken}")

    def close(self) -> None:
        self.process.communicate("go\n", timeout=20)
        self.callers.shutdown()


COUNTS = ("vllm:num_requests_running{", "vllm:num_requests_waiting{")


@pytest.fixture
def port(free_port: Callable[[], int]) -> int:
    return free_port()


@pytest.fixture
async def operator(cluster: Cluster, port: int) -> AsyncIterator[Reconciler]:
    scraper = Scraper.create()
    yield Reconciler(
        cluster=cluster, scraper=Scraper(scraper.session, port), engine_image=IMAGE, tick=5.0, resync=300.0
    )
    await scraper.close()


def deployed(kube: Any) -> dict[str, Any]:
    return dict(kube.get("deployment", "chat")["spec"]["template"])


@pytest.fixture
def start(kube: Any, port: int) -> Iterator[Callable[[], StandIn]]:
    started: list[StandIn] = []

    def one() -> StandIn:
        (engine,) = deployed(kube)["spec"]["containers"]
        assert "command" not in engine
        started.append(StandIn(engine["args"], port))
        return started[-1]

    yield one
    for stand_in in started:
        stand_in.close()


def add_pod(kube: Any, said: Termination, code: int = 0) -> None:
    template = deployed(kube)
    kube.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "chat-a", **template["metadata"]},
                "spec": template["spec"]})  # fmt: skip
    ended = {"terminated": {"exitCode": code, "message": said.render(), "reason": "Completed"}}
    verify = {"name": names.VERIFY, "image": IMAGE, "imageID": "x", "ready": code == 0, "restartCount": 0,
              "state": ended}  # fmt: skip
    ready = {"type": "Ready", "status": str(code == 0)}
    kube.patch_status("pod", "chat-a", {"phase": "Running", "podIP": "127.0.0.1", "conditions": [ready],
                                        "initContainerStatuses": [verify]})  # fmt: skip


def condition(kube: Any, kind: str) -> tuple[str, str, str]:
    found = {c["type"]: c for c in kube.get("infs", "chat")["status"]["conditions"]}
    return found[kind]["status"], found[kind]["reason"], found[kind]["message"]


async def test_its_own_figures_scale_it_up(operator: Reconciler, kube: Any, start: Callable[[], StandIn]) -> None:
    key = ServiceKey(kube.namespace, "chat")
    kube.apply(pin(), service(**SPEC))
    await operator.reconcile(key)
    engine = start()
    assert engine.get("/health") == ""
    add_pod(kube, GOOD)
    await operator.reconcile(key)
    assert condition(kube, "ScalingActive")[:2] == ("True", "Steady")
    engine.ask(5)
    await operator.reconcile(key)
    scaling = kube.get("infs", "chat")["status"]["scaling"]
    assert scaling["reason"] == "SlotDemand"
    # two run in 8 blocks each, three wait with a mean prompt of 64 tokens in blocks of 16
    assert scaling["message"] == "28 of 64 KV blocks and 5 of 2 request slots need 3 replicas"
    assert kube.get("deployment", "chat")["spec"]["replicas"] == 3


async def test_a_page_that_cannot_be_had_holds_the_scaler_and_says_so(operator: Reconciler, kube: Any) -> None:
    key = ServiceKey(kube.namespace, "chat")
    kube.apply(pin(), service(**SPEC))
    await operator.reconcile(key)
    add_pod(kube, GOOD)
    await operator.reconcile(key)
    assert condition(kube, "ScalingActive")[:2] == ("False", "NoMetrics")
    assert kube.get("deployment", "chat")["spec"]["replicas"] == 1


async def test_what_is_verified_rests_on_the_init_container_and_says_so(operator: Reconciler, kube: Any) -> None:
    key = ServiceKey(kube.namespace, "chat")
    kube.apply(pin(), service(**SPEC))
    await operator.reconcile(key)
    add_pod(kube, GOOD)
    await operator.reconcile(key)
    status, reason, message = condition(kube, "ModelVerified")
    assert (status, reason) == ("True", "VerifiedBeforeStart")
    assert message == (
        f"before each ready replica started, an init container found its files to be {DIGEST}; "
        "the engine does not look at them again"
    )
    assert kube.get("infs", "chat")["status"]["model"] == {"digest": DIGEST, "verifiedReplicas": 1}


def pinning(version: str, **more: Any) -> list[dict[str, Any]]:
    """The manifest that pins the version of the engine, and its service."""
    document = pin(engine={"version": version}, **more)
    digest = ModelManifest.from_spec(document["spec"]).digest
    return [document, service(model={"name": "tiny", "manifestRef": {"name": "tiny-v1"}, "digest": digest}, **SPEC)]


async def test_another_version_than_the_pinned_one_is_seen_from_outside_and_taken_out(
    operator: Reconciler, kube: Any, start: Callable[[], StandIn]
) -> None:
    key = ServiceKey(kube.namespace, "chat")
    documents = pinning("0.31.0")
    kube.apply(*documents)
    await operator.reconcile(key)
    start()
    add_pod(kube, Termination(Reason.VERIFIED, documents[1]["spec"]["model"]["digest"]))
    await operator.reconcile(key)
    assert kube.get("pod", "chat-a")["metadata"]["labels"][names.SERVICE] == "chat.quarantine"
    (event,) = [e for e in kube.get("events")["items"] if e["reason"] == "Quarantined"]
    assert "spec.engine.version: got 0.32.0, want 0.31.0" in event["message"]


async def test_what_such_an_engine_does_not_report_is_not_judged_and_said_not_to_be_verified(
    operator: Reconciler, kube: Any, start: Callable[[], StandIn]
) -> None:
    key = ServiceKey(kube.namespace, "chat")
    documents = pinning(vllm_stand_in.VERSION, numerics={"kvCacheDtype": "bfloat16"})
    kube.apply(*documents)
    await operator.reconcile(key)
    start()
    add_pod(kube, Termination(Reason.VERIFIED, documents[1]["spec"]["model"]["digest"]))
    await operator.reconcile(key)
    status, reason, message = condition(kube, "ModelVerified")
    assert (status, reason) == ("True", "VerifiedBeforeStart")
    assert message.endswith(
        "; 1 of 1 ready replica does not report spec.numerics.kvCacheDtype, so that is not verified from outside"
    )
    assert kube.get("infs", "chat")["status"]["model"]["engineVersion"] == vllm_stand_in.VERSION


async def test_files_that_differ_are_named_and_start_no_engine(operator: Reconciler, kube: Any) -> None:
    key = ServiceKey(kube.namespace, "chat")
    kube.apply(pin(), service(**SPEC))
    await operator.reconcile(key)
    add_pod(kube, WRONG, code=1)
    await operator.reconcile(key)
    assert condition(kube, "ModelVerified")[:2] == ("False", "ModelMismatch")
    assert "container verify: 1 file differs" in condition(kube, "Stalled")[2]


async def test_it_settles_and_is_not_applied_again(operator: Reconciler, kube: Any) -> None:
    key = ServiceKey(kube.namespace, "chat")
    kube.apply(pin(), service(**SPEC))
    await operator.reconcile(key)
    await operator.reconcile(key)
    before = kube.get("deployment,service,infs")["items"]
    await operator.reconcile(key)
    assert kube.get("deployment,service,infs")["items"] == before


async def test_without_an_image_that_verifies_no_pod_is_made(cluster: Cluster, kube: Any, operator: Reconciler) -> None:
    kube.apply(pin(), service(**SPEC))
    operator.engine_image = ""
    await operator.reconcile(ServiceKey(kube.namespace, "chat"))
    assert not kube.exists("deployment", "chat")
    assert condition(kube, "Stalled")[1] == "EngineImageMissing"
    assert "which verifies files while spec.engine.type is vllm: got none" in condition(kube, "Stalled")[2]


async def test_a_newer_image_that_verifies_restarts_nothing_by_itself(operator: Reconciler, kube: Any) -> None:
    """An edit that rolls the pods anyway brings it along."""
    key, newer = ServiceKey(kube.namespace, "chat"), IMAGE.replace("engine@", "newer@")
    kube.apply(pin(), service(**SPEC))
    await operator.reconcile(key)
    await operator.reconcile(key)
    before = kube.get("deployment", "chat")
    operator.engine_image, operator.memories = newer, {}
    await operator.reconcile(key)
    assert kube.get("deployment", "chat")["metadata"]["generation"] == before["metadata"]["generation"]
    kube.apply(service(**{**SPEC, "limits": {"maxNumSeqs": 4}}))
    await operator.reconcile(key)
    (verify,) = deployed(kube)["spec"]["initContainers"]
    assert verify["image"] == newer
