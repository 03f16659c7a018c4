"""Who may reach a service's pods, and what they may reach: no more, and no less, than what is asked for."""

import copy
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from operator_builders import IMAGE, UID, live_objects, manifest, observed, pod, record, service, target

from pinrail_contract.pins import ModelManifest, Source
from pinrail_operator import names, pods
from pinrail_operator.checks import Blocked, first_blocker
from pinrail_operator.drift import is_applied
from pinrail_operator.errors import SpecError
from pinrail_operator.manifests import objects_for
from pinrail_operator.network_policy import OPERATOR, operator_namespace, port_of
from pinrail_operator.observed import Observed, Ref
from pinrail_operator.plan import Plan, plan_for
from pinrail_operator.types import InferenceService

POLICY = Ref("NetworkPolicy", "chat")
COMMIT, LAYERS = "c" * 40, "@sha256:" + "0" * 64
NAMESPACES = {"namespaceSelector": {"matchLabels": {"team": "gateways"}}}
NAME_SERVERS = {"ports": [{"port": port, "protocol": name} for port in (53, 5353) for name in ("UDP", "TCP")]}


def confined(*peers: dict[str, Any], operator: str = "sys", **spec: Any) -> InferenceService:
    policy = {"enabled": True, **({"from": list(peers)} if peers else {})}
    return service(security={"networkPolicy": policy}, **spec).asked_from(operator)


def policy_of(one: InferenceService, pinned: ModelManifest | None = None) -> dict[str, Any]:
    (found,) = [o for o in objects_for(one, pinned or manifest(), IMAGE) if o["kind"] == "NetworkPolicy"]
    return found


def planned(one: InferenceService, seen: Observed) -> Plan:
    return plan_for(one, seen, None, IMAGE, None)


EGRESS = [
    pytest.param("pvc://models/tiny", "", "", {}, [], id="a claim"),
    pytest.param("https://models.test/tiny/", "", "", {}, [443], id="https"),
    pytest.param("https://models.test:8443/tiny/", "", "", {}, [8443], id="https, a port"),
    pytest.param("oci://registry.test/a" + LAYERS, "", "", {}, [443], id="oci"),
    pytest.param("oci://127.0.0.1:5000/a" + LAYERS, "", "", {}, [5000], id="oci, a port"),
    pytest.param("hf://org/name", "", "", {}, [443], id="the hub"),
    pytest.param("hf://org/name", "https://hub.test:8080/x", "", {}, [8080], id="another hub"),
    pytest.param("s3://bucket/tiny", "", "", {}, [443], id="s3"),
    pytest.param("s3://bucket/tiny", "https://minio.test:9000", "", {}, [9000], id="a store"),
    pytest.param("https://models.test/tiny/", "https://hub.test:9000", "", {}, [443], id="an endpoint of no use"),
    pytest.param("pvc://models/tiny", "https://hub.test:9000", "", {}, [], id="an endpoint of no use to a claim"),
    pytest.param("pvc://models/tiny", "", "http://collector:4318/v1/traces", {}, [4318], id="traces"),
    pytest.param("pvc://models/tiny", "", "http://collector/v1", {}, [80], id="traces by http"),
    pytest.param("s3://bucket/tiny", "", "https://collector", {}, [443], id="one port for both"),
    pytest.param("s3://bucket/tiny", "", "http://collector:4317", {}, [443, 4317], id="source and traces"),
    pytest.param("s3://bucket/tiny", "", "", {"HTTPS_PROXY": "http://proxy:3128"}, [443, 3128], id="a proxy"),
    pytest.param("s3://bucket/tiny", "", "", {"https_proxy": "proxy:3128"}, [443, 3128], id="a proxy without a scheme"),
    pytest.param("s3://bucket/tiny", "", "", {"NO_PROXY": "x:1", "HTTP_PROXY": ""}, [443], id="no proxy"),
    pytest.param("hf://org/name", "", "", {"HF_ENDPOINT": "https://hub.test:8443/"}, [8443], id="a hub by variable"),
    pytest.param("s3://bucket/tiny", "", "", {"AWS_ENDPOINT_URL": "https://minio:9000"}, [9000], id="a store by one"),
    pytest.param("hf://org/name", "", "", {"HF_ENDPOINT": ""}, [443], id="an empty variable"),
    pytest.param("hf://org/name", "https://hub.test:8080", "", {"HF_ENDPOINT": "https://x:1"}, [8080], id="both"),
    pytest.param("hf://org/name", "", "", {"AWS_ENDPOINT_URL": "https://x:1"}, [443], id="the other's variable"),
    pytest.param("https://models.test/tiny/", "", "", {"HF_ENDPOINT": "https://x:1"}, [443], id="nobody's variable"),
    pytest.param("pvc://models/tiny", "", "", {"HTTPS_PROXY": "http://proxy:3128"}, [], id="a proxy of no use"),
]  # fmt: skip


@pytest.mark.parametrize(("uri", "endpoint", "traces", "env", "ports"), EGRESS)
def test_pods_reach_the_ports_that_they_need_and_name_servers(
    uri: str, endpoint: str, traces: str, env: dict[str, str], ports: list[int]
) -> None:
    model = {**service().written["model"], **({"endpoint": endpoint} if endpoint else {})}
    engine = {"tracesEndpoint": traces, "env": [{"name": name, "value": value} for name, value in env.items()]}
    one = confined(model=model, engine=engine if traces else {"env": engine["env"]})
    tcp = {"ports": [{"port": port, "protocol": "TCP"} for port in ports]}
    pinned = replace(manifest(), source=Source(uri, COMMIT if uri.startswith("hf") else ""))
    assert policy_of(one, pinned)["spec"]["egress"] == ([NAME_SERVERS, tcp] if ports else [])


@pytest.mark.parametrize(
    ("uri", "given", "ports"),
    [
        pytest.param("s3://bucket/tiny", [9000, 80, 443], [80, 443, 3128, 9000], id="besides others"),
        pytest.param("pvc://models/tiny", [9000], [9000], id="by themselves, without a proxy of no use"),
        pytest.param("pvc://models/tiny", [65535, 1, 1], [1, 65535], id="the bounds, and one twice"),
    ],
)
def test_pods_reach_the_ports_that_are_given_besides(uri: str, given: list[int], ports: list[int]) -> None:
    policy = {"networkPolicy": {"enabled": True, "egressPorts": given}}
    one = service(security=policy, engine={"env": [{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}]})
    tcp = {"ports": [{"port": port, "protocol": "TCP"} for port in ports]}
    assert policy_of(one, manifest(uri))["spec"]["egress"] == [NAME_SERVERS, tcp]


def test_an_endpoint_that_no_container_that_fetches_gets_opens_nothing() -> None:
    """One read from a Secret is the engine's alone, unlike a proxy."""
    key = {"secretKeyRef": {"name": "hub", "key": "url"}}
    one = confined(engine={"env": [{"name": "AWS_ENDPOINT_URL", "valueFrom": key}]})
    made = pods.template(one, manifest("s3://bucket/tiny"), IMAGE)["spec"]["initContainers"]
    assert "AWS_ENDPOINT_URL" not in [v["name"] for c in made for v in c["env"]]
    assert [p["port"] for p in policy_of(one, manifest("s3://bucket/tiny"))["spec"]["egress"][1]["ports"]] == [443]


def test_a_policy_lets_out_what_the_service_and_its_manifest_name() -> None:
    engine = {"tracesEndpoint": "http://collector:4318", "env": [{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}]}
    model = {**service().written["model"], "endpoint": "https://minio.test:9000"}
    _, tcp = policy_of(confined(engine=engine, model=model), manifest("s3://bucket/tiny"))["spec"]["egress"]
    assert [p["port"] for p in tcp["ports"]] == [3128, 4318, 9000]


@pytest.mark.parametrize(
    ("url", "port"),
    [
        ("http://[fd00::1]:4318/v1", 4318),
        ("http://[fd00::1]/v1", 80),
        ("https://me:pw@host:8443", 8443),
        ("https://host:8443?x", 8443),
        ("https://host/a:1", 443),
        ("https://host:99999/", 443),
        ("http://host:0", 80),
        ("https://host:port/", 443),
        ("https://[broken", 443),
        ("no url", 443),
    ],
)
def test_the_port_of_an_address(url: str, port: int) -> None:
    assert port_of(url) == port


def test_a_policy_of_a_claim_lets_nothing_out_and_the_namespace_and_the_operator_in() -> None:
    spec = policy_of(confined())["spec"]
    asks = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "sys"}},
            "podSelector": {"matchLabels": OPERATOR}}  # fmt: skip
    assert spec["policyTypes"] == ["Ingress", "Egress"]
    assert spec["egress"] == []
    assert spec["ingress"] == [{"ports": [{"port": "http", "protocol": "TCP"}], "from": [{"podSelector": {}}, asks]}]


@pytest.mark.parametrize(("operator", "others"), [("sys", 1), ("", 0)], ids=["in a pod", "outside of any"])
def test_peers_that_are_given_replace_the_namespace_and_leave_the_operator(operator: str, others: int) -> None:
    (rule,) = policy_of(confined(NAMESPACES, operator=operator))["spec"]["ingress"]
    assert rule["from"][0] == NAMESPACES
    assert len(rule["from"]) == 1 + others


@pytest.mark.parametrize("engine", [{}, {"type": "vllm", "image": IMAGE}], ids=["ours", "vllm"])
def test_the_port_that_is_let_in_is_one_that_the_pod_names(engine: dict[str, str]) -> None:
    one = confined(engine=engine).verified_by(IMAGE)
    (container,) = pods.template(one, manifest(), IMAGE)["spec"]["containers"]
    (rule,) = policy_of(one)["spec"]["ingress"]
    assert [p["port"] for p in rule["ports"]] == [p["name"] for p in container["ports"]]


NAMES = st.from_regex(r"[a-z]([-a-z0-9]{0,50}[a-z0-9])?", fullmatch=True)
LABELS = st.dictionaries(st.sampled_from(["team", "app", "pinrail.io/service"]), st.text("abc", max_size=3), max_size=3)


def named(name: str, labels: dict[str, str]) -> InferenceService:
    one = {"security": {"networkPolicy": {"enabled": True}}, "podLabels": labels}
    body = {**service(**one).written}
    metadata = {"name": name, "namespace": "team", "uid": UID}
    return InferenceService.from_body(
        {"apiVersion": "pinrail.dev/v1alpha1", "kind": "InferenceService", "metadata": metadata, "spec": body}
    )


def selects(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    """As Kubernetes reads one that has expressions of In alone."""
    assert set(selector) == {"matchExpressions"}
    assert {e["operator"] for e in selector["matchExpressions"]} == {"In"}
    return all(labels.get(e["key"]) in e["values"] for e in selector["matchExpressions"])


def as_selected(query: str, labels: dict[str, str]) -> bool:
    """As the API server reads `pods_selector`."""
    key, _, values = query.partition(" in ")
    return labels.get(key) in values.strip("()").split(",")


@given(name=NAMES, other=NAMES, labels=LABELS)
def test_every_pod_of_the_service_is_selected_and_none_of_another(
    name: str, other: str, labels: dict[str, str]
) -> None:
    """Whatever its revision, in quarantine or out of it: those that `names.pods_selector` finds."""
    one = named(name, labels)
    selector, query = policy_of(one)["spec"]["podSelector"], names.pods_selector(one)
    for owner in (name, other):
        ours = pods.template(named(owner, labels), manifest(), IMAGE)["metadata"]["labels"]
        for made in (ours, {**ours, names.SERVICE: owner + names.QUARANTINED}):
            assert selects(selector, made) is as_selected(query, made) is (owner == name)


PEERS = [
    ({"podSelector": {}}, {"podSelector": {}}),
    ({"podSelector": {"matchLabels": {}, "matchExpressions": []}}, {"podSelector": {}}),
    ({"podSelector": None, "namespaceSelector": {}}, {"namespaceSelector": {}}),
    ({"ipBlock": {"cidr": "10.0.0.0/8", "except": []}}, {"ipBlock": {"cidr": "10.0.0.0/8"}}),
    ({"ipBlock": {"cidr": "fd00::/8", "except": ["fd00:1::/32"]}}, None),
    ({"namespaceSelector": {"matchExpressions": [{"key": "a.b/c", "operator": "In", "values": ["x", ""]}]}}, None),
    ({"podSelector": {"matchExpressions": [{"key": "a", "operator": "Exists", "values": []}]}},
     {"podSelector": {"matchExpressions": [{"key": "a", "operator": "Exists"}]}}),
    ({**NAMESPACES, "podSelector": {"matchLabels": {"app": "x"}}}, None),
]  # fmt: skip


@pytest.mark.parametrize(("peer", "kept"), PEERS, ids=str)
def test_a_peer_is_kept_as_the_api_server_will_show_it(peer: dict[str, Any], kept: dict[str, Any] | None) -> None:
    assert confined(peer).network.peers == (peer if kept is None else kept,)


def expression(**changes: Any) -> dict[str, Any]:
    return {"podSelector": {"matchExpressions": [{"key": "a", "operator": "In", "values": ["x"], **changes}]}}


FROM = "spec.security.networkPolicy.from"
REFUSED = [
    ({}, f"{FROM}[0]: got none of them, want podSelector, namespaceSelector, both, or ipBlock"),
    ({"ipBlock": {"cidr": "10.0.0.0/8"}, "podSelector": {}}, f"{FROM}[0]: got ipBlock beside podSelector, want"),
    ({"ipBlock": {}}, f"{FROM}[0].ipBlock.cidr: got nothing, want addresses such as 10.0.0.0/8 or fd00::/8"),
    ({"ipBlock": {"cidr": "10.0.0.1"}}, f"{FROM}[0].ipBlock.cidr: got '10.0.0.1', want addresses such as"),
    ({"ipBlock": {"cidr": "10.0.0.0/33"}}, f"{FROM}[0].ipBlock.cidr: got '10.0.0.0/33', want addresses such as"),
    ({"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.0.0.0/8"]}}, "except[0]: got 10.0.0.0/8, want a part of"),
    ({"ipBlock": {"cidr": "10.0.0.0/8", "except": ["11.0.0.0/16"]}}, "except[0]: got 11.0.0.0/16, want a part of"),
    ({"ipBlock": {"cidr": "10.0.0.0/8", "except": ["fd00::/16"]}}, "except[0]: got fd00::/16, want a part of"),
    ({"ipBlock": {"cidr": "10.0.0.0/8", "except": [7]}}, "except[0]: got 7, want addresses such as"),
    ({"podSelectors": {}}, f"{FROM}[0].podSelectors: is not a known field, want one of ipBlock, namespaceSelector"),
    ({"podSelector": {"matchLabels": {"a": "b c"}}}, f"{FROM}[0].podSelector.matchLabels.a: got 'b c', want a label's"),
    ({"podSelector": {"matchLabels": dict.fromkeys("abcd", "x")}}, "matchLabels: got 4 labels, want at most 3"),
    (expression(operator="Is"), "matchExpressions[0].operator: got 'Is', want one of In, NotIn, Exists, DoesNotExist"),
    (expression(values=[]), "matchExpressions[0].values: got none, want one or more while operator is In"),
    (expression(operator="Exists"), "matchExpressions[0].values: got 1, want none while operator is Exists"),
    (expression(values=["a/b"]), "matchExpressions[0].values[0]: got 'a/b', want a label's value"),
    (expression(key="-"), "matchExpressions[0].key: got '-', want a label's name"),
]  # fmt: skip


@pytest.mark.parametrize(("peer", "message"), REFUSED, ids=str)
def test_a_wrong_peer_is_refused_by_name(peer: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError) as caught:
        confined(peer)
    assert message in str(caught.value)


PORTS = "spec.security.networkPolicy.egressPorts"


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ({"from": []}, f"{FROM}: got none, want 1 to 16 peers; left out, pods of the same namespace may ask"),
        ({"from": [{"podSelector": {}}] * 17}, "want a list of at most 16"),
        ({"enabled": "yes"}, "spec.security.networkPolicy.enabled: got 'yes', want true or false"),
        (
            {"egress": []},
            "spec.security.networkPolicy.egress: is not a known field, want one of egressPorts, enabled, from",
        ),
        ({"egressPorts": [80] * 17}, "want a list of at most 16"),
        ({"egressPorts": [80, 0]}, f"{PORTS}[1]: got '0', want a port: a whole number of 1 to 65535"),
        ({"egressPorts": [65536]}, f"{PORTS}[0]: got '65536', want a port"),
        ({"egressPorts": [True]}, f"{PORTS}[0]: got 'True', want a port"),
        ({"egressPorts": ["80"]}, f"{PORTS}[0]: got '80', want a port"),
    ],
    ids=str,
)
def test_a_wrong_policy_is_refused_by_name(policy: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError) as caught:
        service(security={"networkPolicy": policy})
    assert message in str(caught.value)


def test_pods_are_confined_before_they_start() -> None:
    plan = planned(confined(), observed())
    assert [o["kind"] for o in plan.policies] == ["NetworkPolicy"]
    assert str(plan).startswith("apply NetworkPolicy chat, ")
    assert not plan.is_empty


def test_a_policy_comes_and_goes_alone() -> None:
    bare, whole = live_objects(service()), live_objects(confined())
    added = planned(confined(), observed(bare))
    assert (str(added), added.is_empty) == ("apply NetworkPolicy chat", False)
    assert planned(confined(), observed(whole)).is_empty
    assert planned(service(), observed(whole)) == Plan(delete=(POLICY,))


def ports_out(plan: Plan) -> list[int]:
    """TCP ports that a plan's policy lets out, but for name servers."""
    (policy,) = plan.policies
    return [p["port"] for rule in policy["spec"]["egress"][1:] for p in rule["ports"]]


def test_pods_of_an_older_source_can_be_fetched_for_until_the_last_is_gone() -> None:
    """Where a roll-out goes back to them, too: their ConfigMap stays as long as a pod may mount it."""
    old = live_objects(confined(), pinned=manifest("https://models.test:8443/tiny/"))
    assert ports_out(planned(confined(), observed(old, manifest=manifest("s3://bucket/tiny")))) == [443, 8443]
    assert planned(confined(), observed(old, manifest=manifest())).policies == (), "it is as wide as it was"
    (mounted,) = [ref for ref in old if ref.kind == "ConfigMap"]
    rolled_out = {**live_objects(confined()), POLICY: old[POLICY], mounted: old[mounted]}
    last = planned(confined(), observed(rolled_out))
    assert (last.delete, [p["spec"]["egress"] for p in last.policies]) == ((mounted,), [[]])


def reached_by(endpoint: str = "", proxy: str = "") -> InferenceService:
    model = {**service().written["model"], **({"endpoint": endpoint} if endpoint else {})}
    return confined(model=model, engine={"env": [{"name": "HTTPS_PROXY", "value": proxy}]})


def unconfined(one: InferenceService, pinned: ModelManifest, **counts: int) -> dict[Ref, dict[str, Any]]:
    """All objects but the policy, so that a plan holds the one that is wanted."""
    return {ref: o for ref, o in live_objects(one, pinned=pinned, **counts).items() if ref != POLICY}


OLDER = [
    pytest.param(reached_by("https://minio:9000"), reached_by(), [443, 9000], id="an endpoint that went"),
    pytest.param(reached_by(), reached_by("https://minio:9000"), [443, 9000], id="one that came"),
    pytest.param(reached_by("https://a:1"), reached_by("https://b:2"), [1, 2], id="another endpoint"),
    pytest.param(reached_by(proxy="http://p:3128"), reached_by(), [443, 3128], id="a proxy that went"),
    pytest.param(reached_by(proxy="http://p:1"), reached_by(proxy="http://q:2"), [1, 2, 443], id="another proxy"),
]


@pytest.mark.parametrize(("old", "new", "ports"), OLDER)
def test_pods_of_an_older_revision_can_fetch_by_its_endpoint_and_proxy_until_the_last_is_gone(
    old: InferenceService, new: InferenceService, ports: list[int]
) -> None:
    pinned = manifest("s3://bucket/tiny")
    was, template = unconfined(old, pinned), pods.template(old, pinned, IMAGE)
    rolling = unconfined(new, pinned, updated=1)
    seen = observed(rolling, (pod(revision=target(old, pinned)),), manifest=pinned)
    known = {target(old, pinned): template}
    begun = planned(new, observed(was, seen.pods, manifest=pinned))
    assert ports_out(begun) == ports, "before the Deployment changes"
    under_way = planned(new, replace(seen, templates=known))
    assert ports_out(under_way) == ports
    back = {**rolling, Ref("Deployment", "chat"): was[Ref("Deployment", "chat")]}
    assert ports_out(planned(new, observed(back, manifest=pinned))) == ports, "after an abort"
    done = replace(seen, live=unconfined(new, pinned), pods=(), templates=known)
    assert ports_out(planned(new, done)) == [p["port"] for p in policy_of(new, pinned)["spec"]["egress"][1]["ports"]]


@pytest.mark.parametrize(
    "change",
    [
        {"metadata": {"name": "chat-old", "labels": {}}},
        {"data": {}},
        {"data": None},
        {"data": {pods.MANIFEST_FILE: "no JSON"}},
        {"data": {pods.MANIFEST_FILE: '{"spec": {"source": {"uri": "gs://bucket"}}}'}},
        {"data": {pods.MANIFEST_FILE: "[]"}},
    ],
    ids=["not ours", "empty", "none", "no JSON", "no source", "no object"],
)
def test_a_config_map_that_somebody_made_or_damaged_widens_no_policy(change: dict[str, Any]) -> None:
    live = live_objects(confined(), updated=1)
    (held,) = [
        o for ref, o in live_objects(confined(), pinned=manifest("s3://bucket/x")).items() if ref.kind == "ConfigMap"
    ]
    live[Ref("ConfigMap", "chat-old")] = {**held, **change}
    assert planned(confined(), observed(live)).policies == ()


def test_a_policy_that_is_switched_off_goes_while_a_roll_out_is_under_way() -> None:
    rolling = live_objects(confined(), updated=1)
    assert planned(service(), observed(rolling)).delete == (POLICY,)


@pytest.mark.parametrize("changes", [{"paused": True}, {"manifest": None}], ids=["paused", "no manifest"])
def test_a_policy_stays_while_everything_is_left_as_it_is(changes: dict[str, Any]) -> None:
    seen = observed(live_objects(confined()), manifest=changes.get("manifest", manifest()))
    assert planned(service(paused=changes.get("paused", False)), seen).is_empty


def test_somebody_elses_policy_of_that_name_is_in_the_way_only_of_ours() -> None:
    theirs = {POLICY: {"kind": "NetworkPolicy", "metadata": {"name": "chat"}, "spec": {}}}
    known = (record(target(service())),)
    seen = observed({**live_objects(service()), **theirs}, history=known)
    assert first_blocker(service(), seen, IMAGE) is None
    assert planned(service(), seen).is_empty
    blocker = first_blocker(confined(), seen, IMAGE)
    assert blocker is not None
    assert blocker.reason is Blocked.NAME_TAKEN
    assert blocker.message.startswith("NetworkPolicy chat exists and belongs to something else")


def test_an_operator_that_moves_is_let_in_from_where_it_is() -> None:
    moved = planned(confined(operator="elsewhere"), observed(live_objects(confined())))
    assert [operator_namespace(o) for o in moved.policies] == ["elsewhere"]


@pytest.mark.parametrize("peers", [(), (NAMESPACES,)], ids=["namespace", "given"])
@pytest.mark.parametrize("operator", ["sys", ""])
def test_who_only_reads_sees_from_the_policy_where_the_operator_is(operator: str, peers: tuple[Any, ...]) -> None:
    assert observed(live_objects(confined(*peers, operator=operator))).operator_namespace == operator
    assert observed(live_objects(service())).operator_namespace == ""


def test_a_peer_that_only_looks_like_the_operators_is_not_taken_for_it() -> None:
    like = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "theirs"}},
            "podSelector": {"matchLabels": {"app": "x"}}}  # fmt: skip
    assert operator_namespace(policy_of(confined(like, operator=""))) == ""
    assert operator_namespace({"kind": "NetworkPolicy", "spec": {"ingress": [{}]}}) == ""


WIDER = {
    "another peer": lambda spec: spec["ingress"][0]["from"].append({"namespaceSelector": {}}),
    "all namespaces": lambda spec: spec["ingress"][0]["from"][0].update(namespaceSelector={}),
    "all namespaces in place of pods": lambda spec: spec["ingress"][0]["from"].__setitem__(
        0, {"namespaceSelector": {}}
    ),
    "every port": lambda spec: spec["ingress"][0].pop("ports"),
    "another port": lambda spec: spec["ingress"][0]["ports"].append({"port": 22, "protocol": "TCP"}),
    "every peer": lambda spec: spec["ingress"][0].pop("from"),
    "another rule": lambda spec: spec["ingress"].append({}),
    "a way out": lambda spec: spec.update(egress=[{}]),
    "no word of egress": lambda spec: spec.update(policyTypes=["Ingress"]),
    "fewer pods": lambda spec: spec["podSelector"].update(matchLabels={"team": "x"}),
    "a narrower peer": lambda spec: spec["ingress"][0]["from"][0]["podSelector"].update(matchLabels={"a": "b"}),
}


@pytest.mark.parametrize("edit", WIDER.values(), ids=WIDER.keys())
def test_whatever_somebody_adds_to_a_policy_is_drift(edit: Any) -> None:
    wanted = policy_of(confined())
    live = copy.deepcopy(wanted)
    edit(live["spec"])
    assert not is_applied(wanted, live)


def test_a_policy_as_the_api_server_gives_it_back_is_no_drift() -> None:
    wanted = policy_of(confined())
    live = copy.deepcopy(wanted)
    assert live["spec"].pop("egress") == []
    live["metadata"] |= {"uid": "x", "resourceVersion": "1"}
    assert is_applied(wanted, live)
    assert not is_applied(wanted, None)
