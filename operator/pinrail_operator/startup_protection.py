"""Pods that load a model are not to be moved meanwhile: `spec.disruption.protectStartup`. Pure.

A pod is born with annotations by which autoscalers of nodes leave it where it is, and loses them once it is ready. An
operator that is away at that moment leaves it protected, which is safe: it goes on serving, and only its node cannot be
given up until the operator is back. A pod of ours is known by a mark of ours beside them: annotations of the same names
that are not ours are never touched.

Source: https://karpenter.sh/docs/concepts/disruption/#pod-level-controls; the FAQ of kubernetes/autoscaler's
cluster-autoscaler, "What types of pods can prevent CA from removing a node?".
"""

from . import names
from .observed import Observed
from .passed_through import STAYS
from .types import InferenceService

WRITTEN = (*STAYS, names.STARTING)
"""What is on a pod that is protected."""


def annotations(service: InferenceService) -> dict[str, str]:
    """What its pods are born with."""
    return {**STAYS, names.STARTING: "true"} if service.protects_startup else {}


def ended(observed: Observed) -> tuple[str, ...]:
    """The pods that have started and still are protected; one that must not serve has started as well."""
    return tuple(p.name for p in (*observed.pods, *observed.quarantined) if p.is_protected and p.is_ready)
