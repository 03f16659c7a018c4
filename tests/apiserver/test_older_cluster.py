"""An API server that has a feature switched off drops its fields without a word: the status says so."""

from collections.abc import Iterator
from typing import Any

import pytest
from apiserver_documents import pin, service
from control_plane import ALONE, ControlPlane
from kubectl import Kube
from kubernetes import config
from operator_builders import IMAGE

from pinrail_operator.api import Api
from pinrail_operator.cluster import Cluster
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
