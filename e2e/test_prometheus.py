"""A real Prometheus over the cluster, as the chart's PodMonitors have it: every panel has data, and no alert fires."""

import json
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml
from monitoring import alerts, discovered, monitors, panels, scrape_config
from prometheus_server import Prometheus, prometheus
from world import ROOT, Service, kubectl, wait_for

EXCUSED = {
    "Services that wait for a person": "none does",
    "Longest time without being ready": "each is ready",
}
"""Panels that are empty while all is well, and why."""

QUESTIONS = 3
SYSTEM = "pinrail-system"


@pytest.fixture(scope="module")
def monitored() -> list[dict[str, Any]]:
    """What the chart renders for a Prometheus and a Grafana."""
    switches = [f"--set={name}.enabled=true" for name in ("podMonitor", "prometheusRule", "dashboards")]
    command = ["helm", "template", "pinrail", str(ROOT / "charts" / "pinrail"), "--namespace", SYSTEM, *switches]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [document for document in yaml.safe_load_all(done.stdout) if document]


@pytest.fixture(scope="module")
def service(make_service: Callable[..., Service]) -> Service:
    """One that scales, so that there are decisions."""
    service = make_service("measured", scaling={"minReplicas": 1, "maxReplicas": 1})
    service.wait_until("Ready", "True")
    return service


@pytest.fixture(scope="module")
def watching(
    service: Service, monitored: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Prometheus]:
    """After some questions that it saw from the first to the last."""
    pods = json.loads(kubectl("get", "pods", "--all-namespaces", "-o", "json"))["items"]
    ours = [p for p in pods if p["metadata"]["namespace"] in (SYSTEM, service.namespace)]
    running = [p for p in ours if p["status"]["phase"] == "Running"]
    scrapes = [scrape_config(monitor, discovered(running)) for monitor in monitors(monitored)]
    rules = {"groups": [{"name": "pinrail", "rules": alerts(monitored)}]}
    with prometheus(tmp_path_factory.mktemp("prometheus"), scrapes, rules) as server:
        _scraped(server, 2)
        for _ in range(QUESTIONS):
            assert "Paris" in service.ask("What is the capital of France?")
        _scraped(server, 4)
        yield server


def _scraped(server: Prometheus, times: int) -> None:
    """The operator and one engine have been scraped so many times more."""

    def scrapes() -> dict[str, float]:
        return {r["metric"]["pod"]: float(r["value"][1]) for r in server.vector("sum_over_time(up[10m])")}

    before = scrapes()

    def enough() -> bool:
        now = scrapes()
        return len(now) == 2 and all(count >= before.get(pod, 0) + times for pod, count in now.items())

    wait_for(f"{times} scrapes", enough, timeout=60.0, show=lambda: str(server.targets()))


def test_the_monitors_find_the_operator_and_the_engine(watching: Prometheus, service: Service) -> None:
    found = {t["labels"]["pod"]: (t["labels"]["namespace"], t["health"]) for t in watching.targets()}
    (engine,) = service.pods()
    assert found.pop(engine.metadata.name) == (service.namespace, "up")
    ((operator, where),) = found.items()
    assert operator.startswith("pinrail-operator-")
    assert where == (SYSTEM, "up")


def test_engine_series_say_whose_they_are(watching: Prometheus, service: Service) -> None:
    (engine,) = service.pods()
    (found,) = watching.vector(f'vllm:num_requests_running{{inference_service="{service.name}"}}')
    assert {name: found["metric"][name] for name in ("namespace", "pod", "inference_service", "revision")} == {
        "namespace": service.namespace,
        "pod": engine.metadata.name,
        "inference_service": service.name,
        "revision": engine.metadata.labels["pinrail.dev/revision"],
    }


def test_every_panel_has_data(watching: Prometheus, monitored: list[dict[str, Any]]) -> None:
    seen = [(title, expression, watching.vector(expression)) for title, expression in panels(monitored)]
    assert len(seen) > 30
    assert [(title, e) for title, e, found in seen if not found and title not in EXCUSED] == []
    (served,) = watching.vector('sum(vllm:request_success_total{inference_service!=""})')
    assert float(served["value"][1]) >= QUESTIONS


def test_no_alert_fires_and_each_can_be_evaluated(watching: Prometheus, monitored: list[dict[str, Any]]) -> None:
    wait_for("every rule's evaluation", lambda: all(rule["health"] == "ok" for rule in watching.rules()), timeout=30.0)
    rules = watching.rules()
    assert len(rules) == len(alerts(monitored))
    assert [(rule["name"], rule["alerts"]) for rule in rules if rule["state"] == "firing"] == []
