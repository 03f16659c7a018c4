"""A cache of fetched models, as the API server takes, refuses and keeps it; pods are made by hand."""

from collections.abc import Callable
from typing import Any

import pytest
from apiserver_documents import pin, service
from operator_builders import DIGEST, IMAGE
from operator_builders import manifest as parsed_manifest

from pinrail_contract.termination import Reason, Termination
from pinrail_operator.cluster import Cluster
from pinrail_operator.metrics import Scrape
from pinrail_operator.reconcile import Reconciler
from pinrail_operator.types import ServiceKey

pytestmark = pytest.mark.apiserver

CLAIM = {"persistentVolumeClaim": {"claimName": "models-cache"}}
HOST = {"hostPath": {"path": "/var/cache/pinrail"}}
NEITHER = "want exactly one of persistentVolumeClaim and hostPath"
URI = "https://models.test/tiny/"


def cached(**cache: Any) -> dict[str, Any]:
    """A service with that cache; what is None is left out."""
    given = {key: value for key, value in {"maxSize": "500Gi", **cache}.items() if value is not None}
    return service(model={**service()["spec"]["model"], "cache": given})


class Silent:
    async def scrape(self, pods: Any) -> dict[str, Scrape]:
        return {}


@pytest.fixture
def reconcile(cluster: Cluster, kube: Any) -> Callable[..., Any]:
    """Two looks at the service, by an operator that allows these folders of nodes."""

    async def twice(*allowed: str) -> None:
        one = Reconciler(cluster=cluster, scraper=Silent(), engine_image=IMAGE, host_caches=frozenset(allowed),
                         tick=5.0, resync=300.0)  # fmt: skip
        for _ in range(2):
            await one.reconcile(ServiceKey(kube.namespace, "chat"))

    return twice


def condition(kube: Any, kind: str) -> tuple[str, str, str]:
    found = {c["type"]: c for c in kube.get("infs", "chat")["status"]["conditions"]}[kind]
    return found["status"], found["reason"], found["message"]


def pod(kube: Any) -> dict[str, Any]:
    """As the Deployment's controller would make it."""
    template = kube.get("deployment", "chat")["spec"]["template"]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "chat-1", **template["metadata"]},
            "spec": template["spec"]}  # fmt: skip


def restrict(kube: Any) -> None:
    kube("label", "namespace", kube.namespace, "pod-security.kubernetes.io/enforce=restricted")


@pytest.mark.parametrize(
    ("cache", "said"),
    [
        ({}, f"spec.model.cache: got neither, {NEITHER}"),
        ({**CLAIM, **HOST}, f"spec.model.cache: got both, {NEITHER}"),
        ({**CLAIM, "maxSize": None}, "spec.model.cache.maxSize: Required value"),
        ({**CLAIM, "maxSize": "15Mi"}, "spec.model.cache.maxSize: got 15Mi, want 16Mi to 256Ti, such as 500Gi"),
        ({**CLAIM, "maxSize": "257Ti"}, "spec.model.cache.maxSize: got 257Ti, want 16Mi to 256Ti, such as 500Gi"),
        ({**CLAIM, "maxSize": "1.5Gi"}, "spec.model.cache.maxSize: got 1.5Gi, want 16Mi to 256Ti, such as 500Gi"),
        ({"persistentVolumeClaim": {}}, "spec.model.cache.persistentVolumeClaim.claimName: Required value"),
        (
            {"persistentVolumeClaim": {"claimName": "A"}},
            "spec.model.cache.persistentVolumeClaim.claimName in body should",
        ),
        ({"hostPath": {}}, "spec.model.cache.hostPath.path: Required value"),
        *(
            ({"hostPath": {"path": path}}, f"spec.model.cache.hostPath.path: got {path}, want an absolute path")
            for path in ("cache", "/", "/a/../etc", "/..", "/a/.", "/a//b", "/a/")
        ),
        ({"hostPath": {"path": "/" + "x" * 255}}, "spec.model.cache.hostPath.path: Too long"),
    ],
    ids=str,
)
def test_a_wrong_cache_is_refused_with_the_field_and_what_is_wanted(kube: Any, cache: Any, said: str) -> None:
    assert said in kube.refusal(cached(**cache))


@pytest.mark.parametrize("path", ["/cache", "/mnt/disks/.cache/pin-rail_1", "/a..b/..c/d.."])
def test_a_folder_of_the_node_is_taken_as_it_stands(kube: Any, path: str) -> None:
    kube.apply(cached(hostPath={"path": path}, maxSize="256Ti"))
    assert kube.get("infs", "chat")["spec"]["model"]["cache"] == {"hostPath": {"path": path}, "maxSize": "256Ti"}


def test_explain_says_what_a_cache_is_and_takes(kube: Any) -> None:
    text = " ".join(kube("explain", "infs.spec.model.cache").split())
    assert (
        "A volume of fetched models that pods share, such as {persistentVolumeClaim: {claimName: models-cache}" in text
    )
    assert "User 65532 has to be able to write to it" in text
    assert "levels restricted and baseline refuse such pods" in " ".join(
        kube("explain", "infs.spec.model.cache.hostPath").split()
    )


async def test_a_pod_with_a_claim_is_taken_by_a_restricted_namespace(kube: Any, reconcile: Callable[..., Any]) -> None:
    restrict(kube)
    kube.apply(pin(uri=URI), cached(**CLAIM))
    await reconcile()
    kube.apply(pod(kube))
    live = kube.get("pod", "chat-1")["spec"]
    assert [(c["name"], c.get("restartPolicy")) for c in live["initContainers"]] == [
        ("hold", "Always"),
        ("fetch", None),
    ]


async def test_a_pod_with_a_folder_of_the_node_is_refused_there(kube: Any, reconcile: Callable[..., Any]) -> None:
    restrict(kube)
    kube.apply(pin(uri=URI), cached(**HOST))
    await reconcile("/var/cache/pinrail")
    assert 'restricted volume types (volume "model" uses restricted volume type "hostPath")' in kube.refusal(pod(kube))


async def test_a_folder_of_the_node_that_the_operator_does_not_allow_starts_no_pod_and_says_why(
    kube: Any, reconcile: Callable[..., Any]
) -> None:
    kube.apply(pin(uri=URI), cached(**HOST))
    await reconcile()
    status, reason, message = condition(kube, "Stalled")
    assert (status, reason) == ("True", "CacheNotAllowed")
    assert message.startswith(
        "spec.model.cache.hostPath.path: got /var/cache/pinrail, want none: this operator allows none"
    )
    assert not kube.exists("deployment", "chat")
    await reconcile("/var/cache/pinrail")
    assert kube.exists("deployment", "chat")


async def test_a_model_larger_than_its_cache_starts_no_pod_and_says_why(
    kube: Any, reconcile: Callable[..., Any]
) -> None:
    kube.apply(pin(uri=URI), cached(**CLAIM, maxSize="100Mi"))
    await reconcile()
    wanted = f"want {parsed_manifest().total_size} or above, which the files of the manifest take"
    assert condition(kube, "Stalled")[1:] == (
        "InvalidSpec",
        f"spec.model.cache.maxSize: got {100 * 2**20} bytes, {wanted}; mend the field and apply again",
    )


@pytest.mark.parametrize("cache", [CLAIM, HOST], ids=["claim", "host"])
async def test_it_settles_and_is_not_applied_again(kube: Any, reconcile: Callable[..., Any], cache: Any) -> None:
    kube.apply(pin(uri=URI), cached(**cache))
    await reconcile("/var/cache/pinrail")
    before = kube.get("deployment,configmap,infs")["items"]
    await reconcile("/var/cache/pinrail")
    assert kube.get("deployment,configmap,infs")["items"] == before


async def test_a_full_cache_reaches_the_status_in_words(kube: Any, reconcile: Callable[..., Any]) -> None:
    kube.apply(pin(uri=URI), cached(**CLAIM))
    await reconcile()
    kube.apply(pod(kube))
    said = Termination(Reason.CACHE_FAILED, f"the cache has no room for {DIGEST}").render()
    container = {"image": IMAGE, "imageID": "x", "restartCount": 1}
    hold = {**container, "name": "hold", "ready": True, "started": True, "state": {"running": {}}}
    fetch = {**container, "name": "fetch", "ready": False,
             "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}},
             "lastState": {"terminated": {"exitCode": 1, "reason": "Error", "message": said}}}  # fmt: skip
    kube.patch_status("pod", "chat-1", {"phase": "Pending", "initContainerStatuses": [hold, fetch]})
    await reconcile()
    status, reason, message = condition(kube, "Stalled")
    assert (status, reason) == ("True", "CacheFailed")
    assert (
        f"container fetch: the cache has no room for {DIGEST}; next: where it is full, raise spec.model.cache."
        in message
    )
