"""The chart as Helm renders it, and golden files of that."""

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

CHART = Path(__file__).parents[2] / "charts" / "pinrail"
GOLDEN = Path(__file__).parent / "golden"
RENEW = "PINRAIL_RENEW_GOLDEN"
DIGEST = "sha256:" + "a" * 64
ENGINE = f"registry.test/pinrail/engine@{DIGEST}"

MONITORED = {
    "podMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
    "prometheusRule": {"enabled": True, "labels": {"release": "prometheus"}},
    "dashboards": {"enabled": True},
}
EVERYTHING = {
    **MONITORED,
    "image": {"digest": DIGEST},
    "engine": {"image": ENGINE, "hostPathCaches": ["/var/cache/pinrail", "/mnt/models"]},
    "crds": {"install": True},
    "replicas": 2,
    "prometheus": {"url": "http://prometheus.monitoring:9090", "tokenSecretRef": {"name": "prometheus-token"}},
    "networkPolicy": {
        "enabled": True,
        "apiServer": {"cidrs": ["10.0.0.1/32"]},
        "prometheusPorts": [9090, 9091],
        "metricsFrom": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}],
    },
    "policies": {"enabled": True, "allowedRegistries": ["registry.test/pinrail"]},
}

VERSIONS = ("helm.sh/chart", "app.kubernetes.io/version")
"""Labels that each release changes."""

Object = dict[str, Any]


def rendered(helm: str, namespace: str, values: Mapping[str, Any], *words: str) -> str:
    """Release `p`, as YAML."""
    command = [helm, "template", "p", str(CHART), "-n", namespace, "-f", "-", *words]
    done = subprocess.run(command, input=yaml.safe_dump(dict(values)), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def refusal(helm: str, values: Mapping[str, Any]) -> str:
    """What Helm says to values that it must not take."""
    command = [helm, "template", "p", str(CHART), "-f", "-"]
    done = subprocess.run(command, input=yaml.safe_dump(dict(values)), capture_output=True, text=True, timeout=60)
    assert done.returncode != 0, "was taken"
    return done.stderr


def objects(text: str) -> list[Object]:
    """Every document, by kind and name."""
    found = [document for document in yaml.safe_load_all(text) if document]
    return sorted(found, key=lambda o: (o["kind"], o["metadata"].get("namespace", ""), o["metadata"]["name"]))


def monitored(helm: str) -> list[Object]:
    """Release `p` in the namespace `sys`, with all that a Prometheus and a Grafana take."""
    return objects(rendered(helm, "sys", MONITORED))


def only(text: str, kind: str) -> list[Object]:
    return [o for o in objects(text) if o["kind"] == kind]


def normal(text: str) -> str:
    """What a golden file holds: CRDs by name alone, dashboards by their panels, labels of versions left out."""
    return yaml.safe_dump_all([_shown(o) for o in objects(text)], width=120)


def _shown(o: Object) -> Object:
    o = _without_versions(o)
    if o["kind"] == "CustomResourceDefinition":
        return {**o, "spec": "as in crds/"}
    if o["kind"] == "ConfigMap":
        return {**o, "data": {name: _panels(json.loads(page)) for name, page in o["data"].items()}}
    return o


def _without_versions(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_versions(child) for key, child in value.items() if key not in VERSIONS}
    return [_without_versions(child) for child in value] if isinstance(value, list) else value


def _panels(page: Object) -> Object:
    return {panel["title"]: [target["expr"] for target in panel["targets"]] for panel in page["panels"]}


def check_golden(name: str, text: str) -> None:
    """PINRAIL_RENEW_GOLDEN=1 writes the file instead."""
    file = GOLDEN / name
    if os.environ.get(RENEW):
        file.parent.mkdir(exist_ok=True)
        file.write_text(text, encoding="utf-8")
    assert text == file.read_text(encoding="utf-8"), f"tests/apiserver/golden/{name}: {RENEW}=1 writes it again"
