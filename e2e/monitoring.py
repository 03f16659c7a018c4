"""The chart's monitors, alerts and dashboards, as a Prometheus without its operator takes them."""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

Object = dict[str, Any]


def monitors(documents: Iterable[Object]) -> list[Object]:
    """The PodMonitors: of the operator, and of the engines."""
    return sorted((o for o in documents if o["kind"] == "PodMonitor"), key=lambda o: str(o["metadata"]["name"]))


def alerts(documents: Iterable[Object]) -> list[Object]:
    """The alerting rules."""
    (rule,) = (o for o in documents if o["kind"] == "PrometheusRule")
    return list(rule["spec"]["groups"][0]["rules"])


def panels(documents: Iterable[Object]) -> Iterator[tuple[str, str]]:
    """Title and expression of each target, with everything that Grafana fills in: a minute's rates of all pods."""
    for config_map in (o for o in documents if o["kind"] == "ConfigMap"):
        for page in config_map["data"].values():
            document = json.loads(page)
            names = [variable["name"] for variable in document["templating"]["list"]]
            for panel in document["panels"]:
                yield from ((panel["title"], _filled(target["expr"], names)) for target in panel["targets"])


def _filled(expression: str, variables: Iterable[str]) -> str:
    expression = expression.replace("$__rate_interval", "1m")
    for name in variables:
        expression = expression.replace(f'"${name}"', '".+"')
    return expression


def scrape_config(monitor: Object, discovery: Object) -> Object:
    """What the Prometheus operator makes of one of our PodMonitors, as far as ours go.

    Args:
        monitor: The PodMonitor, with one endpoint.
        discovery: How pods are found, such as {"static_configs": […]}, with the labels `__meta_kubernetes_…`.
    """
    (endpoint,), spec = monitor["spec"]["podMetricsEndpoints"], monitor["spec"]
    known = {"port", "path", "interval", "relabelings"}
    assert endpoint.keys() <= known
    assert spec.keys() <= {"podMetricsEndpoints", "selector", "namespaceSelector"}
    chosen = spec.get("namespaceSelector", {"matchNames": [monitor["metadata"]["namespace"]]})
    keep = [_keep(f"pod_label_{_label(k)}", v) for k, v in spec["selector"]["matchLabels"].items()]
    keep += [_keep("namespace", "|".join(chosen["matchNames"]))] if "matchNames" in chosen else []
    return {
        "job_name": f"podMonitor/{monitor['metadata']['namespace']}/{monitor['metadata']['name']}",
        "metrics_path": endpoint["path"],
        "relabel_configs": [
            *keep,
            _keep("pod_container_port_name", endpoint["port"]),
            _keep("pod_phase", "Pending|Running|Unknown"),
            {"source_labels": ["__meta_kubernetes_namespace"], "target_label": "namespace"},
            {"source_labels": ["__meta_kubernetes_pod_container_name"], "target_label": "container"},
            {"source_labels": ["__meta_kubernetes_pod_name"], "target_label": "pod"},
            *({_RENAMED.get(k, k): v for k, v in step.items()} for step in endpoint.get("relabelings", [])),
        ],
        **discovery,
    }


def meta_labels(namespace: str, pod: str, port_name: str, labels: Mapping[str, str]) -> dict[str, str]:
    """What discovery says of a pod that runs: for targets that are no pods and stand for some."""
    found = {"namespace": namespace, "pod_name": pod, "pod_container_port_name": port_name, "pod_phase": "Running"}
    found |= {f"pod_label_{_label(name)}": value for name, value in labels.items()}
    return {f"__meta_kubernetes_{name}": value for name, value in found.items()}


def discovered(pods: Iterable[Object]) -> Object:
    """Targets as Kubernetes' discovery makes them of pods, one for each port; Debian's Prometheus comes without it."""
    found = []
    for pod in pods:
        metadata, status = pod["metadata"], pod["status"]
        for container in pod["spec"]["containers"]:
            for port in container.get("ports", []) if status.get("podIP") else []:
                labels = meta_labels(
                    metadata["namespace"], metadata["name"], port.get("name", ""), metadata.get("labels", {})
                )
                labels |= {
                    "__meta_kubernetes_pod_container_name": container["name"],
                    "__meta_kubernetes_pod_phase": status["phase"],
                }
                found.append({"targets": [f"{status['podIP']}:{port['containerPort']}"], "labels": labels})
    return {"static_configs": found}


_RENAMED = {"sourceLabels": "source_labels", "targetLabel": "target_label"}


def _keep(what: str, regex: str) -> Object:
    return {"source_labels": [f"__meta_kubernetes_{what}"], "regex": regex, "action": "keep"}


def _label(name: str) -> str:
    """A Kubernetes label's name as Prometheus writes it."""
    return "".join(c if c.isalnum() else "_" for c in name)
