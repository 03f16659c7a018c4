"""Pods that report another digest or engine than their pin, on a real API server: who is taken out, and who never is.

No controller runs, so pods are made and answer by hand here; which of them a Service or ReplicaSet would have is asked
of the API server by their own selectors.
"""

import asyncio
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from apiserver_documents import pin, service
from operator_builders import DIGEST, IMAGE, load

from pinrail_contract.pins import ModelManifest
from pinrail_contract.runtime import UNSAID, Runtime
from pinrail_operator import diff_command, explain_command, names
from pinrail_operator.cluster import Cluster
from pinrail_operator.metrics import Scrape
from pinrail_operator.quarantine import MOST
from pinrail_operator.reconcile import Reconciler
from pinrail_operator.types import ServiceKey

pytestmark = pytest.mark.apiserver

OTHER = "sha256:" + "9" * 64
READY = {"phase": "Running", "podIP": "10.0.0.1", "conditions": [{"type": "Ready", "status": "True"}]}


class Answers:
    """What pods report; one that is not named answers nothing."""

    def __init__(self) -> None:
        self.digests: dict[str, str] = {}
        self.runtimes: dict[str, Runtime] = {}

    async def scrape(self, pods: Any) -> dict[str, Scrape]:
        return {p.name: self._answer(p.name) for p in pods}

    def _answer(self, pod: str) -> Scrape:
        digest = self.digests.get(pod, "")
        return Scrape(load(), digest, self.runtimes.get(pod, UNSAID)) if digest else Scrape(error="no answer")


class Scene:
    """One service of two replicas, its operator, and its pods."""

    def __init__(self, cluster: Cluster, kube: Any) -> None:
        self.cluster, self.kube, self.answers = cluster, kube, Answers()
        self.restart()

    def restart(self) -> None:
        """Another operator, which remembers nothing."""
        self.operator = Reconciler(
            cluster=self.cluster, scraper=self.answers, engine_image=IMAGE, tick=5.0, resync=300.0
        )

    async def look(self, times: int = 1) -> None:
        for _ in range(times):
            await self.operator.reconcile(ServiceKey(self.kube.namespace, "chat"))

    async def begin(self, manifest: dict[str, Any] | None = None, **spec: Any) -> None:
        document = manifest or pin()
        digest = ModelManifest.from_spec(document["spec"]).digest
        model = {"name": "tiny", "manifestRef": {"name": document["metadata"]["name"]}, "digest": digest}
        self.kube.apply(document, service(**{"model": model, **spec}))
        await self.look(2)
        self.add("chat-a", digest)
        self.add("chat-b", digest)
        self.tell(2)
        await self.look()

    def add(self, name: str, digest: str = "") -> None:
        template = self.kube.get("deployment", "chat")["spec"]["template"]
        self.kube.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, **template["metadata"]},
                         "spec": template["spec"]})  # fmt: skip
        self.kube.patch_status("pod", name, READY)
        self.answers.digests[name] = digest

    def tell(self, replicas: int) -> None:
        generation = self.kube.get("deployment", "chat")["metadata"]["generation"]
        counts = {"replicas": replicas, "updatedReplicas": replicas, "observedGeneration": generation}
        self.kube.patch_status("deployment", "chat", counts)

    def selected(self, labels: dict[str, str]) -> set[str]:
        query = ",".join(f"{key}={value}" for key, value in labels.items())
        return {p["metadata"]["name"] for p in self.kube.get("pods", "-l", query)["items"]}

    def served(self) -> set[str]:
        return self.selected(self.kube.get("service", "chat")["spec"]["selector"])

    def kept(self) -> set[str]:
        """By the Deployment, and so by its ReplicaSets."""
        return self.selected(self.kube.get("deployment", "chat")["spec"]["selector"]["matchLabels"])

    def condition(self, kind: str) -> tuple[str, str, str]:
        found = {c["type"]: c for c in self.kube.get("infs", "chat")["status"]["conditions"]}
        return found[kind]["status"], found[kind]["reason"], found[kind]["message"]

    def said(self) -> list[str]:
        return [e["message"] for e in self.kube.get("events", "--field-selector=reason=Quarantined")["items"]]


@pytest.fixture
def scene(cluster: Cluster, kube: Any) -> Scene:
    return Scene(cluster, kube)


async def test_a_pod_that_reports_another_digest_is_out_within_one_look(scene: Scene) -> None:
    await scene.begin()
    scene.answers.digests["chat-b"] = OTHER
    await scene.look()
    assert scene.served() == scene.kept() == {"chat-a"}
    pod = scene.kube.get("pod", "chat-b")
    assert pod["metadata"]["labels"][names.SERVICE] == "chat.quarantine"
    assert pod["metadata"]["ownerReferences"][0]["uid"] == scene.kube.get("infs", "chat")["metadata"]["uid"]
    wanted = f"pod chat-b reports {OTHER}, want {DIGEST}"
    status, reason, message = scene.condition("ModelVerified")
    assert (status, reason) == ("False", "Quarantined")
    assert message.startswith(wanted)
    assert "next: " in message
    (event,) = scene.said()
    assert event.startswith(f"{wanted}; it no longer serves, and another takes its place; next: ")


async def test_its_replacement_serves_and_the_pod_is_told_of_until_it_is_deleted(scene: Scene) -> None:
    await scene.begin()
    scene.answers.digests["chat-b"] = OTHER
    await scene.look()
    scene.add("chat-c", DIGEST)
    await scene.look()
    assert scene.condition("Ready")[:2] == ("True", "Serving")
    assert scene.condition("Stalled")[0] == "False"
    assert scene.condition("ModelVerified")[1] == "Quarantined"
    assert scene.kube.get("infs", "chat")["status"]["model"]["verifiedReplicas"] == 2
    settled = scene.kube.get("infs,pods,service,deployment")["items"]
    scene.restart()
    await scene.look(2)
    assert scene.kube.get("infs,pods,service,deployment")["items"] == settled
    scene.kube("delete", "pod", "chat-b", "--grace-period=0", "--force")
    await scene.look()
    assert scene.condition("ModelVerified")[:2] == ("True", "Verified")


async def test_no_figures_are_no_mismatch(scene: Scene) -> None:
    await scene.begin()
    scene.restart()
    scene.answers.digests.clear()
    await scene.look(2)
    assert scene.served() == {"chat-a", "chat-b"}
    assert scene.condition("ModelVerified")[:2] == ("Unknown", "NotReported")
    assert scene.said() == []


async def test_a_mismatch_is_reported_and_served_where_verification_only_warns(scene: Scene) -> None:
    await scene.begin(verification={"mode": "Warn"})
    scene.answers.digests["chat-b"] = OTHER
    await scene.look()
    assert scene.served() == {"chat-a", "chat-b"}
    assert scene.condition("ModelVerified")[1] == "DigestDiffers"
    assert f"pod chat-b reports {OTHER}, want {DIGEST}; it serves, since" in scene.condition("ModelVerified")[2]
    assert scene.condition("Ready")[:2] == ("True", "ServingUnverified")


async def exhausted_but_for_the_last(scene: Scene) -> None:
    """So many pods were wrong that no more are quarantined; the next is wrong too, and was not looked at."""
    await scene.begin()
    for i in range(MOST):
        scene.add(f"chat-wrong-{i}", OTHER)
        await scene.look()
    assert scene.served() == scene.kept() == {"chat-a", "chat-b"}
    scene.add("chat-last", OTHER)


async def exhausted(scene: Scene) -> None:
    await exhausted_but_for_the_last(scene)
    await scene.look()


async def test_a_wrong_image_cannot_cycle_for_ever_and_still_does_not_serve(scene: Scene) -> None:
    await exhausted(scene)
    assert scene.kept() == {"chat-a", "chat-b", "chat-last"}, "its ReplicaSet makes no other"
    assert scene.served() == {"chat-a", "chat-b"}
    assert scene.kube.get("deployment", "chat")["spec"]["paused"] is True
    status, reason, message = scene.condition("Stalled")
    assert (status, reason) == ("True", "DigestDiffers")
    assert f"pod chat-last reports {OTHER}, want {DIGEST}; the Service leaves it out; 3 pods" in message
    assert len(scene.said()) == MOST


async def test_a_barred_pod_stays_out_when_the_operator_starts_anew_and_the_pod_falls_silent(scene: Scene) -> None:
    await exhausted(scene)
    scene.answers.digests["chat-last"] = ""
    scene.restart()
    await scene.look(2)
    assert scene.served() == {"chat-a", "chat-b"}


async def test_when_the_wrong_pods_are_gone_the_service_selects_as_ever(scene: Scene) -> None:
    await exhausted(scene)
    scene.kube("delete", "pod", "chat-last", "--grace-period=0", "--force")
    await scene.look(2)
    assert scene.kube.get("service", "chat")["spec"]["selector"] == {names.SERVICE: "chat"}
    assert not scene.kube.get("deployment", "chat")["spec"].get("paused")
    scene.tell(2)
    await scene.look()
    assert scene.condition("Ready")[:2] == ("True", "Serving")


async def test_a_service_that_is_blocked_leaves_a_wrong_pod_out_and_takes_its_successor_in(scene: Scene) -> None:
    """The manifest is gone, so nothing else of it is written."""
    await exhausted_but_for_the_last(scene)
    scene.kube("delete", "pin", "tiny-v1")
    deployment = scene.kube.get("deployment", "chat")
    scene.operator.touch(ServiceKey(scene.kube.namespace, "chat"))
    await scene.look(2)
    assert scene.condition("Stalled")[1] in ("ManifestMissing", "Progressing")
    assert scene.served() == {"chat-a", "chat-b"}
    scene.kube("delete", "pod", "chat-last", "--grace-period=0", "--force")
    scene.add("chat-next", DIGEST)
    await scene.look()
    assert scene.served() == {"chat-a", "chat-b", "chat-next"}
    assert scene.kube.get("deployment", "chat") == deployment


@pytest.fixture
def forbidden(kube: Any) -> Iterator[None]:
    """Nobody may label a pod as one that serves, or not, in the test's namespace."""
    name = f"no-marks-{kube.namespace}"
    rules = [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["pods"]}]
    expression = "!('pinrail.dev/serving' in object.metadata.labels)"
    head = {"apiVersion": "admissionregistration.k8s.io/v1", "metadata": {"name": name}}
    policy = {**head, "kind": "ValidatingAdmissionPolicy", "spec": {
        "matchConstraints": {"resourceRules": rules},
        "validations": [{"expression": expression, "message": "no marks here"}]}}  # fmt: skip
    own = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": kube.namespace}}}
    binding = {**head, "kind": "ValidatingAdmissionPolicyBinding", "spec": {
        "policyName": name, "validationActions": ["Deny"], "matchResources": own}}  # fmt: skip
    kube.apply(policy, binding)
    kube.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "probe"},
                "spec": {"containers": [{"name": "x", "image": "x"}]}})  # fmt: skip
    deadline, patch = time.monotonic() + 30, json.dumps({"metadata": {"labels": {names.SERVING: "true"}}})
    while kube.run("patch", "pod", "probe", "--dry-run=server", "-p", patch).returncode == 0:
        assert time.monotonic() < deadline, "the policy did not come into force within 30 s"
        time.sleep(0.2)
    yield
    kube("delete", "validatingadmissionpolicy,validatingadmissionpolicybinding", name)


async def test_a_mark_that_the_api_server_refuses_is_told_in_its_words_once(scene: Scene, forbidden: None) -> None:
    await exhausted(scene)
    status, reason, message = scene.condition("Stalled")
    assert (status, reason) == ("True", "Refused")
    assert "without which the Service leaves it out: the API server refuses chat-" in message
    assert "no marks here" in message
    assert scene.served() == set(), "the Service selects by the mark all the same"
    written = scene.kube.get("infs", "chat")["metadata"]["resourceVersion"]
    for _ in range(3):
        assert await scene.operator.reconcile(ServiceKey(scene.kube.namespace, "chat")) == 300.0
    assert scene.kube.get("infs", "chat")["metadata"]["resourceVersion"] == written
    assert len(scene.kube.get("events", "--field-selector=reason=Refused")["items"]) == 1


async def test_explain_and_diff_compare_with_a_roll_out_that_stands_still(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The guarded Service and the Deployment that is held are what the operator wants."""
    await exhausted(scene)
    scene.tell(3)
    await scene.look()
    monkeypatch.setenv("KUBECONFIG", str(scene.kube.kubeconfig))
    for command in (diff_command.command, explain_command.command):
        capsys.readouterr()
        assert await asyncio.to_thread(command.run, ["chat", "-n", scene.kube.namespace]) == 0
        said = capsys.readouterr().out
        assert "the roll-out stands still, since pod chat-last reports something else, want " in said
        assert "writes" not in said
        assert "pods do not restart" in said or "one of this version changes nothing" in said


PINNING = pin(engine={"version": "0.1.0"}, numerics={"weightDtype": "bfloat16"})
PINNED = Runtime(engine_version="0.1.0", weight_dtype="bfloat16", instructions="avx2")


@pytest.mark.parametrize(
    ("reported", "said"),
    [
        (replace(PINNED, engine_version="0.2.0"), "spec.engine.version: got 0.2.0, want 0.1.0"),
        (replace(PINNED, weight_dtype="int8"), "spec.numerics.weightDtype: got int8, want bfloat16"),
    ],
    ids=["version", "numerics"],
)
async def test_a_pod_of_another_engine_than_its_manifest_pins_is_out_within_one_look(
    scene: Scene, reported: Runtime, said: str
) -> None:
    scene.answers.runtimes = {"chat-a": PINNED, "chat-b": reported}
    await scene.begin(PINNING)
    assert scene.served() == scene.kept() == {"chat-a"}
    status, reason, message = scene.condition("ModelVerified")
    assert (status, reason) == ("False", "Quarantined")
    assert message.startswith(f"pod chat-b reports another engine than its manifest pins: {said}")
    assert scene.said()[0].startswith(f"pod chat-b reports another engine than its manifest pins: {said}; it no longer")
    scene.add("chat-c", scene.answers.digests["chat-a"])
    scene.answers.runtimes["chat-c"] = PINNED
    await scene.look()
    model = scene.kube.get("infs", "chat")["status"]["model"]
    assert (model["verifiedReplicas"], model["engineVersion"]) == (2, "0.1.0")
    assert model["numerics"] == {"instructions": "avx2", "weightDtype": "bfloat16"}


async def test_another_engine_is_reported_and_served_where_verification_only_warns(scene: Scene) -> None:
    scene.answers.runtimes = {"chat-a": PINNED, "chat-b": replace(PINNED, engine_version="0.2.0")}
    await scene.begin(PINNING, verification={"mode": "Warn"})
    assert scene.served() == {"chat-a", "chat-b"}
    assert scene.condition("ModelVerified")[:2] == ("False", "EngineDiffers")
    assert scene.condition("Ready")[:2] == ("True", "ServingUnverified")
    assert scene.kube.get("infs", "chat")["status"]["model"]["verifiedReplicas"] == 1


async def test_an_engine_that_reports_none_of_it_serves_and_is_said_not_to_be_verified(scene: Scene) -> None:
    await scene.begin(PINNING)
    assert scene.served() == {"chat-a", "chat-b"}
    status, reason, message = scene.condition("ModelVerified")
    assert (status, reason) == ("True", "Verified")
    assert "2 of 2 ready replicas do not report spec.engine.version, spec.numerics.weightDtype" in message


async def test_old_pods_are_not_held_to_the_manifest_that_comes_after_theirs(scene: Scene) -> None:
    """Nor let off from their own: it stands in the ConfigMap that they mount."""
    scene.answers.runtimes = dict.fromkeys(("chat-a", "chat-b"), PINNED)
    await scene.begin(PINNING)
    newer = pin(name="tiny-v2", engine={"version": "0.2.0"})
    digest = ModelManifest.from_spec(newer["spec"]).digest
    scene.kube.apply(newer, service(model={"name": "tiny", "manifestRef": {"name": "tiny-v2"}, "digest": digest}))
    await scene.look(2)
    assert scene.served() == {"chat-a", "chat-b"}
    assert scene.said() == []
    scene.restart()
    scene.answers.runtimes["chat-b"] = replace(PINNED, engine_version="0.2.0")
    await scene.look()
    assert scene.served() == {"chat-a"}
    assert "spec.engine.version: got 0.2.0, want 0.1.0" in scene.said()[0]
