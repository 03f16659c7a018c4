"""NetworkPolicies against a real API server: what it takes, what is repaired, and an operator that may write none."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from apiserver_documents import pin, service
from operator_builders import IMAGE, load
from operator_process import until

from pinrail_operator import explain_command
from pinrail_operator.cluster import Cluster
from pinrail_operator.metrics import Scrape
from pinrail_operator.reconcile import Reconciler
from pinrail_operator.types import ServiceKey

pytestmark = pytest.mark.apiserver

PEERS = [
    {"podSelector": {}},
    {"namespaceSelector": {"matchLabels": {"team": "a"}}, "podSelector": {"matchExpressions": [
        {"key": "app", "operator": "NotIn", "values": ["x", ""]}]}},
    {"namespaceSelector": {"matchExpressions": [{"key": "team", "operator": "Exists", "values": []}]}},
    {"ipBlock": {"cidr": "10.0.0.1/8", "except": ["10.1.0.0/16"]}},
    {"ipBlock": {"cidr": "FD00::/8", "except": []}},
]  # fmt: skip


def confined(*peers: dict[str, Any], **spec: Any) -> dict[str, Any]:
    policy = {"enabled": True, **({"from": list(peers)} if peers else {})}
    return service(security={"networkPolicy": policy}, **spec)


class Silent:
    async def scrape(self, pods: Any) -> dict[str, Scrape]:
        return {p.name: Scrape(load(0.5)) for p in pods}


class Operator:
    """Reconciles the service `chat` of one namespace, from the namespace `sys`."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self.key = ServiceKey(namespace, "chat")
        self.reconciler = Reconciler(
            cluster=cluster, scraper=Silent(), engine_image=IMAGE, namespace="sys", tick=5.0, resync=300.0
        )

    async def __call__(self, times: int = 1) -> None:
        for _ in range(times):
            self.reconciler.touch(self.key)
            await self.reconciler.reconcile(self.key)


@pytest.fixture
def operator(cluster: Cluster, kube: Any) -> Operator:
    return Operator(cluster, kube.namespace)


def policy(kube: Any) -> dict[str, Any]:
    found: dict[str, Any] = kube.get("networkpolicy", "chat")
    return found


def peers(kube: Any) -> list[dict[str, Any]]:
    (rule,) = policy(kube)["spec"]["ingress"]
    found: list[dict[str, Any]] = rule["from"]
    return found


def stalled(kube: Any) -> dict[str, str]:
    found = {c["type"]: c for c in kube.get("infs", "chat").get("status", {}).get("conditions", [])}
    return dict(found.get("Stalled", {"status": "", "reason": "", "message": ""}))


def edit(kube: Any, *operations: dict[str, Any]) -> None:
    kube("patch", "networkpolicy", "chat", "--type=json", "-p", json.dumps(operations))


@pytest.mark.parametrize("uri", ["pvc://models/tiny/v1", "https://models.test:8443/tiny/"], ids=["claim", "fetched"])
@pytest.mark.parametrize("given", [(), PEERS], ids=["default", "peers"])
async def test_a_policy_is_taken_and_not_written_again(operator: Operator, kube: Any, uri: str, given: Any) -> None:
    kube.apply(pin(uri=uri), confined(*given))
    await operator()
    before = policy(kube)
    await operator(3)
    assert policy(kube)["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]
    assert len(peers(kube)) == max(1, len(given)) + 1
    assert bool(before["spec"].get("egress")) is uri.startswith("https")
    assert stalled(kube)["status"] == "False"
    assert [o["uid"] for o in before["metadata"]["ownerReferences"]] == [kube.get("infs", "chat")["metadata"]["uid"]]


WIDER = {
    "a way out": {"op": "add", "path": "/spec/egress", "value": [{}]},
    "all namespaces": {"op": "add", "path": "/spec/ingress/0/from/0/namespaceSelector", "value": {}},
    "every port": {"op": "remove", "path": "/spec/ingress/0/ports"},
    "another rule": {"op": "add", "path": "/spec/ingress/-", "value": {}},
    "no word of egress": {"op": "remove", "path": "/spec/policyTypes/1"},
    "fewer pods": {"op": "add", "path": "/spec/podSelector/matchLabels", "value": {"team": "a"}},
}


@pytest.mark.parametrize("operation", WIDER.values(), ids=WIDER.keys())
async def test_what_somebody_added_is_taken_away(operator: Operator, kube: Any, operation: dict[str, Any]) -> None:
    kube.apply(pin(), confined())
    await operator()
    wanted = policy(kube)["spec"]
    edit(kube, operation)
    assert policy(kube)["spec"] != wanted
    await operator()
    assert policy(kube)["spec"] == wanted


async def test_a_policy_comes_and_goes_without_a_restart(operator: Operator, cluster: Cluster, kube: Any) -> None:
    """Also where it was switched off while no operator ran."""
    kube.apply(pin(), service())
    await operator(2)
    template = kube.get("deployment", "chat")["spec"]["template"]
    kube.apply(confined())
    await operator(2)
    assert peers(kube)[-1]["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": "sys"}
    kube.apply(service(security={"networkPolicy": {"enabled": False, "from": PEERS}}))
    await Operator(cluster, kube.namespace)()
    assert not kube.exists("networkpolicy", "chat")
    assert kube.get("deployment", "chat")["spec"]["template"] == template


async def test_whoever_explains_it_sees_the_policy_that_its_operator_wrote(
    operator: Operator, kube: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A person's command does not know where the operator runs, and takes it from the policy."""
    kube.apply(pin(), confined())
    await operator(2)
    monkeypatch.setenv("KUBECONFIG", str(kube.kubeconfig))
    words = ["chat", "-n", kube.namespace, "-o", "json"]
    assert await asyncio.to_thread(explain_command.command.run, words) == 0
    told = json.loads(capsys.readouterr().out)["upgrade"]["operator"]
    assert (told["effect"], told["objects"]) == ("none", [])


async def test_a_policy_of_somebody_else_is_neither_changed_nor_deleted(operator: Operator, kube: Any) -> None:
    theirs = {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "chat"},
              "spec": {"podSelector": {}, "policyTypes": ["Ingress"]}}  # fmt: skip
    kube.apply(theirs, pin(), service())
    await operator(2)
    assert stalled(kube)["status"] == "False"
    kube.apply(confined())
    await operator(2)
    assert stalled(kube)["reason"] == "NameTaken"
    assert policy(kube)["spec"] == theirs["spec"]


def test_the_watch_repairs_a_policy_within_seconds(kube: Any, start: Any) -> None:
    kube.apply(pin(), confined())
    operator = start(KUBERNETES_SERVICE_HOST="10.96.0.1")
    until(lambda: kube.exists("networkpolicy", "chat"), "the policy")
    assert peers(kube)[-1]["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": kube.namespace}
    until(lambda: stalled(kube)["status"] == "False", "the status")
    edit(kube, WIDER["all namespaces"])
    until(lambda: peers(kube)[0] == {"podSelector": {}}, "the repair", 5)
    kube("delete", "networkpolicy", "chat")
    until(lambda: kube.exists("networkpolicy", "chat"), "its return", 5)
    kube.apply(service())
    until(lambda: not kube.exists("networkpolicy", "chat"), "its end", 5)
    assert operator.stop() == 0
    assert "forbidden" not in operator.log.read_text()


def without_policies(kube: Any) -> dict[str, Any]:
    """The operator's role as a chart had it that knew of no policies, in place of its own; returns what it was."""
    found = kube.get("role", "p-operator")
    role = {key: found[key] for key in ("apiVersion", "kind", "rules")} | {"metadata": {"name": "p-operator"}}
    rules = [rule for rule in role["rules"] if "networkpolicies" not in rule["resources"]]
    assert len(rules) == len(role["rules"]) - 1
    kube("replace", "-f", "-", stdin=json.dumps({**role, "rules": rules}))
    return role


def test_an_operator_without_the_right_says_so_and_serves_all_the_same(kube: Any, rights: Path, start: Any) -> None:
    role = without_policies(kube)
    kube.apply(pin(), service())
    operator = start(PINRAIL_RESYNC_SECONDS="2")
    until(lambda: kube.exists("deployment", "chat"), "a service that asks for no policy")
    until(lambda: stalled(kube)["status"] == "False", "its status")
    kube.apply(confined(replicas=3))
    until(lambda: stalled(kube)["reason"] == "Refused", "the refusal")
    assert 'cannot patch resource "networkpolicies"' in stalled(kube)["message"]
    assert "the operator's rights" in stalled(kube)["message"]
    until(lambda: kube.get("deployment", "chat")["spec"]["replicas"] == 3, "three replicas")
    kube("replace", "-f", "-", stdin=json.dumps(role))
    until(lambda: kube.exists("networkpolicy", "chat"), "the policy, once it may")
    until(lambda: stalled(kube)["status"] == "False", "an end of the refusal")
    assert operator.stop() == 0
