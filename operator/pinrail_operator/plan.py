"""What to change so that the cluster holds what a service asks for. Pure: a plan can be printed and compared."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from . import checks, pods
from .autoscale import Decision
from .checks import Blocker
from .drift import is_applied
from .manifests import objects_for, replicas
from .observed import Observed, Ref, Workload
from .types import InferenceService, ScalingMode

Object = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Plan:
    """Carried out in this order. An empty one means that nothing is to be done."""

    apply: tuple[Object, ...] = ()
    scale: Object | None = None  # the Deployment's replicas alone
    delete: tuple[Ref, ...] = ()

    @property
    def is_empty(self) -> bool:
        return not self.apply and self.scale is None and not self.delete

    def __str__(self) -> str:
        lines = [f"apply {o['kind']} {o['metadata']['name']}" for o in self.apply]
        lines += [f"scale {self.scale['metadata']['name']} to {self.scale['spec']['replicas']}"] if self.scale else []
        lines += [f"delete {ref.kind} {ref.name}" for ref in self.delete]
        return ", ".join(lines) or "nothing to do"


def plan_for(
    service: InferenceService,
    observed: Observed,
    blocker: Blocker | None,
    image: str,
    decision: Decision | None,
) -> Plan:
    """The changes, or none where the service is blocked or paused.

    Args:
        service: What is asked for.
        observed: What there is.
        blocker: The first check that failed.
        image: The engine's image.
        decision: What the scaler says; None for a fixed number of replicas, or before there is a Deployment.
    """
    if blocker is not None or service.paused or observed.manifest is None:
        return Plan()
    wanted = objects_for(service, observed.manifest, image)
    return Plan(
        apply=tuple(o for o in wanted if not is_applied(o, observed.live.get(Ref.of(o)))),
        scale=_scale(service, observed.workload, decision),
        delete=_left_over(service, observed, {Ref.of(o) for o in wanted}),
    )


def target_revision(service: InferenceService, observed: Observed, image: str) -> str:
    """The revision that the spec asks for; empty where the manifest is not known."""
    return pods.revision(service, observed.manifest, image) if observed.manifest is not None else ""


def is_rolled_out(workload: Workload | None, revision: str) -> bool:
    """Whether every pod is of that revision."""
    return workload is not None and (workload.revision == revision and workload.is_current) and _is_uniform(workload)


def _is_uniform(workload: Workload) -> bool:
    return workload.updated == workload.total and workload.updated >= min(1, workload.replicas)


def _scale(service: InferenceService, workload: Workload | None, decision: Decision | None) -> Object | None:
    count = _count(service, workload, decision)
    has = None if workload is None else workload.replicas
    return None if count is None or count == has else replicas(service, count)


def _count(service: InferenceService, workload: Workload | None, decision: Decision | None) -> int | None:
    """The number of replicas to write, or None to leave what there is."""
    if workload is None or service.scaling is None:
        return service.least_replicas
    return decision.replicas if decision is not None and service.scaling.mode is ScalingMode.ACTIVE else None


def _left_over(service: InferenceService, observed: Observed, wanted: set[Ref]) -> tuple[Ref, ...]:
    """Our ConfigMaps of older pins, once no pod of an older revision is left."""
    workload = observed.workload
    if workload is None or not is_rolled_out(workload, workload.revision):
        return ()
    return tuple(
        ref
        for ref in sorted(observed.live)
        if ref.kind == "ConfigMap"
        and ref not in wanted
        and ref.name not in workload.config_maps
        and checks.is_ours(service, observed, ref)
    )
