"""A pod's fetch, from the source to what a person reads: a real `pinrail fetch` answers at the pod's address.

No kubelet runs: what it would say of the containers is written by hand.
"""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from apiserver_documents import service
from https_server import write_certificate
from operator_builders import IMAGE
from stepped_source import Steps, fetching, pinned, stepped_source

from pinrail_contract.fetch import CHUNK
from pinrail_contract.pins import ModelManifest
from pinrail_operator import explain_command, status_command
from pinrail_operator.cluster import Cluster
from pinrail_operator.metrics import Scraper
from pinrail_operator.reconcile import Reconciler
from pinrail_operator.types import ServiceKey

pytestmark = pytest.mark.apiserver

CONFIG = {
    "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 100, "max_position_embeddings": 128,
}  # fmt: skip
PIECES = 10


class Scene:
    """A service of one replica, whose pod fetches, and its operator."""

    def __init__(self, kube: Any, operator: Reconciler, manifest: ModelManifest) -> None:
        self.kube, self.operator, self.manifest = kube, operator, manifest

    async def look(self) -> float | None:
        return await self.operator.reconcile(ServiceKey(self.kube.namespace, "chat"))

    async def begin(self) -> None:
        head = {"apiVersion": "pinrail.dev/v1alpha1", "kind": "ModelManifest", "metadata": {"name": "tiny-v1"}}
        model = {"name": "tiny", "manifestRef": {"name": "tiny-v1"}, "digest": self.manifest.digest}
        self.kube.apply({**head, "spec": self.manifest.to_spec()}, service(replicas=1, model=model))
        await self.look()
        await self.look()
        template = self.kube.get("deployment", "chat")["spec"]["template"]
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "chat-a", **template["metadata"]}}
        self.kube.apply({**pod, "spec": template["spec"]})

    def container(self, **state: Any) -> None:
        (init,) = self.kube.get("pod", "chat-a")["spec"]["initContainers"]
        fetch = {"name": init["name"], "image": IMAGE, "imageID": "x", "ready": False, "restartCount": 0}
        told = {"phase": "Pending", "podIP": "127.0.0.1", "initContainerStatuses": [{**fetch, "state": state}]}
        self.kube.patch_status("pod", "chat-a", told)

    def message(self) -> str:
        found = {c["type"]: c["message"] for c in self.kube.get("infs", "chat")["status"]["conditions"]}
        return str(found["WorkloadReady"])

    async def until(self, said: str) -> None:
        for _ in range(200):
            assert await self.look() == 5.0, "it is looked at again at the tick"
            if self.message().endswith(said):
                return
            await asyncio.sleep(0.05)
        raise AssertionError(f"got {self.message()}, want {said}")


@pytest.fixture
def port(free_port: Callable[[], int]) -> int:
    return free_port()


@pytest.fixture
def steps() -> Steps:
    return Steps()


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    folder = tmp_path / "tls"
    folder.mkdir()
    return write_certificate(folder)


@pytest.fixture
def manifest(tmp_path: Path, certificate: Path, steps: Steps) -> Iterator[ModelManifest]:
    """Of a model whose source gives one piece after the other."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "tokenizer.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(os.urandom(PIECES * CHUNK))
    with stepped_source(folder, certificate, steps) as url:
        yield pinned(folder, url)


@pytest.fixture
async def scene(cluster: Cluster, kube: Any, port: int, manifest: ModelManifest) -> AsyncIterator[Scene]:
    made = Scraper.create()
    scraper = Scraper(made.session, port)
    yield Scene(
        kube, Reconciler(cluster=cluster, scraper=scraper, engine_image=IMAGE, tick=5.0, resync=300.0), manifest
    )
    await made.close()


async def test_a_condition_says_how_far_a_pod_is_that_fetches_its_model(
    scene: Scene, steps: Steps, certificate: Path, port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setenv("KUBECONFIG", str(scene.kube.kubeconfig))
    await scene.begin()
    scene.container(running={})
    await scene.look()
    waits = "0 of 1 replica is ready; pod chat-a is fetching or checking its model"
    assert scene.message() == waits, "nobody answers yet"
    with fetching(scene.manifest, tmp_path, certificate, "127.0.0.1", port) as process:
        await scene.until("pod chat-a is fetching its model: 0 % of 10.5 MB")
        steps.give(5)
        await scene.until("pod chat-a is fetching its model: 50 % of 10.5 MB")
        written = scene.kube.get("infs", "chat")["metadata"]["resourceVersion"]
        for _ in range(3):
            await scene.look()
        assert scene.kube.get("infs", "chat")["metadata"]["resourceVersion"] == written
        for command in (status_command.command, explain_command.command):
            assert await asyncio.to_thread(command.run, ["chat", "-n", scene.kube.namespace]) == 0
            assert "pod chat-a is fetching its model: 50 % of 10.5 MB" in capsys.readouterr().out
        steps.give(PIECES - 5)
        assert process.wait(30) == 0
    scene.container(terminated={"exitCode": 0, "reason": "Completed"})
    await scene.look()
    assert scene.message() == "0 of 1 replica is ready"


async def test_an_operator_that_starts_anew_goes_on_where_the_fetch_is(
    scene: Scene, steps: Steps, certificate: Path, port: int, tmp_path: Path
) -> None:
    await scene.begin()
    scene.container(running={})
    steps.give(7)
    with fetching(scene.manifest, tmp_path, certificate, "127.0.0.1", port):
        await scene.until("70 % of 10.5 MB")
        scene.operator.memories.clear()
        before = scene.kube.get("infs", "chat")
        await scene.look()
        assert scene.kube.get("infs", "chat") == before
        steps.give(PIECES)
