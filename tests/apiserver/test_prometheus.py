"""The chart's alerts and dashboards, judged by a real Prometheus."""

import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from alert_cases import CASES, Case
from apiserver_documents import pin, service
from chart_render import monitored
from engine_figures import Figures
from monitoring import alerts, meta_labels, monitors, panels, scrape_config
from operator_process import until
from parts import prometheus_program
from prometheus_server import Prometheus, prometheus

pytestmark = pytest.mark.apiserver

ENGINE_LABELS = {
    "app.kubernetes.io/name": "pinrail-engine",
    "pinrail.dev/service": "chat",
    "pinrail.dev/revision": "0123456789",
}
OPERATOR_LABELS = {"app.kubernetes.io/name": "pinrail-operator", "app.kubernetes.io/instance": "p"}


def promtool(*words: str) -> str:
    """What it says; the test fails where promtool does."""
    done = subprocess.run([str(prometheus_program("promtool")), *words], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def rules(helm: str, tmp_path: Path) -> Path:
    """The chart's rules as a file of Prometheus."""
    file = tmp_path / "rules.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "pinrail", "rules": alerts(monitored(helm))}]}))
    return file


def test_prometheus_takes_every_rule(rules: Path) -> None:
    assert f"{len(CASES)} rules found" in promtool("check", "rules", "--lint-fatal", str(rules))


def test_every_alert_is_seen_to_fire_and_to_be_quiet(helm: str) -> None:
    assert [rule["alert"] for rule in alerts(monitored(helm))] == list(CASES)


@pytest.mark.parametrize(("name", "case"), CASES.items(), ids=CASES)
def test_an_alert_fires_after_its_time_and_a_neighbour_never(
    helm: str, rules: Path, tmp_path: Path, name: str, case: Case
) -> None:
    rule = next(r for r in alerts(monitored(helm)) if r["alert"] == name)
    told = {
        "exp_labels": {"severity": rule["labels"]["severity"], **case.labels},
        "exp_annotations": {"summary": case.summary, "next_step": rule["annotations"]["next_step"]},
    }
    expected = {case.waits: [], case.at: [told]}
    tests = [_rule_test(name, case.fires, expected), _rule_test(name, case.quiet, {at: [] for at in expected})]
    file = tmp_path / "tests.yml"
    file.write_text(yaml.safe_dump({"rule_files": [str(rules)], "evaluation_interval": "1m", "tests": tests}))
    promtool("test", "rules", str(file))


def test_no_series_at_all_means_that_no_operator_leads(rules: Path, tmp_path: Path, helm: str) -> None:
    """An operator that is not scraped, or is not there, must not look like one that is well."""
    only_one = [_rule_test(name, {}, {"20m": []}) for name in CASES if name != "PinrailNoOperatorLeads"]
    rule = next(r for r in alerts(monitored(helm)) if r["alert"] == "PinrailNoOperatorLeads")
    told = {"exp_labels": rule["labels"], "exp_annotations": rule["annotations"]}
    tests = [*only_one, _rule_test("PinrailNoOperatorLeads", {}, {"20m": [told]})]
    file = tmp_path / "tests.yml"
    file.write_text(yaml.safe_dump({"rule_files": [str(rules)], "evaluation_interval": "1m", "tests": tests}))
    promtool("test", "rules", str(file))


def _rule_test(name: str, series: dict[str, str], expected: dict[str, list[Any]]) -> dict[str, Any]:
    """One of promtool's: by time, the alerts of that name that fire."""
    return {
        "interval": "1m",
        "input_series": [{"series": s, "values": v} for s, v in series.items()],
        "alert_rule_test": [{"eval_time": at, "alertname": name, "exp_alerts": e} for at, e in expected.items()],
    }


@pytest.fixture
def engine() -> Iterator[int]:
    """The port of an engine's page, whose figures move each time that it is asked for."""
    figures = Figures()

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            page = figures.moved()
            self.send_response(200)
            self.end_headers()
            self.wfile.write(page)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Page)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield server.server_address[1]
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def watching(helm: str, kube: Any, start: Any, engine: int, tmp_path: Path) -> Iterator[Prometheus]:
    """Prometheus over a real operator, with one service that scales and one that waits for a person."""
    operator_monitor, engine_monitor = monitors(monitored(helm))
    kube.apply(pin(), service(replicas=None, scaling={"maxReplicas": 2}))
    wrong = {**service(model={**service()["spec"]["model"], "digest": "sha256:" + "0" * 64})}
    kube.apply({**wrong, "metadata": {"name": "wrong"}})
    operator = start(PINRAIL_CONCURRENCY="1")
    until(operator.leads, "leading")
    at_operator = meta_labels("sys", "p-operator-0", "health", OPERATOR_LABELS)
    at_engine = meta_labels("team", "chat-0", "http", ENGINE_LABELS)
    quarantined = meta_labels("team", "chat-1", "http", {**ENGINE_LABELS, "pinrail.dev/service": "chat.quarantine"})
    strange = meta_labels("team", "shop-0", "http", {**ENGINE_LABELS, "app.kubernetes.io/name": "shop"})
    found = [(operator.port, at_operator), *((engine, labels) for labels in (at_engine, quarantined, strange))]
    discovery = {"static_configs": [{"targets": [f"127.0.0.1:{port}"], "labels": labels} for port, labels in found]}
    scrapes = [scrape_config(monitor, discovery) for monitor in (operator_monitor, engine_monitor)]
    groups = {"groups": [{"name": "pinrail", "rules": alerts(monitored(helm))}]}
    with prometheus(tmp_path / "prometheus", scrapes, groups) as server:
        until(lambda: len(server.vector("count_over_time(up[1m]) > 3")) == 2, "four scrapes of each target", 40)
        yield server


def test_prometheus_has_an_answer_to_every_panel_and_alert(helm: str, watching: Prometheus) -> None:
    """Names, labels and functions are right where real pages give data to each; latencies are then numbers."""
    assert {t["labels"]["pod"]: t["health"] for t in watching.targets()} == {"p-operator-0": "up", "chat-0": "up"}
    seen = {(title, e): watching.vector(e) for title, e in panels(monitored(helm))}
    assert len(seen) > 30
    assert [panel for panel, found in seen.items() if not found] == []
    latencies = {e: [float(r["value"][1]) for r in found] for (_, e), found in seen.items() if "quantile" in e}
    assert [e for e, values in latencies.items() if not any(0 < v < 100 for v in values)] == []
    (labels,) = [r["metric"] for r in watching.vector('pinrail_model_manifest_info{inference_service!=""}')]
    assert (labels["namespace"], labels["pod"]) == ("team", "chat-0")
    assert (labels["inference_service"], labels["revision"]) == ("chat", "0123456789")
    until(lambda: all(rule["health"] == "ok" for rule in watching.rules()), "every rule's evaluation")
    states = {rule["name"]: rule["state"] for rule in watching.rules()}
    assert states.keys() == CASES.keys()
    assert [name for name, state in states.items() if state != "inactive"] == [
        "PinrailServiceStalled", "PinrailModelMismatched", "PinrailScalingHeld",
    ]  # fmt: skip
