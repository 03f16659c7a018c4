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

STAYS = {"karpenter.sh/do-not-disrupt": "true", "cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}
"""Annotations by which autoscalers of nodes leave a pod where it is."""

_CLAIMED = ("resourceClaimName", "resourceClaimTemplateName")
_MOST_CLAIMS = 16


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
    resource_claims: tuple[Mapping[str, str], ...]  # devices, which `resources.claims` gives the engine's container

    @classmethod
    def parse(cls, f: Fields) -> Self:
        claims = _claims(f)
        return cls(
            resources=_resources(f, {claim["name"] for claim in claims}),
            node_selector=f.mapping("nodeSelector"),
            tolerations=tuple(f.items("tolerations", most=64)),
            affinity=f.mapping("affinity"),
            topology_spread=tuple(f.mappings("topologySpreadConstraints", most=8)),
            priority_class_name=f.reference("priorityClassName", default=""),
            runtime_class_name=f.reference("runtimeClassName", default=""),
            image_pull_secrets=tuple(s.reference("name") for s in f.children("imagePullSecrets", {"name"}, 16)),
            labels=_not_ours(f, "podLabels"),
            annotations=_annotations(f),
            resource_claims=claims,
        )


def _claims(f: Fields) -> tuple[Mapping[str, str], ...]:
    """Each by a name of its own, which `resources.claims` gives."""
    claims: dict[str, Mapping[str, str]] = {}
    for claim in f.children("resourceClaims", {"name", *_CLAIMED}, most=_MOST_CLAIMS):
        name = claim.label("name")
        given = [key for key in _CLAIMED if claim.has(key)]
        if len(given) != 1:
            seen = "both" if given else "neither"
            raise SpecError(claim.where, f"got {seen} of {' and '.join(_CLAIMED)}, want exactly one of them")
        if name in claims:
            raise SpecError(claim.path("name"), f"got {name!r} for the second time, want each name once")
        claims[name] = {"name": name, given[0]: claim.reference(given[0])}
    return tuple(claims.values())


def _resources(f: Fields, claims: set[str]) -> Mapping[str, Any]:
    """As given; the devices that it names are to be among `claims`."""
    resources = f.mapping("resources")
    for used in Fields(resources, f.path("resources")).children("claims", {"name", "request"}, most=_MOST_CLAIMS):
        name = used.label("name")
        if used.has("request"):
            used.label("request")
        if name not in claims:
            wanted = f"want a name of spec.resourceClaims: {', '.join(sorted(claims)) or 'it has none'}"
            raise SpecError(used.path("name"), f"got {name!r}, {wanted}")
    return resources


def _not_ours(f: Fields, name: str) -> Mapping[str, Any]:
    """A map whose keys leave alone what pods are found by."""
    given = f.mapping(name)
    taken = [key for key in given if _OURS.fullmatch(key)]
    if taken:
        wanted = "want none of pinrail.dev/*, app.kubernetes.io/name and app.kubernetes.io/managed-by"
        raise SpecError(f.path(name), f"got {taken[0]}, {wanted}: the operator writes them")
    return given


def _annotations(f: Fields) -> Mapping[str, Any]:
    """Those that neither are ours nor make a pod less confined than its security context says."""
    name = "podAnnotations"
    given = _not_ours(f, name)
    weaker = [key for key in given if _PROFILES.fullmatch(key)]
    if weaker:
        wanted = "want none of *apparmor.security.* and *seccomp.security.*"
        raise SpecError(f.path(name), f"got {weaker[0]}, {wanted}: pods keep the runtime's default profiles")
    twice = [key for key in STAYS if key in given]
    if twice and f.child("disruption", None).flag("protectStartup", False):
        wanted = "want none while spec.disruption.protectStartup is true: it is taken off once a pod is ready"
        raise SpecError(f.path(name), f"got {twice[0]}, {wanted}")
    return given
