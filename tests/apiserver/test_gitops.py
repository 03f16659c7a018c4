"""A user's manifest, applied again and again beside a working operator: no tool sees a difference or a conflict."""

import json
import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from apiserver_documents import pin, service
from chart_render import objects
from gitops_situations import CASES
from gitops_tools import argo_drift, flux_drift
from gitops_world import Operator, add_pods, live, versions, work
from kstatus import Verdict, verdict
from parts import KUBERNETES

from pinrail_operator.cluster import Cluster

pytestmark = pytest.mark.apiserver

ROOT = Path(__file__).parents[2]
FLUX = ROOT / "docs" / "gitops" / "flux" / "kustomization.yaml"
SCALED = {"replicas": None, "scaling": {"minReplicas": 1, "maxReplicas": 4}}
TUNED = {
    "resources": {"requests": {"cpu": ".5", "memory": "1024Mi"}, "limits": {"memory": "2Gi"}},
    "nodeSelector": {"disk": "ssd"},
    "limits": {"maxNumSeqs": 8, "kvCacheMemory": "1024Mi"},
    "tolerations": [{"key": "gpu", "operator": "Exists"}],
}
SERVICES = {"fixed": service(), "scaled": service(**SCALED), "tuned": service(**TUNED, **SCALED)}

Apply = Callable[[Any, list[dict[str, Any]]], str]


def client_side(kube: Any, documents: list[dict[str, Any]]) -> str:
    return str(kube("apply", "-f", "-", stdin=yaml.safe_dump_all(documents)))


def server_side(manager: str) -> Apply:
    """Without --force-conflicts: a field that somebody else owns with another value fails the test."""
    words = ("apply", "--server-side", f"--field-manager={manager}", "--force-conflicts=false", "-f", "-")
    return lambda kube, documents: str(kube(*words, stdin=yaml.safe_dump_all(documents)))


WAYS = {"kubectl": client_side, "kubectl-ssa": server_side("kubectl"), "flux": server_side("kustomize-controller"),
        "argocd": server_side("argocd-controller")}  # fmt: skip


PAIRS = [
    ("fixed", "kubectl"),
    ("scaled", "kubectl"),
    ("tuned", "kubectl"),
    ("tuned", "kubectl-ssa"),
    ("scaled", "flux"),
    ("tuned", "argocd"),
]


@pytest.mark.parametrize(("name", "way"), PAIRS)
async def test_a_manifest_applied_again_changes_nothing(kube: Any, cluster: Cluster, name: str, way: str) -> None:
    documents = [pin(), SERVICES[name]]
    WAYS[way](kube, documents)
    generations = [generation for _, generation in versions(kube)]
    await work(kube, cluster)
    before = versions(kube)
    assert [generation for _, generation in before] == generations
    said = WAYS[way](kube, documents)
    assert versions(kube) == before
    if way == "kubectl":
        assert said.count("unchanged") == 2
        assert kube("diff", "-f", "-", stdin=yaml.safe_dump_all(documents)) == ""


@pytest.mark.parametrize(("name", "way"), [("tuned", "kubectl"), ("scaled", "flux")])
async def test_another_tool_takes_the_manifest_over_without_a_conflict(
    kube: Any, cluster: Cluster, name: str, way: str
) -> None:
    documents = [pin(), SERVICES[name]]
    WAYS[way](kube, documents)
    await work(kube, cluster)
    generations = [generation for _, generation in versions(kube)]
    WAYS["argocd"](kube, documents)
    assert [generation for _, generation in versions(kube)] == generations


def dry_run(kube: Any, document: dict[str, Any], *words: str) -> dict[str, Any]:
    """What Flux would have after an apply; without --force-conflicts, a conflict fails the test."""
    flags = ("--server-side", "--field-manager=kustomize-controller", "--dry-run=server", "-o", "json", *words)
    found: dict[str, Any] = json.loads(kube("apply", *flags, "-f", "-", stdin=yaml.safe_dump(document)))
    return found


@pytest.mark.parametrize(("name", "way"), [("fixed", "kubectl"), ("tuned", "kubectl"), ("tuned", "flux")])
async def test_no_gitops_tool_sees_a_difference(kube: Any, cluster: Cluster, name: str, way: str) -> None:
    documents = [pin(), SERVICES[name]]
    WAYS[way](kube, documents)
    await work(kube, cluster)
    for seen, wanted in zip(live(kube), documents, strict=True):
        assert flux_drift(seen, dry_run(kube, wanted)) == []
        assert argo_drift(seen, wanted) == []


async def test_a_difference_would_be_seen(kube: Any, cluster: Cluster) -> None:
    WAYS["kubectl"](kube, [pin(), service()])
    await work(kube, cluster)
    kube("patch", "infs", "chat", "--type=merge", "-p", '{"spec":{"replicas":3}}')
    seen = live(kube)[1]
    assert flux_drift(seen, dry_run(kube, service(), "--force-conflicts")) == ["spec"]
    assert argo_drift(seen, service()) == ["spec"]
    without = {**service(), "spec": {k: v for k, v in service()["spec"].items() if k != "replicas"}}
    assert argo_drift(seen, without) == ["spec"]


@pytest.mark.parametrize("way", ["kubectl", "flux"])
async def test_the_operator_writes_the_status_alone_and_in_its_own_name(kube: Any, cluster: Cluster, way: str) -> None:
    WAYS[way](kube, [pin(), service(**SCALED)])
    users = [{m["manager"] for m in o["metadata"]["managedFields"]} for o in live(kube)]
    await work(kube, cluster)
    manifest, chat = live(kube)
    assert {m["manager"] for m in manifest["metadata"]["managedFields"]} == users[0]
    written = {m["manager"]: (m.get("subresource"), set(m["fieldsV1"])) for m in chat["metadata"]["managedFields"]}
    assert written.pop("pinrail") == ("status", {"f:status"})
    assert set(written) == users[1]
    assert all(part is None and "f:status" not in fields for part, fields in written.values())


def test_a_service_that_nobody_has_looked_at_is_in_progress(kube: Any) -> None:
    kube.apply(pin(), service())
    assert verdict(kube.get("infs", "chat")) is Verdict.IN_PROGRESS
    assert verdict(kube.get("pin", "tiny-v1")) is Verdict.CURRENT


async def test_a_changed_service_is_in_progress_until_it_is_looked_at(kube: Any, cluster: Cluster) -> None:
    kube.apply(pin(), service(replicas=0))
    operator = Operator(cluster, kube.namespace)
    await operator.look(1)
    add_pods(kube)
    await operator.look(2)
    assert verdict(kube.get("infs", "chat")) is Verdict.CURRENT
    kube.apply(service(replicas=1))
    assert verdict(kube.get("infs", "chat")) is Verdict.IN_PROGRESS


@pytest.fixture
def flux(kube: Any) -> Iterator[Callable[[dict[str, Any]], str]]:
    """Asks the API server's own CEL what Flux's expressions make of a status: a policy denies it with the answer."""
    kustomization = yaml.safe_load(FLUX.read_text())
    rules = {key: _of_object(text) for key, text in kustomization["spec"]["healthCheckExprs"][0].items()}
    later = f"{rules['failed']} ? 'Failed' : {rules['current']} ? 'Current' : 'InProgress'"
    answer = f"{rules['inProgress']} ? 'InProgress' : {later}"
    name = f"{kube.namespace}-flux"
    head = {"apiVersion": "admissionregistration.k8s.io/v1", "metadata": {"name": name}}
    resources = {"apiGroups": ["pinrail.dev"], "apiVersions": ["*"], "operations": ["UPDATE"],
                 "resources": ["inferenceservices/status"]}  # fmt: skip
    own = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": kube.namespace}}}
    policy = {**head, "kind": "ValidatingAdmissionPolicy", "spec": {
        "failurePolicy": "Fail", "matchConstraints": {"resourceRules": [resources]},
        "validations": [{"expression": "false", "messageExpression": f"'verdict=' + ({answer})"}]}}  # fmt: skip
    binding = {**head, "kind": "ValidatingAdmissionPolicyBinding", "spec": {
        "policyName": name, "validationActions": ["Deny"], "matchResources": own}}  # fmt: skip
    kube.apply(policy, binding)

    def ask(status: dict[str, Any]) -> str:
        patch = json.dumps({"status": status})
        deadline = time.monotonic() + 30
        while True:
            done = kube.run(
                "patch", "infs", "chat", "--subresource=status", "--type=merge", "--dry-run=server", "-p", patch
            )
            if done.returncode != 0:
                found = re.search(r"verdict=(\w+)", done.stderr)
                assert found is not None, done.stderr
                return found[1]
            assert time.monotonic() < deadline, "the policy did not come into force within 30 s"
            time.sleep(0.2)

    yield ask
    kube("delete", "validatingadmissionpolicy,validatingadmissionpolicybinding", name)


def _of_object(expression: str) -> str:
    return "(" + re.sub(r"(?<![\w.])(status|metadata)\.", r"object.\1.", expression) + ")"


def test_fluxs_expressions_agree_with_kstatus(kube: Any, flux: Callable[[dict[str, Any]], str]) -> None:
    kube.apply(pin(), service())
    generation = kube.get("infs", "chat")["metadata"]["generation"]
    for name, seen, wanted in CASES:
        is_new = seen["metadata"]["generation"] == seen["status"]["observedGeneration"]
        observed = generation if is_new else generation - 1
        assert flux({**seen["status"], "observedGeneration": observed}) == wanted, name


def test_the_flux_file_names_the_resource_as_it_is() -> None:
    (named,) = yaml.safe_load(FLUX.read_text())["spec"]["healthCheckExprs"]
    crd = objects((ROOT / "crds" / "inferenceservices.yaml").read_text())[0]["spec"]
    assert (named["apiVersion"], named["kind"]) == (
        f"{crd['group']}/{crd['versions'][0]['name']}",
        crd["names"]["kind"],
    )


def test_the_documented_command_gives_argo_cd_its_scripts_and_keeps_what_is_there(kube: Any, tmp_path: Path) -> None:
    before = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "argocd-cm", "labels": {"a": "b"}}}
    kube.apply(before | {"data": {"url": "https://argocd.test"}})
    page = (ROOT / "docs" / "gitops.md").read_text()
    (command,) = re.findall(r"```\n(kubectl -n argocd .*?)```", page, flags=re.S)
    (tmp_path / "kubectl").symlink_to(KUBERNETES.program("kubectl"))
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "KUBECONFIG": str(kube.kubeconfig)}
    own = command.replace("-n argocd", f"-n {kube.namespace}")
    subprocess.run(["bash", "-euo", "pipefail", "-c", own], check=True, cwd=ROOT, env=env, capture_output=True)
    found = kube.get("configmap", "argocd-cm")
    assert (found["data"]["url"], found["metadata"]["labels"]) == ("https://argocd.test", {"a": "b"})
    for kind in ("InferenceService", "ModelManifest"):
        script = (ROOT / "docs" / "gitops" / "argocd" / "pinrail.dev" / kind / "health.lua").read_text()
        assert found["data"][f"resource.customizations.health.pinrail.dev_{kind}"] == script
