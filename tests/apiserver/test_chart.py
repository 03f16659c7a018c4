"""What the chart renders, by its values; golden files hold the whole of it.

PINRAIL_RENEW_GOLDEN=1 .venv/bin/python -m pytest -m apiserver tests/apiserver/test_chart.py writes them again.
"""

from typing import Any

import pytest
import yaml
from chart_render import CHART, ENGINE, EVERYTHING, check_golden, normal, objects, only, refusal, rendered

from pinrail_contract.endpoints import PORT
from pinrail_operator.network_policy import OPERATOR

pytestmark = pytest.mark.apiserver

ABSENT = {"PodMonitor", "PrometheusRule"}
"""Kinds of the Prometheus operator, which the API server here does not know."""


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("default", {"image": {"tag": "TAG"}}),
        (
            "namespaced",
            {"image": {"tag": "TAG"}, "watchNamespaces": ["team-a", "team-b"], "policies": {"enabled": True}},
        ),
        ("everything", EVERYTHING),
    ],
)
def test_the_chart_renders_the_golden_objects(helm: str, name: str, values: dict[str, Any]) -> None:
    check_golden(f"chart-{name}.yaml", normal(rendered(helm, "pinrail-system", values)))


@pytest.mark.parametrize("namespaced", [False, True], ids=["cluster", "namespaced"])
def test_the_api_server_takes_every_object_of_a_kind_that_it_knows(kube: Any, helm: str, namespaced: bool) -> None:
    watched = {"watchNamespaces": [kube.namespace]} if namespaced else {}
    values = EVERYTHING | watched | {"topologySpreadConstraints": [
        {"maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "DoNotSchedule"}
    ]}  # fmt: skip
    known = [o for o in objects(rendered(helm, kube.namespace, values)) if o["kind"] not in ABSENT]
    answer = kube("apply", "--server-side", "--force-conflicts", "--dry-run=server", "-f", "-",
                  stdin=yaml.safe_dump_all(known))  # fmt: skip
    assert len(answer.splitlines()) == len(known)


def test_nothing_that_needs_another_crd_is_rendered_by_default(helm: str) -> None:
    groups = {o["apiVersion"].partition("/")[0] for o in objects(rendered(helm, "sys", {}))}
    assert groups == {"v1", "apps", "rbac.authorization.k8s.io"}


def test_values_of_an_older_release_still_render(helm: str) -> None:
    """`helm upgrade --reuse-values` brings the older chart's values, in which younger keys are not there."""
    younger = (
        "crds",
        "topologySpreadConstraints",
        "prometheus",
        "networkPolicy",
        "podMonitor",
        "prometheusRule",
        "dashboards",
        "policies",
    )
    older = {**dict.fromkeys(younger), "engine": {"hostPathCaches": None}}
    assert objects(rendered(helm, "sys", older)) == objects(rendered(helm, "sys", {}))


def test_an_operator_of_namespaces_gets_no_cluster_wide_right(helm: str) -> None:
    text = rendered(helm, "sys", {"watchNamespaces": ["team-a", "team-b"]})
    kinds = {o["kind"] for o in objects(text)}
    assert not kinds & {"ClusterRole", "ClusterRoleBinding"}
    assert {o["metadata"]["namespace"] for o in only(text, "Role")} == {"team-a", "team-b", "sys"}


@pytest.mark.parametrize(("replicas", "spread"), [(1, False), (2, True)])
def test_only_two_operators_or_more_are_spread_and_kept_from_leaving_together(
    helm: str, replicas: int, spread: bool
) -> None:
    text = rendered(helm, "sys", {"replicas": replicas})
    pod = only(text, "Deployment")[0]["spec"]["template"]["spec"]
    assert ("topologySpreadConstraints" in pod, bool(only(text, "PodDisruptionBudget"))) == (spread, spread)


def test_all_replicas_compete_for_one_lease_that_they_may_write(helm: str) -> None:
    text = rendered(helm, "sys", {"replicas": 2})
    env = {
        v["name"]: v["value"] for v in only(text, "Deployment")[0]["spec"]["template"]["spec"]["containers"][0]["env"]
    }
    lease = next(o for o in only(text, "Role") if o["metadata"]["name"].endswith("-lease"))
    assert lease["metadata"]["namespace"] == env["PINRAIL_LEASE_NAMESPACE"]
    assert [env["PINRAIL_LEASE_NAME"]] in [rule.get("resourceNames") for rule in lease["rules"]]


def test_the_network_policy_reaches_the_port_that_engines_answer_on(helm: str) -> None:
    policy = only(rendered(helm, "sys", {"networkPolicy": {"enabled": True}}), "NetworkPolicy")[0]
    to_engines = [e for e in policy["spec"]["egress"] if "podSelector" in str(e)]
    assert [e["ports"] for e in to_engines] == [[{"port": PORT, "protocol": "TCP"}]]


def test_policies_of_services_let_in_the_pods_that_the_chart_makes(helm: str) -> None:
    pod = only(rendered(helm, "sys", {"replicas": 2}), "Deployment")[0]["spec"]["template"]
    assert pod["metadata"]["labels"].items() >= OPERATOR.items()


NAME_SERVERS = [{"port": port, "protocol": protocol} for port in (53, 5353) for protocol in ("UDP", "TCP")]


def test_the_network_policy_reaches_the_ports_behind_prometheus_service_as_well(helm: str) -> None:
    """Most plugins judge a port after a Service has translated it; the URL's own is not named twice."""
    values = {"networkPolicy": {"enabled": True, "prometheusPorts": [9090, 80]}, "prometheus": {"url": "http://p"}}
    rules = only(rendered(helm, "sys", values), "NetworkPolicy")[0]["spec"]["egress"]
    assert {"ports": [*({"port": port, "protocol": "TCP"} for port in (80, 9090)), *NAME_SERVERS]} in rules
    bare = only(rendered(helm, "sys", values | {"prometheus": {"url": ""}}), "NetworkPolicy")[0]
    assert "9090" not in str(bare)


@pytest.mark.parametrize(
    ("url", "port"),
    [
        ("http://p.monitoring:9090", 9090),
        ("http://p.monitoring/prefix", 80),
        ("https://p.monitoring", 443),
        ("https://[fd00::1]", 443),
        ("http://[fd00::1]:9091/a", 9091),
    ],
)
def test_the_network_policy_reaches_prometheus_and_name_servers_only_where_there_is_one(
    helm: str, url: str, port: int
) -> None:
    peer = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
    values = {"networkPolicy": {"enabled": True, "prometheusTo": [peer]}}
    without, policy = (
        only(rendered(helm, "sys", values | {"prometheus": {"url": address}}), "NetworkPolicy")[0]["spec"]["egress"]
        for address in ("", url)
    )
    (more,) = [e for e in policy if e not in without]
    assert more == {"to": [peer], "ports": [
        {"port": port, "protocol": "TCP"}, *NAME_SERVERS,
    ]}  # fmt: skip


def test_a_token_for_prometheus_is_a_file_of_the_operator_alone(helm: str) -> None:
    """Renewed by the kubelet as the Secret is, so no upgrade is needed when it changes; one that is missing is told
    in the services' status, and keeps no operator from starting."""
    values = {"prometheus": {"url": "https://p", "tokenSecretRef": {"name": "t", "key": "bearer"}}}
    pod = only(rendered(helm, "sys", values), "Deployment")[0]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    env = {v["name"]: v["value"] for v in container["env"]}
    (mount,) = [m for m in container["volumeMounts"] if m["name"] == "prometheus-token"]
    (volume,) = [v for v in pod["volumes"] if v["name"] == "prometheus-token"]
    assert volume["secret"] == {"secretName": "t", "optional": True, "items": [{"key": "bearer", "path": "token"}]}
    assert env["PINRAIL_PROMETHEUS_TOKEN_FILE"] == f"{mount['mountPath']}/token"
    assert "subPath" not in mount  # such a file is never renewed


WRONG: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "a key that is none": ({"replica": 2}, ("replica",)),
    "one inside": ({"podMonitor": {"enable": True}}, ("podMonitor", "enable")),
    "too many replicas": ({"replicas": 6}, ("replicas", "5")),
    "no switch": ({"policies": {"enabled": "yes"}}, ("policies/enabled", "boolean")),
    "an interval without a unit": ({"podMonitor": {"interval": "15"}}, ("podMonitor/interval",)),
    "an alert that there is not": ({"prometheusRule": {"disabled": ["PinrailSleepy"]}}, ("prometheusRule/disabled",)),
    "an address of Prometheus with a password": ({"prometheus": {"url": "http://u:p@h"}}, ("prometheus/url",)),
    "a query behind it": ({"prometheus": {"url": "http://h/?a=b"}}, ("prometheus/url",)),
    "a token by value": ({"prometheus": {"token": "secret"}}, ("prometheus", "token")),
    "an address that is no range": ({"networkPolicy": {"apiServer": {"cidrs": ["10.0.0.1"]}}}, ("cidrs",)),
    "a port that is none": ({"networkPolicy": {"prometheusPorts": [0]}}, ("networkPolicy/prometheusPorts/0",)),
    "a cache that is no path": ({"engine": {"hostPathCaches": ["cache"]}}, ("engine/hostPathCaches/0",)),
    "policies, and an image by its tag": (
        {"policies": {"enabled": True}, "engine": {"image": "registry.test/engine:1"}},
        ("engine.image: got registry.test/engine:1", "@sha256:<64 hex digits>"),
    ),
    "policies, and an image from elsewhere": (
        {"policies": {"enabled": True, "allowedRegistries": ["registry.test/pin"]}, "engine": {"image": ENGINE}},
        (f"engine.image: got {ENGINE}", "policies.allowedRegistries (registry.test/pin)"),
    ),
}


@pytest.mark.parametrize(("values", "words"), [pytest.param(*row, id=name) for name, row in WRONG.items()])
def test_wrong_values_are_refused_by_name(helm: str, values: dict[str, Any], words: tuple[str, ...]) -> None:
    said = refusal(helm, values)
    assert [word for word in words if word not in said] == [], said


def test_every_value_has_a_place_in_the_schema(helm: str) -> None:
    """And every map of ours is closed: a key that is misspelt is refused at any depth."""
    schema = yaml.safe_load((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert set(values) == set(schema["properties"]) - {"global"}
    for name, value in values.items():
        if isinstance(value, dict) and value and name != "resources":
            assert set(value) == set(schema["properties"][name]["properties"]), name
            assert schema["properties"][name]["additionalProperties"] is False, name


def test_the_rendered_crds_are_those_of_crds_and_stay(helm: str) -> None:
    assert only(rendered(helm, "sys", {}), "CustomResourceDefinition") == []
    found = only(rendered(helm, "sys", {"crds": {"install": True}}), "CustomResourceDefinition")
    wanted = [yaml.safe_load(file.read_text()) for file in sorted((CHART / "crds").glob("*.yaml"))]
    assert [(o["metadata"]["name"], o["spec"]) for o in found] == [(o["metadata"]["name"], o["spec"]) for o in wanted]
    assert {o["metadata"]["annotations"]["helm.sh/resource-policy"] for o in found} == {"keep"}
