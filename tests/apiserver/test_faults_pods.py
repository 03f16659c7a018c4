"""Pods in a namespace that enforces the restricted profile, secrets that must show nowhere, and very large objects."""

import json
from typing import Any

import pytest
from apiserver_documents import pin, service
from operator_builders import IMAGE, body, manifest

from pinrail_operator import pods
from pinrail_operator.cluster import Cluster
from pinrail_operator.reconcile import Reconciler
from pinrail_operator.types import InferenceService, ServiceKey

pytestmark = pytest.mark.apiserver

SPECS: dict[str, dict[str, Any]] = {
    "least": {},
    "suspended": {"suspend": True},
    "variables": {"engine": {"env": [{"name": "A", "value": "$(HOME) \u00e9 \n"}],
                             "tracesEndpoint": "http://c:4318/v1/traces"}},
    "resources": {"resources": {"requests": {"cpu": "500m"}, "limits": {"memory": "2Gi", "nvidia.com/gpu": "1"}}},
    "placement": {"nodeSelector": {"disk": "ssd"}, "tolerations": [{"operator": "Exists"}],
                  "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone",
                                                 "whenUnsatisfiable": "DoNotSchedule"}]},
    "marks": {"podLabels": {"team": "a"}, "podAnnotations": {"prometheus.io/scrape": "true"}},
    "pull secrets": {"imagePullSecrets": [{"name": "regcred"}]},
    "warns": {"verification": {"mode": "Warn"}, "engine": {"image": "engine:dev", "backend": "torch"}},
    "devices": {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "one-gpu"}],
                "resources": {"claims": [{"name": "gpu"}], "limits": {"memory": "2Gi"}}},
    "secret variables": {"engine": {"env": [{"name": "B", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]}},
    "protected": {"disruption": {"protectStartup": True}},
    "long drain": {"drain": {"timeoutSeconds": 3600}},
}  # fmt: skip


class Silent:
    async def scrape(self, pods: Any) -> dict[str, Any]:
        return {}


async def look(cluster: Cluster, namespace: str) -> None:
    one = Reconciler(cluster=cluster, scraper=Silent(), engine_image=IMAGE, tick=5.0, resync=300.0)
    for _ in range(2):
        await one.reconcile(ServiceKey(namespace, "chat"))


def conditions(kube: Any) -> dict[str, tuple[str, str]]:
    return {c["type"]: (c["status"], c["reason"]) for c in kube.get("infs", "chat")["status"]["conditions"]}


def test_pods_of_every_kind_of_service_pass_the_restricted_profile_of_a_real_api_server(kube: Any) -> None:
    kube("label", "namespace", kube.namespace, "pod-security.kubernetes.io/enforce=restricted")
    documents = []
    for i, spec in enumerate(SPECS.values()):
        asked = InferenceService.from_body(body(**spec))
        for uri in ("pvc://models/tiny/v1", "https://models.test/tiny/"):
            template = pods.template(asked, manifest(uri), asked.engine.image or IMAGE)
            metadata = {**template["metadata"], "name": f"pod-{i}-{uri[:3]}"}
            documents.append({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]})
    pods_of_all = json.dumps({"apiVersion": "v1", "kind": "List", "items": documents})
    said = kube("apply", "--dry-run=server", "-f", "-", stdin=pods_of_all)
    assert said.count("created (server dry run)") == len(documents) == 2 * len(SPECS)
    open_pod = documents[0] | {"spec": {**documents[0]["spec"], "hostNetwork": True}}
    assert "violates PodSecurity" in kube.refusal(open_pod)


async def test_a_secret_shows_in_no_object_status_event_or_log(
    kube: Any, cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    """Secrets are named, never read; a pull secret's content and another Secret beside it stay where they are."""
    canary = "canary-4c1f8e"
    kube("create", "secret", "generic", "regcred", f"--from-literal=password={canary}")
    kube.apply(pin(), service(imagePullSecrets=[{"name": "regcred"}], nodeSelector={"a b": "x"}))
    await look(cluster, kube.namespace)
    kube.apply(service(imagePullSecrets=[{"name": "regcred"}]))
    await look(cluster, kube.namespace)
    held = kube("get", "deployments,services,configmaps,pdb,infs,pin,events", "-o", "json")
    assert "regcred" in held
    assert canary not in held
    assert canary not in caplog.text


LARGE = {
    "annotations near 256 KiB": {"metadata": {"name": "chat", "annotations": {"note": "x" * 250_000}}},
    "labels of every length": {"metadata": {"name": "chat", "labels": {f"l{i}": "x" * 63 for i in range(900)}}},
}


@pytest.mark.parametrize("name", LARGE)
async def test_a_large_service_works_and_is_deletable(kube: Any, cluster: Cluster, name: str) -> None:
    kube("create", "--save-config=false", "-f", "-", stdin=json.dumps(pin()))
    kube("create", "--save-config=false", "-f", "-", stdin=json.dumps(service() | LARGE[name]))
    await look(cluster, kube.namespace)
    assert conditions(kube)["Stalled"][0] == "False"
    assert kube.exists("deployment", "chat")
    kube("delete", "infs", "chat", "--timeout=10s")
    assert not kube.exists("infs", "chat")


@pytest.mark.parametrize("spec", [
    {"podAnnotations": {f"k{i}": "x" * 4096 for i in range(32)}},
    {"engine": {"env": [{"name": f"V{i}", "value": "x" * 4096} for i in range(64)]}},
    {"tolerations": [{"key": "k" * 200 + str(i), "operator": "Exists"} for i in range(64)]},
], ids=["annotations", "variables", "tolerations"])  # fmt: skip
async def test_the_largest_values_that_the_schema_takes_work_or_are_told_and_are_deletable(
    kube: Any, cluster: Cluster, spec: dict[str, Any]
) -> None:
    kube("create", "--save-config=false", "-f", "-", stdin=json.dumps(pin()))
    kube("create", "--save-config=false", "-f", "-", stdin=json.dumps(service(**spec)))
    await look(cluster, kube.namespace)
    stalled = conditions(kube)["Stalled"]
    assert stalled == ("True", "Refused") or (stalled[0] == "False" and kube.exists("deployment", "chat"))
    kube("delete", "infs", "chat", "--timeout=10s")
    assert not kube.exists("infs", "chat")


def test_an_annotation_above_the_limit_is_refused(kube: Any) -> None:
    document = service() | {"metadata": {"name": "chat", "annotations": {"note": "x" * 270_000}}}
    done = kube.run("create", "--save-config=false", "-f", "-", stdin=json.dumps(document))
    assert done.returncode != 0
    assert "may not be more than 262144 bytes" in done.stderr
