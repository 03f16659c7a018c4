"""`pinrail status`, `explain` and `diff` against a real API server, on objects that the operator's reconcile made.

No controller and no kubelet runs: pods get their status by hand, and a web server of the test answers for one of them.
"""

import asyncio
import copy
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from apiserver_documents import pin, service
from control_plane import ControlPlane
from operator_builders import DIGEST, IMAGE, load, manifest

from pinrail_contract.command import Command
from pinrail_contract.errors import PinrailError
from pinrail_contract.metrics import MANIFEST_INFO, VERIFIED
from pinrail_contract.pins import ModelManifest
from pinrail_contract.termination import Reason, Termination
from pinrail_operator import diff_command, explain_command, history_command, names, rollback_command, status_command
from pinrail_operator.cluster import Cluster
from pinrail_operator.metrics import Scrape
from pinrail_operator.reconcile import Reconciler
from pinrail_operator.types import ServiceKey

pytestmark = pytest.mark.apiserver

READY = {"phase": "Running", "podIP": "10.0.0.1", "conditions": [{"type": "Ready", "status": "True"}]}
SCALED = {"replicas": None, "scaling": {"minReplicas": 1, "maxReplicas": 4}}
OTHER_IMAGE = "registry.test/pinrail/engine@sha256:" + "b" * 64


class Scraper:
    async def scrape(self, pods: Any) -> dict[str, Scrape]:
        return {p.name: Scrape(load(0.4), DIGEST) for p in pods}


@dataclass(frozen=True)
class World:
    """A namespace, an operator for its service `chat`, and a person's command line."""

    kube: Any
    cluster: Cluster
    capture: Any
    folder: Path

    async def reconcile(self, times: int = 2) -> None:
        reconciler = Reconciler(cluster=self.cluster, scraper=Scraper(), engine_image=IMAGE, tick=5.0, resync=300.0)
        for _ in range(times):
            await reconciler.reconcile(ServiceKey(self.kube.namespace, "chat"))

    async def says(self, command: Command, *words: str, code: int = 0) -> str:
        """Standard output of a command that ends with `code`."""
        self.capture.readouterr()
        given = [*words] if "-n" in words or "-A" in words else [*words, "-n", self.kube.namespace]
        assert await asyncio.to_thread(command.run, given) == code, self.capture.readouterr()
        return str(self.capture.readouterr().out)

    async def told(self, command: Command, *words: str, code: int = 0) -> Any:
        return json.loads(await self.says(command, *words, "-o", "json", code=code))

    def file(self, *documents: Any) -> str:
        path = self.folder / "documents.yaml"
        path.write_text(yaml.safe_dump_all([dict(d) for d in documents]))
        return str(path)

    def add_pod(self, name: str, port: int = 8000, **status: Any) -> None:
        template = copy.deepcopy(self.kube.get("deployment", "chat")["spec"]["template"])
        template["spec"]["containers"][0]["ports"][0]["containerPort"] = port
        head = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, **template["metadata"]}}
        self.kube.apply(head | {"spec": template["spec"]})
        self.kube.patch_status("pod", name, status)

    def roll_out(self, replicas: int) -> None:
        """What the Deployment's controller would report."""
        generation = self.kube.get("deployment", "chat")["metadata"]["generation"]
        counts = {"replicas": replicas, "updatedReplicas": replicas, "observedGeneration": generation}
        self.kube.patch_status("deployment", "chat", counts)


@pytest.fixture
def world(
    kube: Any, cluster: Cluster, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> World:
    monkeypatch.setenv("KUBECONFIG", str(kube.kubeconfig))
    return World(kube, cluster, capsys, tmp_path)


@pytest.fixture
def page() -> Iterator[Callable[[str], tuple[str, int]]]:
    """Serves a metrics page, and vLLM's version beside it.

    On an address of this machine that an API server may proxy to: no loopback.
    """
    servers = []

    def serve(text: str) -> tuple[str, int]:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                answer = {"/metrics": text, "/version": '{"version": "0.32.0"}'}.get(self.path)
                self.send_response(404 if answer is None else 200)
                self.end_headers()
                self.wfile.write((answer or "").encode())

            def log_message(self, *args: Any) -> None:
                pass

        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect(("192.0.2.1", 9))  # sends nothing: asks which address is ours
                address = probe.getsockname()[0]
            except OSError:
                pytest.skip("this machine has no address besides loopback")
        server = ThreadingHTTPServer((address, 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return address, server.server_port

    yield serve
    for server in servers:
        server.shutdown()
        server.server_close()


async def serving(world: World, **spec: Any) -> None:
    """The service `chat` with one ready pod whose address nobody answers at, rolled out."""
    world.kube.apply(pin(), service(replicas=spec.pop("replicas", 1), **spec))
    await world.reconcile()
    world.add_pod("chat-1", **READY)
    world.roll_out(1)
    await world.reconcile()


async def test_status_tells_each_service_of_a_namespace_in_a_line(world: World) -> None:
    await serving(world)
    lines = (await world.says(status_command.command)).splitlines()
    assert lines[0].split() == ["NAME", "PIN", "ENGINE", "VERIFIED", "READY", "SCALING", "REVISION", "CONDITION", "AGE"]
    revision = world.kube.get("infs", "chat")["status"]["revision"]["current"]
    assert lines[1].split()[:8] == ["chat", DIGEST[7:19], "?", "1/1", "1/1", "Fixed", revision, "Serving"]


async def test_status_of_all_namespaces_names_them(world: World) -> None:
    await serving(world)
    told = await world.told(status_command.command, "-A")
    assert (world.kube.namespace, "chat") in [(t["namespace"], t["name"]) for t in told]


async def test_status_of_one_service_adds_what_its_condition_says(world: World) -> None:
    world.kube.apply(service())
    await world.reconcile()
    said = await world.says(status_command.command, "chat")
    assert "ManifestMissing" in said
    assert "Ready: ModelManifest tiny-v1 does not exist" in said


async def test_a_service_that_no_operator_saw_says_so(world: World) -> None:
    world.kube.apply(service())
    assert "NotSeen" in await world.says(status_command.command)


async def test_explain_tells_what_is_pinned_by_file_and_which_image_runs(world: World) -> None:
    await serving(world)
    pinned = (await world.told(explain_command.command, "chat"))["pinned"]
    assert pinned["digest"] == pinned["manifestDigest"] == DIGEST
    assert [f["path"] for f in pinned["files"]] == [f.path for f in manifest().files]
    assert (pinned["engineImage"], pinned["engineImageFrom"]) == (IMAGE, "the operator's default")


@pytest.mark.parametrize(("digest", "verdict"), [(DIGEST, True), ("sha256:" + "9" * 64, False)])
async def test_explain_asks_each_ready_pod_what_it_verified_itself(
    world: World, page: Callable[[str], tuple[str, int]], digest: str, verdict: bool
) -> None:
    address, port = page(f'{MANIFEST_INFO}{{digest="{digest}",verification="{VERIFIED}"}} 1\n')
    world.kube.apply(pin(), service())
    await world.reconcile()
    world.add_pod("chat-1", port, **READY | {"podIP": address})
    pod = (await world.told(explain_command.command, "chat"))["pods"][0]
    assert (pod["verified"], pod["reported"], pod["notHeard"]) == (verdict, digest, None)


async def test_explain_asks_each_ready_pod_which_engine_it_is(
    world: World, page: Callable[[str], tuple[str, int]]
) -> None:
    document = pin(engine={"version": "0.2.0"})
    digest = ModelManifest.from_spec(document["spec"]).digest
    labels = f'digest="{digest}",verification="{VERIFIED}",engine_version="0.1.0",weight_dtype="int8"'
    address, port = page(f"{MANIFEST_INFO}{{{labels}}} 1\n")
    model = {"name": "tiny", "manifestRef": {"name": "tiny-v1"}, "digest": digest}
    world.kube.apply(document, service(model=model))
    await world.reconcile()
    world.add_pod("chat-1", port, **READY | {"podIP": address})
    told = await world.told(explain_command.command, "chat")
    assert told["pinned"]["runtime"] == {"engine": {"version": "0.2.0"}}
    (pod,) = told["pods"]
    assert pod["runs"] == {"engine": {"version": "0.1.0"}, "numerics": {"weightDtype": "int8"}}
    assert (pod["verified"], pod["differs"]) == (False, ["spec.engine.version: got 0.1.0, want 0.2.0"])


async def test_explain_asks_an_engine_that_is_not_ours_for_its_version(
    world: World, page: Callable[[str], tuple[str, int]]
) -> None:
    address, port = page("vllm:num_requests_running 0\n")
    world.kube.apply(pin(), service(engine={"type": "vllm", "image": IMAGE}))
    await world.reconcile()
    said = Termination(Reason.VERIFIED, DIGEST).render()
    verify = {"name": names.VERIFY, "image": IMAGE, "imageID": "x", "ready": True, "restartCount": 0,
              "state": {"terminated": {"exitCode": 0, "message": said, "reason": "Completed"}}}  # fmt: skip
    world.add_pod("chat-1", port, **READY | {"podIP": address, "initContainerStatuses": [verify]})
    (pod,) = (await world.told(explain_command.command, "chat"))["pods"]
    assert (pod["verified"], pod["runs"]) == (True, {"engine": {"version": "0.32.0"}})


async def test_a_pod_that_does_not_answer_is_not_known_rather_than_verified(world: World) -> None:
    await serving(world)
    told = await world.told(explain_command.command, "chat")
    assert told["pods"][0]["verified"] is None
    assert told["pods"][0]["notHeard"]


async def test_explain_tells_the_last_decision_with_its_inputs_and_bounds(world: World) -> None:
    await serving(world, **SCALED)
    replicas = (await world.told(explain_command.command, "chat"))["replicas"]
    assert replicas["policy"]["maxReplicas"] == 4
    assert (replicas["decision"]["demandBlocks"], replicas["decision"]["supplyBlocks"]) == (40, 100)
    said = await world.says(explain_command.command, "chat")
    assert "demand 40 of 100 KV blocks (40 %)" in said
    assert "bounds   1 to 4, mode Active" in said


async def test_an_operator_of_this_version_changes_nothing_in_what_it_made_itself(world: World) -> None:
    await serving(world)
    upgrade = (await world.told(explain_command.command, "chat"))["upgrade"]
    assert (upgrade["operator"]["effect"], upgrade["operator"]["objects"]) == ("none", [])
    assert upgrade["rollout"]["underWay"] is False
    assert (upgrade["capacity"]["podsMore"], upgrade["capacity"]["podsFewer"]) == (1, 0)


async def test_a_deployment_of_another_template_version_would_be_restarted(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await serving(world)
    monkeypatch.setattr("pinrail_operator.pods.TEMPLATE_VERSION", 999)
    told = await world.told(explain_command.command, "chat")
    assert told["upgrade"]["operator"]["effect"] == "restart"
    assert "renders pods otherwise" in told["upgrade"]["operator"]["why"]


async def test_a_spec_that_cannot_be_read_is_explained_by_its_field(world: World, monkeypatch: Any) -> None:
    await serving(world)
    monkeypatch.setattr("pinrail_operator.types.MAX_REPLICAS", 0)  # as for an object older than a rule
    assert "spec.replicas: got 1" in (await world.told(explain_command.command, "chat"))["invalid"]


async def test_diff_of_what_stands_changes_nothing(world: World) -> None:
    await serving(world)
    told = await world.told(diff_command.command, "-f", world.file(pin(), service(replicas=1)), code=0)
    assert [(t["change"], t["fields"], t["refusals"]) for t in told] == [("none", [], [])] * 2
    assert await world.told(diff_command.command, "chat", code=0) == [told[1]]


async def test_diff_names_the_field_and_agrees_with_what_the_operator_then_does(world: World) -> None:
    await serving(world)
    changed = service(replicas=1, limits={"maxNumSeqs": 8})
    told = (await world.told(diff_command.command, "-f", world.file(changed), code=1))[0]
    assert told["fields"] == [{"field": "spec.limits.maxNumSeqs", "old": 32, "new": 8}]
    assert (told["pods"]["restart"], told["pods"]["moved"], told["pods"]["image"]) == (True, 1, IMAGE)
    world.kube.apply(changed)
    await world.reconcile()
    template = world.kube.get("deployment", "chat")["spec"]["template"]
    assert template["metadata"]["labels"]["pinrail.dev/revision"] == told["pods"]["revision"]["new"]


async def test_diff_of_replicas_moves_some_and_restarts_none(world: World) -> None:
    await serving(world)
    told = (await world.told(diff_command.command, "-f", world.file(service(replicas=3)), code=1))[0]
    assert (told["pods"]["restart"], told["pods"]["moved"]) == (False, 2)
    assert told["pods"]["replicas"] == {"old": 1, "new": 3}


@contextmanager
def running_operator(world: World, **env: str) -> Iterator[None]:
    """A Deployment that looks like an operator's, given these variables."""
    labels = {"app.kubernetes.io/name": "pinrail-operator"}
    given = [{"name": name, "value": value} for name, value in env.items()]
    pod = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "operator", "image": "x", "env": given}]}}
    head = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "operator", "labels": labels}}
    world.kube.apply({**head, "spec": {"selector": {"matchLabels": labels}, "template": pod}})
    try:
        yield
    finally:
        world.kube("delete", "deployment", "operator")


async def test_diff_of_a_new_service_takes_the_default_image_that_the_operator_is_given(world: World) -> None:
    new = world.file(pin(), service())
    before = (await world.told(diff_command.command, "-f", new, code=1))[1]["pods"]
    assert (before["restart"], before["moved"]) == (None, None)
    with running_operator(world, PINRAIL_ENGINE_IMAGE=OTHER_IMAGE):
        told = (await world.told(diff_command.command, "-f", new, code=1))[1]
    assert (told["change"], told["pods"]["image"], told["pods"]["moved"]) == ("create", OTHER_IMAGE, 2)


REFUSED = {
    "a wrong digest": (
        [service(model={"name": "tiny", "manifestRef": {"name": "tiny-v1"}, "digest": "sha256:" + "0" * 64})],
        "DigestMismatch: spec.model.digest: got sha256:0000",
    ),
    "a spec error": ([service(replicas=-1)], "spec.replicas: got -1"),
    "a manifest that changes": ([pin(weights="9" * 64)], "a ModelManifest cannot be changed"),
    "a manifest that is missing": (
        [service(model={"name": "tiny", "manifestRef": {"name": "none"}, "digest": DIGEST})],
        "ManifestMissing",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("documents", "said"), REFUSED.values(), ids=REFUSED)
async def test_diff_says_what_an_apply_would_be_refused_for(world: World, documents: list[Any], said: str) -> None:
    await serving(world)
    told = await world.told(diff_command.command, "-f", world.file(*documents), code=2)
    assert said in told[-1]["refusals"][0]
    assert "REFUSED" in await world.says(diff_command.command, "-f", world.file(*documents), code=2)


async def test_diff_knows_which_folders_of_nodes_the_running_operator_takes_as_caches(world: World) -> None:
    cache = {"hostPath": {"path": "/var/cache/pinrail"}, "maxSize": "1Gi"}
    new = world.file(pin(uri="https://models.test/"), service(model={**service()["spec"]["model"], "cache": cache}))
    with running_operator(world, PINRAIL_ENGINE_IMAGE=OTHER_IMAGE):
        (refusal,) = (await world.told(diff_command.command, "-f", new, code=2))[1]["refusals"]
    assert refusal.startswith("CacheNotAllowed: spec.model.cache.hostPath.path: got /var/cache/pinrail, want none")
    with running_operator(world, PINRAIL_ENGINE_IMAGE=OTHER_IMAGE, PINRAIL_HOST_PATH_CACHES="/var/cache/pinrail,/b"):
        assert (await world.told(diff_command.command, "-f", new, code=1))[1]["refusals"] == []


async def test_explain_knows_which_folders_of_nodes_the_running_operator_takes_as_caches(world: World) -> None:
    document = pin(uri="https://models.test/")
    cache = {"hostPath": {"path": "/var/cache/pinrail"}, "maxSize": "1Gi"}
    model = {**service()["spec"]["model"], "digest": manifest("https://models.test/").digest, "cache": cache}
    world.kube.apply(document, service(model=model))
    reconciler = Reconciler(cluster=world.cluster, scraper=Scraper(), engine_image=IMAGE, tick=5.0, resync=300.0,
                            host_caches=frozenset({"/var/cache/pinrail"}))  # fmt: skip
    await reconciler.reconcile(ServiceKey(world.kube.namespace, "chat"))

    async def upgrade() -> str:
        return str((await world.told(explain_command.command, "chat"))["upgrade"]["operator"]["why"])

    with running_operator(world, PINRAIL_ENGINE_IMAGE=OTHER_IMAGE):
        assert "CacheNotAllowed blocks it" in await upgrade()
    with running_operator(world, PINRAIL_ENGINE_IMAGE=OTHER_IMAGE, PINRAIL_HOST_PATH_CACHES="/var/cache/pinrail"):
        assert "blocks it" not in await upgrade()


async def test_nothing_is_ever_written(world: World) -> None:
    await serving(world)
    kinds = "deployments,services,configmaps,pdb,controllerrevisions,infs,pin,events,pods"
    before = {o["metadata"]["uid"]: o["metadata"]["resourceVersion"] for o in world.kube.get(kinds)["items"]}
    await world.says(status_command.command)
    await world.says(explain_command.command, "chat")
    await world.says(diff_command.command, "-f", world.file(service(replicas=3)), code=1)
    after = {o["metadata"]["uid"]: o["metadata"]["resourceVersion"] for o in world.kube.get(kinds)["items"]}
    assert after == before


async def test_yaml_holds_the_facts_of_the_json(world: World) -> None:
    await serving(world)
    as_yaml = yaml.safe_load(await world.says(explain_command.command, "chat", "-o", "yaml"))
    as_json = await world.told(explain_command.command, "chat")
    for told in (as_yaml, as_json):
        told["ageSeconds"] = told["pods"][0]["ageSeconds"] = 0
    assert as_yaml == as_json


async def test_a_name_that_is_not_there_is_told_with_those_that_are(world: World) -> None:
    await serving(world)
    with pytest.raises(PinrailError, match=f"no InferenceService chta in namespace {world.kube.namespace}; .* chat"):
        await world.says(explain_command.command, "chta")


async def test_without_the_right_to_read_the_server_says_which(world: World, monkeypatch: Any) -> None:
    world.kube("create", "serviceaccount", "reader")
    token = world.kube("create", "token", "reader").strip()
    document = json.loads(world.kube.kubeconfig.read_text())
    document["users"][0]["user"] = {"token": token}
    file = world.folder / "reader"
    file.write_text(json.dumps(document))
    monkeypatch.setenv("KUBECONFIG", str(file))
    with pytest.raises(PinrailError, match=r"inferenceservices.*is forbidden.*reader"):
        await world.says(status_command.command)


async def test_an_unreachable_server_is_named(world: World, monkeypatch: Any) -> None:
    document = json.loads(world.kube.kubeconfig.read_text())
    document["clusters"][0]["cluster"]["server"] = "https://127.0.0.1:1"
    file = world.folder / "nowhere"
    file.write_text(json.dumps(document))
    monkeypatch.setenv("KUBECONFIG", str(file))
    with pytest.raises(PinrailError, match=r"https://127.0.0.1:1: .*unavailable; next: see whether kubectl"):
        await world.says(status_command.command)


async def test_a_cluster_without_the_crds_says_how_to_install_them(
    world: World, tmp_path_factory: Any, monkeypatch: Any
) -> None:
    with ControlPlane.start(tmp_path_factory.mktemp("bare")) as bare:
        monkeypatch.setenv("KUBECONFIG", str(bare.kubeconfig))
        with pytest.raises(PinrailError, match=r"install the CRDs"):
            await world.says(status_command.command)


async def test_an_earlier_revision_comes_back_by_applying_what_rollback_prints(world: World) -> None:
    """The very same revision, image included, under the number of replicas of now; and history tells all three."""
    await serving(world)
    first = world.kube.get("infs", "chat")["status"]["revision"]["target"]
    world.kube.apply(service(nodeSelector={"disk": "ssd"}, replicas=5))
    await world.reconcile()
    moved = await world.told(history_command.command, "chat")
    assert [(r["number"], r["changed"]) for r in moved] == [(2, ["spec.nodeSelector"]), (1, None)]
    printed = await world.says(rollback_command.command, "chat", "--to", first)
    assert "RESTART" in await world.says(diff_command.command, "-f", world.file(yaml.safe_load(printed)), code=1)
    world.kube("apply", "-f", "-", stdin=printed)
    await world.reconcile()
    live = world.kube.get("deployment", "chat")["spec"]
    assert (live["template"]["metadata"]["labels"]["pinrail.dev/revision"], live["replicas"]) == (first, 5)
    newest, *_ = await world.told(history_command.command, "chat")
    assert (newest["number"], newest["revision"]) == (3, first)


async def test_history_is_bounded(world: World) -> None:
    world.kube.apply(pin(), service(revisionHistoryLimit=1))
    for disk in ("a", "b", "c", "d"):
        world.kube.apply(service(revisionHistoryLimit=1, nodeSelector={"disk": disk}))
        await world.reconcile()
    numbers = [r["number"] for r in await world.told(history_command.command, "chat")]
    assert numbers == [4, 3]


async def test_a_field_that_the_source_makes_no_use_of_is_warned_of_once_and_explained(world: World) -> None:
    model = {**service()["spec"]["model"], "tokenSecretRef": {"name": "hub", "key": "token"}}
    await serving(world, model=model)
    await world.reconcile(3)
    (event,) = world.kube.get("events", "--field-selector=reason=FieldUnused")["items"]
    assert event["type"] == "Warning"
    assert event["message"].startswith("spec.model.tokenSecretRef: no effect on a source of pvc://; next: take it away")
    assert "unused    spec.model.tokenSecretRef: no effect" in await world.says(explain_command.command, "chat")
    assert (await world.told(status_command.command, "chat"))[0]["condition"]["reason"] == "Serving"
