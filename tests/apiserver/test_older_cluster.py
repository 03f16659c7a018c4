"""An API server that has a feature switched off, or CRDs older than the operator, drops fields without a word."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from apiserver_documents import pin, service
from control_plane import ALONE, ControlPlane
from kubectl import Kube
from kubernetes import config
from operator_builders import DIGEST, IMAGE, load

from pinrail_contract.runtime import Runtime
from pinrail_operator.api import Api
from pinrail_operator.cluster import Cluster
from pinrail_operator.metrics import Scrape
from pinrail_operator.reconcile import Reconciler
from pinrail_operator.types import ServiceKey

pytestmark = pytest.mark.apiserver

CRDS = __file__.rpartition("/tests/")[0] + "/crds"
CLAIMS = {"resourceClaims": [{"name": "gpu", "resourceClaimName": "one"}], "resources": {"claims": [{"name": "gpu"}]}}


class Silent:
    async def scrape(self, pods: Any) -> dict[str, Any]:
        return {}


@pytest.fixture
def without_devices(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kube]:
    """A cluster without dynamic resource allocation, as those before Kubernetes 1.34 were by default."""
    flags = (*ALONE, "--feature-gates=DynamicResourceAllocation=false")
    with ControlPlane.start(tmp_path_factory.mktemp("older"), flags=flags) as started:
        kube = Kube(started.kubeconfig)
        kube("apply", "--server-side", "-f", CRDS)
        kube.wait_for_crds()
        yield kube


async def test_a_claim_that_the_api_server_drops_is_told_and_keeps_nothing_else_from_being_done(
    without_devices: Kube,
) -> None:
    kube = without_devices
    api = Api(config.new_client_from_config(str(kube.kubeconfig)), lambda: True)
    operator = Reconciler(cluster=Cluster(api), scraper=Silent(), engine_image=IMAGE, tick=5.0, resync=300.0)

    async def ready() -> tuple[str, str]:
        for _ in range(3):
            await operator.reconcile(ServiceKey("default", "chat"))
        found = {c["type"]: c for c in kube.get("infs", "chat")["status"]["conditions"]}
        return found["Ready"]["reason"], found["Ready"]["message"]

    try:
        kube.apply(pin(), service(**CLAIMS))
        reason, message = await ready()
        assert reason == "Refused"
        assert "the API server leaves spec.template.spec.resourceClaims of Deployment chat out" in message
        kube.apply(service(**CLAIMS, replicas=3))
        assert (await ready())[0] == "Refused"
        assert kube.get("deployment", "chat")["spec"]["replicas"] == 3
        kube.apply(service())
        reason, _ = await ready()
        assert reason != "Refused"
    finally:
        api.close()


class Telling:
    async def scrape(self, pods: Any) -> dict[str, Scrape]:
        return {p.name: Scrape(load(), DIGEST, Runtime(engine_version="1")) for p in pods}


class Counted:
    """The API, and how often a status was written."""

    def __init__(self, api: Api) -> None:
        self.api, self.written = api, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.api, name)

    async def replace(self, path: str, body: Any, manager: str) -> Any:
        self.written += 1
        return await self.api.replace(path, body, manager)


@pytest.fixture
def before_versions(tmp_path: Path) -> Iterator[Kube]:
    """A cluster with the CRDs of before a status said which engine and numerics replicas report."""
    crds = [yaml.safe_load(file.read_text()) for file in sorted(Path(CRDS).glob("*.yaml"))]
    (services,) = [crd for crd in crds if crd["spec"]["names"]["kind"] == "InferenceService"]
    schema = services["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]
    for field in ("engineVersion", "numerics"):
        del schema["properties"]["model"]["properties"][field]
    with ControlPlane.start(tmp_path / "api", flags=ALONE) as started:
        kube = Kube(started.kubeconfig)
        kube("apply", "--server-side", "-f", "-", stdin=yaml.safe_dump_all(crds))
        kube.wait_for_crds()
        yield kube


async def test_a_status_that_older_crds_cut_short_is_not_written_at_every_look(before_versions: Kube) -> None:
    kube = before_versions
    api = Counted(Api(config.new_client_from_config(str(kube.kubeconfig)), lambda: True))
    operator = Reconciler(cluster=Cluster(api), scraper=Telling(), engine_image=IMAGE, tick=5.0, resync=300.0)  # type: ignore[arg-type]
    try:
        kube.apply(pin(), service(replicas=1))
        await operator.reconcile(ServiceKey("default", "chat"))
        template = kube.get("deployment", "chat")["spec"]["template"]
        head = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "chat-a", **template["metadata"]}}
        kube.apply(head | {"spec": template["spec"]})
        ready = {"podIP": "10.0.0.1", "conditions": [{"type": "Ready", "status": "True"}]}
        kube.patch_status("pod", "chat-a", ready)
        for _ in range(2):
            await operator.reconcile(ServiceKey("default", "chat"))
        assert kube.get("infs", "chat")["status"]["model"] == {"digest": DIGEST, "verifiedReplicas": 1}
        written = api.written
        for _ in range(3):
            await operator.reconcile(ServiceKey("default", "chat"))
        assert api.written == written
    finally:
        api.close()
