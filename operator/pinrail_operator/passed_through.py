"""What a service passes through to its pods in Kubernetes' own form, parsed once at the edge. Pure.

The schema bounds each field; what a field means is the API server's to say, and its refusal reaches the status.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from .errors import SpecError
from .fields import Fields

_PROFILES = re.compile(r".*(apparmor|seccomp)\.security\..*")  # annotations that choose how a container is confined
_OURS = re.compile(r"pinrail\.dev/.*|app\.kubernetes\.io/(name|managed-by)")  # keys that the operator writes itself


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSettings:
    """What is passed through as it stands."""

    resources: Mapping[str, Any]
    node_selector: Mapping[str, Any]
    tolerations: tuple[Any, ...]
    affinity: Mapping[str, Any]
    topology_spread: tuple[Mapping[str, Any], ...]
    priority_class_name: str
    runtime_class_name: str
    image_pull_secrets: tuple[str, ...]
    labels: Mapping[str, Any]  # beside ours
    annotations: Mapping[str, Any]

    @classmethod
    def parse(cls, f: Fields) -> Self:
        return cls(
            resources=f.mapping("resources"),
            node_selector=f.mapping("nodeSelector"),
            tolerations=tuple(f.items("tolerations", most=64)),
            affinity=f.mapping("affinity"),
            topology_spread=tuple(f.mappings("topologySpreadConstraints", most=8)),
            priority_class_name=f.reference("priorityClassName", default=""),
            runtime_class_name=f.reference("runtimeClassName", default=""),
            image_pull_secrets=tuple(s.reference("name") for s in f.children("imagePullSecrets", {"name"}, 16)),
            labels=_not_ours(f, "podLabels"),
            annotations=_harmless(f, "podAnnotations"),
        )


def _not_ours(f: Fields, name: str) -> Mapping[str, Any]:
    """A map whose keys leave alone what pods are found by."""
    given = f.mapping(name)
    taken = [key for key in given if _OURS.fullmatch(key)]
    if taken:
        wanted = "want none of pinrail.dev/*, app.kubernetes.io/name and app.kubernetes.io/managed-by"
        raise SpecError(f.path(name), f"got {taken[0]}, {wanted}: the operator writes them")
    return given


def _harmless(f: Fields, name: str) -> Mapping[str, Any]:
    """Annotations that neither are ours nor make a pod less confined than its security context says."""
    given = _not_ours(f, name)
    weaker = [key for key in given if _PROFILES.fullmatch(key)]
    if weaker:
        wanted = "want none of *apparmor.security.* and *seccomp.security.*"
        raise SpecError(f.path(name), f"got {weaker[0]}, {wanted}: pods keep the runtime's default profiles")
    return given
