"""Alerts and dashboards read what engine and operator export, by names and labels that are really on their pages."""

import re
from typing import Any

import pytest
import yaml
from chart_render import CHART, MONITORED, monitored, only, rendered
from engine_figures import Figures
from monitoring import alerts, panels
from operator_builders import load, scaled
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from promql import Selector, problems, selectors

from pinrail_operator.autoscale import Reason, Report, decide
from pinrail_operator.telemetry import Telemetry
from pinrail_operator.types import ServiceKey

pytestmark = pytest.mark.apiserver

BY_TARGET = frozenset({"namespace", "pod", "job"})
"""Labels that Prometheus gives to everything that a PodMonitor finds."""

BY_ENGINE = BY_TARGET | {"inference_service", "revision"}
"""And those that ours of the engines adds."""

KEY = ServiceKey("team", "chat")
CONDITION = {"type": "Ready", "status": "True", "reason": "Serving", "lastTransitionTime": "2026-01-02T03:04:05Z"}


class IdleQueue:
    def waiting(self) -> tuple[float, ...]:
        return ()


def operator_page() -> str:
    """After one of everything that is counted."""
    telemetry, policy = Telemetry(lambda: True, IdleQueue()), scaled().scaling
    decision = decide(policy, [Report(load())], current=1, starting=0, history=(), now=0.0)
    telemetry.told(KEY, {"conditions": [CONDITION]}, decision)
    telemetry.requested("PATCH", "/apis/apps/v1/namespaces/team/deployments/chat", 200)
    return generate_latest(telemetry.registry).decode()


def exported(*pages: str) -> dict[str, frozenset[str]]:
    """Every series of the pages, by name, with its labels."""
    known: dict[str, frozenset[str]] = {}
    for page in pages:
        for family in text_string_to_metric_families(page):
            for sample in family.samples:
                known[sample.name] = known.get(sample.name, frozenset()) | frozenset(sample.labels)
    return known


ENGINE, OPERATOR = exported(Figures().page().decode()), exported(operator_page())


def test_every_alert_reads_what_is_exported(helm: str) -> None:
    assert [(rule["alert"], found) for rule in alerts(monitored(helm)) if (found := wrong(rule["expr"]))] == []


def test_every_panel_reads_what_is_exported(helm: str) -> None:
    targets = list(panels(monitored(helm)))
    assert len(targets) > 30
    assert [(title, found) for title, expression in targets if (found := wrong(expression))] == []


def wrong(expression: str) -> list[str]:
    """What an expression reads that is not there, or without saying whose it is."""
    whose = [
        f"{s.metric} may be somebody else's"
        for s in selectors(expression)
        if not {m.label for m in s.matchers} & ({"pod"} if s.metric in OPERATOR else {"inference_service"})
    ]
    known = {
        name: labels | (BY_TARGET if name in OPERATOR else BY_ENGINE) for name, labels in (ENGINE | OPERATOR).items()
    }
    return problems(expression, known, frozenset()) + whose


def test_alerts_wait_for_values_that_the_operator_gives(helm: str) -> None:
    read = [s for rule in alerts(monitored(helm)) for s in selectors(rule["expr"])]
    matchers = {(m.label, value) for s in read for m in s.matchers for value in m.value.split("|")}
    reasons = {value for label, value in matchers if label == "reason"}
    assert reasons == {Reason.NO_METRICS, Reason.METRICS_INCOMPLETE}
    outcomes = {s.labels["outcome"] for f in text_string_to_metric_families(operator_page()) for s in f.samples
                if s.name == "pinrail_operator_reconciles_total"}  # fmt: skip
    assert {value for label, value in matchers if label == "outcome"} <= outcomes
    assert {value for label, value in matchers if label == "condition"} <= {
        "Ready", "Stalled", "ModelVerified", "ScalingActive",
    }  # fmt: skip


def test_every_alert_says_what_to_do_next(helm: str) -> None:
    for rule in alerts(monitored(helm)):
        assert set(rule["annotations"]) == {"summary", "next_step"}, rule["alert"]
        assert len(rule["annotations"]["next_step"]) > 60, rule["alert"]
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert "<" not in rule["expr"].replace("< 1", ""), "a placeholder is left"


def test_next_steps_name_fields_and_values_that_there_are(helm: str) -> None:
    crd = yaml.safe_load((CHART / "crds" / "inferenceservices.yaml").read_text())
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    steps = " ".join(rule["annotations"]["next_step"] for rule in alerts(monitored(helm)))
    fields = re.findall(r"\b(?:spec|status)(?:\.[a-zA-Z]+)+", steps)
    assert len(fields) >= 5
    assert [field for field in fields if not has_field(schema, field)] == []
    assert "concurrency" in yaml.safe_load((CHART / "values.yaml").read_text())


def has_field(schema: dict[str, Any], path: str) -> bool:
    for name in path.split("."):
        schema = schema.get("properties", {}).get(name, {})
    return bool(schema)


def test_an_alert_is_left_out_by_its_name_and_the_schema_knows_all_of_them(helm: str) -> None:
    names = [rule["alert"] for rule in alerts(monitored(helm))]
    schema = yaml.safe_load((CHART / "values.schema.json").read_text())["properties"]["prometheusRule"]
    assert sorted(schema["properties"]["disabled"]["items"]["enum"]) == sorted(names)
    fewer = MONITORED | {"prometheusRule": {"enabled": True, "disabled": [names[0]]}}
    left = only(rendered(helm, "sys", fewer), "PrometheusRule")[0]["spec"]["groups"][0]["rules"]
    assert [rule["alert"] for rule in left] == names[1:]


def test_monitors_find_the_ports_that_pods_name(helm: str) -> None:
    text = rendered(helm, "sys", MONITORED)
    operator, engines = only(text, "PodMonitor")
    ports = only(text, "Deployment")[0]["spec"]["template"]["spec"]["containers"][0]["ports"]
    assert operator["spec"]["podMetricsEndpoints"][0]["port"] in [p["name"] for p in ports]
    assert engines["spec"]["namespaceSelector"] == {"any": True}
    golden = CHART.parents[1] / "tests" / "operator" / "golden" / "volume.yaml"
    made = next(o for o in yaml.safe_load_all(golden.read_text()) if o["kind"] == "Deployment")["spec"]["template"]
    assert engines["spec"]["selector"]["matchLabels"].items() <= made["metadata"]["labels"].items()
    assert engines["spec"]["podMetricsEndpoints"][0]["port"] in [
        p["name"] for p in made["spec"]["containers"][0]["ports"]
    ]


@pytest.mark.parametrize(
    ("expression", "read"),
    [
        ('sum by (le) (rate(x_bucket{a="1",b!~"}"}[5m]))', [("x_bucket", "a b", "rate", "le")]),
        ("(sum(x) or vector(0)) < 1", [("x", "", "", "")]),
        ('max by (a, b) (ns:y{c=~"2"}) > 0 and y', [("ns:y", "c", "", "a b"), ("y", "", "", "a b")]),
        ('deriv(z{}[10m]) / 1e3 unless increase(z_total[1h]) > 30', [("z", "", "deriv", ""),
                                                                     ("z_total", "", "increase", "")]),
    ],
)  # fmt: skip
def test_what_an_expression_reads(expression: str, read: list[tuple[str, str, str, str]]) -> None:
    def told(s: Selector) -> tuple[str, str, str, str]:
        return s.metric, " ".join(m.label for m in s.matchers), s.function, " ".join(sorted(s.grouped))

    assert [told(s) for s in selectors(expression)] == read


@pytest.mark.parametrize(
    ("expression", "problem"),
    [
        ("vllm:num_requests_asleep", "vllm:num_requests_asleep is exported by nothing"),
        ("vllm:prompt_tokens", "vllm:prompt_tokens is exported by nothing"),
        ('vllm:num_requests_running{reason="x"}', "vllm:num_requests_running has no label reason"),
        ("sum by (shard) (vllm:num_requests_running)", "vllm:num_requests_running has no label shard"),
        ("vllm:prompt_tokens_total", "vllm:prompt_tokens_total: a counter is read without a range"),
        ("rate(vllm:num_requests_running[5m])", "vllm:num_requests_running: rate wants a counter"),
    ],
)
def test_what_nothing_exports_is_found(expression: str, problem: str) -> None:
    assert problems(expression, ENGINE, BY_ENGINE) == [problem]
