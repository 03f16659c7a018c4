"""What is not pinned never runs, even where no rule of the CRDs keeps it out and the operator stands alone.

An API server that enforces the rules refuses the same documents: `test_crds.py`.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from apiserver_documents import pin, service
from control_plane import ALONE, ControlPlane
from kubectl import Kube
from kubernetes import config
from operator_builders import DIGEST, IMAGE

from pinrail_operator.api import Api
from pinrail_operator.cluster import Cluster
from pinrail_operator.reconcile import Reconciler
from pinrail_operator.types import ServiceKey

pytestmark = pytest.mark.apiserver

CRDS = sorted((Path(__file__).parents[2] / "crds").glob("*.yaml"))
_numbers = itertools.count(1)
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def without_rules(crd: dict[str, Any]) -> dict[str, Any]:
    """The CRD as one that takes anything."""
    for version in crd["spec"]["versions"]:
        kept = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
        version["schema"] = {"openAPIV3Schema": {"type": "object", "properties": {"spec": kept, "status": kept}}}
    return crd


@dataclass
class World:
    kube: Kube
    cluster: Cluster

    async def look(self) -> dict[str, tuple[str, str, str]]:
        """The conditions of the service after two reconciles, a minute apart: no manifest is awaited any more."""
        one = Reconciler(cluster=self.cluster, scraper=Silent(), engine_image=IMAGE, tick=5.0, resync=300.0)
        began = datetime.now(UTC)
        for seconds in (0, 60):
            one.now = lambda at=began + timedelta(seconds=seconds): at  # type: ignore[misc]
            await one.reconcile(ServiceKey(self.kube.namespace, "chat"))
        conditions = self.kube.get("infs", "chat")["status"]["conditions"]
        return {c["type"]: (c["status"], c["reason"], c["message"]) for c in conditions}


class Silent:
    async def scrape(self, pods: Any) -> dict[str, Any]:
        return {}


@pytest.fixture(scope="module")
def lax(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The kubeconfig of an API server that checks nothing."""
    with ControlPlane.start(tmp_path_factory.mktemp("lax"), flags=ALONE) as api:
        crds = [without_rules(yaml.safe_load(file.read_text())) for file in CRDS]
        Kube(api.kubeconfig)("apply", "-f", "-", stdin=yaml.safe_dump_all(crds))
        Kube(api.kubeconfig).wait_for_crds()
        yield api.kubeconfig


@pytest.fixture
def world(lax: Path) -> Iterator[World]:
    name = f"pins-{next(_numbers)}"
    Kube(lax)("create", "namespace", name)
    api = Api(config.new_client_from_config(str(lax)), lambda: True)
    yield World(Kube(lax, name), Cluster(api))
    api.close()


def model(**changes: Any) -> dict[str, Any]:
    return {"model": {**service()["spec"]["model"], **changes}}


def hub(revision: str | None) -> dict[str, Any]:
    source = {"uri": "hf://org/name"} | ({"revision": revision} if revision is not None else {})
    whole = pin()
    return whole | {"spec": whole["spec"] | {"source": source}}


def files(**change: Any) -> dict[str, Any]:
    whole = pin()
    first, *rest = whole["spec"]["files"]
    return whole | {"spec": whole["spec"] | {"files": [first | change, *rest]}}


UNPINNED = {
    "no digest": (pin(), model(digest=""), "InvalidSpec", "spec.model.digest: got ''"),
    "digest: latest": (pin(), model(digest="latest"), "InvalidSpec", "spec.model.digest: got 'latest'"),
    "digest: upper case": (pin(), model(digest=DIGEST.upper()), "InvalidSpec", "spec.model.digest: got 'SHA256:"),
    "digest: short": (pin(), model(digest=DIGEST[:40]), "InvalidSpec", "and 64 lower-case hex digits"),
    "digest: another's": (pin(), model(digest="sha256:" + "0" * 64), "DigestMismatch",
                          f"spec.model.digest: got sha256:{'0' * 64}, but ModelManifest tiny-v1 has {DIGEST}"),
    "image: tag": (pin(), {"engine": {"image": "engine:latest"}}, "InvalidSpec", "got 'engine:latest'"),
    "image: no tag": (pin(), {"engine": {"image": "engine"}}, "InvalidSpec", "spec.engine.image: got 'engine'"),
    "image: upper case": (pin(), {"engine": {"image": "e@sha256:" + "A" * 64}}, "InvalidSpec", "spec.engine.image"),
    "image: short": (pin(), {"engine": {"image": "e@sha256:" + "a" * 12}}, "InvalidSpec", "spec.engine.image"),
    "commit: none": (hub(None), {}, "ManifestInvalid", "revision"),
    "commit: main": (hub("main"), {}, "ManifestInvalid", "main"),
    "commit: short": (hub(COMMIT[:8]), {}, "ManifestInvalid", COMMIT[:8]),
    "commit: upper case": (hub(COMMIT.upper()), {}, "ManifestInvalid", COMMIT.upper()),
    "file: upper case": (files(sha256="A" * 64), {}, "ManifestInvalid", "sha256"),
    "file: short": (files(sha256="1" * 12), {}, "ManifestInvalid", "sha256"),
    "file: above its folder": (files(path="../x"), {}, "ManifestInvalid", "../x"),
    "file: in a folder": (files(path=".git/config"), {}, "ManifestInvalid", ".git/config"),
    "no manifest": (None, {}, "ManifestMissing", "ModelManifest tiny-v1 does not exist"),
    "another namespace": (pin(), model(manifestRef={"name": "other/tiny-v1"}), "InvalidSpec",
                          "spec.model.manifestRef.name: got 'other/tiny-v1'"),
    "a namespace beside": (pin(), model(manifestRef={"name": "tiny-v1", "namespace": "other"}), "InvalidSpec",
                           "spec.model.manifestRef"),
    "a variable of the loader": (pin(), {"engine": {"env": [{"name": "LD_PRELOAD", "value": "/x"}]}}, "InvalidSpec",
                                 "got 'LD_PRELOAD'"),
    "an unknown field": (pin(), {"hostNetwork": True}, "InvalidSpec", "hostNetwork"),
}  # fmt: skip


@pytest.mark.parametrize("name", UNPINNED)
async def test_without_any_rule_of_the_api_server_the_operator_refuses_what_is_not_pinned(
    world: World, name: str
) -> None:
    manifest, spec, reason, words = UNPINNED[name]
    world.kube.apply(*([manifest] if manifest else []), service(**spec))
    conditions = await world.look()
    assert conditions["Ready"][:2] == ("False", reason)
    assert conditions["Stalled"][:2] == ("True", reason)
    assert words in conditions["Stalled"][2]
    assert world.kube.get("deployments,services,configmaps,pods")["items"] == []


@pytest.mark.parametrize("name", ["digest: latest", "digest: another's", "image: tag", "an unknown field"])
async def test_what_serves_already_goes_on_as_it_was_when_its_spec_is_no_longer_pinned(world: World, name: str) -> None:
    _, spec, reason, _ = UNPINNED[name]
    world.kube.apply(pin(), service())
    await world.look()
    before = world.kube.get("deployments,services,configmaps,pdb")["items"]
    world.kube.apply(service(**spec))
    assert (await world.look())["Stalled"][:2] == ("True", reason)
    assert world.kube.get("deployments,services,configmaps,pdb")["items"] == before


async def test_a_service_that_is_pinned_runs(world: World) -> None:
    """The rows above are refused for what they say, not for the missing rules."""
    world.kube.apply(hub(COMMIT), service())
    conditions = await world.look()
    assert conditions["Stalled"][0] == "False", conditions["Stalled"]
    assert world.kube.exists("deployment", "chat")
