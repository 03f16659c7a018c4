"""Every derived name, label and selector. Pure."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from pinrail_contract.pins import ModelManifest

from .types import InferenceService

SERVICE = "pinrail.dev/service"
"""Label of all that belongs to one InferenceService; its value is the service's name, and pods are selected by it."""

QUARANTINED = ".quarantine"
"""Follows the service's name in that label of a pod that must not serve; no service's name holds a dot."""

QUARANTINE = "pinrail.dev/quarantine"
"""Annotation of such a pod: what it reported, and what was wanted."""

SERVING = "pinrail.dev/serving"
"""Label of pods while the Service selects by it: whether they may serve."""

FETCH = "fetch"
"""Name of the init container that fetches."""

VERIFY = "verify"
"""Name of the init container that verifies files for an engine which does not."""

REVISION = "pinrail.dev/revision"
"""Label of a pod template: what the user asked for, hashed."""

APPLIED = "pinrail.dev/applied"
"""Annotation of our own objects: the hash of what was last applied, so that a removed field is noticed too."""

DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
"""Kubernetes' annotation of pods: of those that are ready, a ReplicaSet removes the cheapest first."""

STARTING = "pinrail.dev/starting"
"""Annotation of a pod that autoscalers of nodes are told to leave where it is, until it is ready."""

ROLLOUT = "pinrail.dev/rollout"
"""Annotation of a Deployment whose roll-out is helped along: what was begun, and for which revision."""

FIELD_MANAGER = "pinrail"
SCALER_FIELD_MANAGER = "pinrail-scaler"
"""Owns the Deployment's `spec.replicas`, and nothing else."""

QUARANTINE_FIELD_MANAGER = "pinrail-quarantine"
"""Owns what is written on pods that must not serve, and on those beside them."""


def deployment(service: InferenceService) -> str:
    return service.key.name


def kubernetes_service(service: InferenceService) -> str:
    return service.key.name


def disruption_budget(service: InferenceService) -> str:
    return service.key.name


def network_policy(service: InferenceService) -> str:
    return service.key.name


def config_map(service: InferenceService, manifest: ModelManifest) -> str:
    """By content, source included: pods of an older pin keep theirs."""
    return f"{service.key.name}-{digest_of(manifest.to_spec())}"


def record(service: InferenceService, revision: str) -> str:
    """Of the ControllerRevision."""
    return f"{service.key.name}-{revision}"


def selector(service: InferenceService) -> dict[str, str]:
    return {SERVICE: service.key.name}


def pods_selector(service: InferenceService) -> str:
    """All pods of a service, in the words of a query: those that must not serve as well."""
    return f"{SERVICE} in ({','.join(_of_all_pods(service))})"


def all_pods(service: InferenceService) -> dict[str, Any]:
    """The same pods, as an object selects them."""
    return {"matchExpressions": [{"key": SERVICE, "operator": "In", "values": list(_of_all_pods(service))}]}


def _of_all_pods(service: InferenceService) -> tuple[str, str]:
    """Values of their label."""
    return service.key.name, service.key.name + QUARANTINED


def service_of(label: str) -> str:
    """The service's name, from the value of its label."""
    return label.removesuffix(QUARANTINED)


def labels(service: InferenceService) -> dict[str, str]:
    return {
        "app.kubernetes.io/name": "pinrail-engine",
        "app.kubernetes.io/managed-by": "pinrail",
        SERVICE: service.key.name,
    }


def url(service: InferenceService) -> str:
    """Where clients inside the cluster reach the OpenAI API."""
    return f"http://{kubernetes_service(service)}.{service.key.namespace}.svc/v1"


def digest_of(value: Mapping[str, Any]) -> str:
    """Ten hex digits that name a JSON object's content, whatever the order of its keys."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:10]
