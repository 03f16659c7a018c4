"""What to change so that the cluster holds what a service asks for. Pure: a plan can be printed and compared."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from pinrail_contract.metrics import LoadSample

from . import checks, deletion_cost, history, names, pods, startup_protection
from .autoscale import Decision
from .checks import Blocked, Blocker
from .drift import is_applied
from .errors import Refused
from .manifests import kubernetes_service, mounted_sources, newborn, objects_for, quarantined, replicas
from .network_policy import Older
from .observed import Observed, Ref, Workload
from .quarantine import CLEAR, Verdict
from .rollout import PROCEED, Action, Course, is_complete
from .scaling_policy import ScalingMode
from .types import InferenceService

Object = Mapping[str, Any]
Loads = Mapping[str, LoadSample]  # by pod

_NO_LOADS: Loads = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Plan:
    """Carried out in this order. An empty one means that nothing is to be done."""

    quarantine: tuple[Object, ...] = ()  # pods, as they are to be
    marks: tuple[tuple[str, str], ...] = ()  # pod, whether it may serve
    started: tuple[str, ...] = ()  # pods that need no protection any more
    costs: tuple[tuple[str, int], ...] = ()  # pod, what its deletion costs; a scale-in goes on without them
    policies: tuple[Object, ...] = ()  # NetworkPolicies; where one is refused, the rest goes on
    apply: tuple[Object, ...] = ()
    scale: Object | None = None  # the Deployment's replicas alone
    settle: tuple[Object, ...] = ()  # applied after that: a new Deployment, whose replicas the scaler now owns
    delete: tuple[Ref, ...] = ()

    @property
    def is_empty(self) -> bool:
        pods = self.quarantine or self.marks or self.started or self.costs
        return self.scale is None and not (pods or self.policies or self.apply or self.settle or self.delete)

    def with_step(self, step: "Plan") -> "Plan":
        """Both, of those parts that are carried out one object after the other."""
        return replace(
            self,
            apply=(*self.apply, *step.apply),
            scale=step.scale or self.scale,
            settle=(*self.settle, *step.settle),
            delete=(*self.delete, *step.delete),
        )

    def __str__(self) -> str:
        lines = [f"quarantine {o['metadata']['name']}" for o in self.quarantine]
        lines += [f"mark {pod} to serve: {mark}" for pod, mark in self.marks]
        lines += [f"let {pod}, which has started, be moved" for pod in self.started]
        lines += [f"set deletion cost of {pod} to {cost}" for pod, cost in self.costs]
        lines += [f"apply {o['kind']} {o['metadata']['name']}" for o in (*self.policies, *self.apply)]
        lines += [f"scale {self.scale['metadata']['name']} to {self.scale['spec']['replicas']}"] if self.scale else []
        lines += [f"apply {o['kind']} {o['metadata']['name']}" for o in self.settle]
        lines += [f"delete {ref.kind} {ref.name}" for ref in self.delete]
        return ", ".join(lines) or "nothing to do"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a plan."""

    done: Plan  # without what was refused, and what was to come after a refusal that ended it
    refused: Refused | None = None  # one of them: that which ended it, else the first
    is_scaled: bool = True  # whether nothing that was refused kept the replicas from being written


def plan_for(
    service: InferenceService,
    observed: Observed,
    blocker: Blocker | None,
    image: str,
    decision: Decision | None,
    course: Course = PROCEED,
    loads: Loads = _NO_LOADS,
    verdict: Verdict = CLEAR,
    target: str = "",
) -> Plan:
    """The changes; where the service is blocked, those alone that keep wrong pods from answering; paused, none.

    A Deployment that named no replicas would begin with one, so a new one is made with as many as are asked for. Only
    when the scaler owns that field is it applied as ever, with its stamp: until then, each reconcile does the rest.

    | Deployment      | apply                     | scale         | settle         |
    |-----------------|---------------------------|---------------|----------------|
    | is not there    | the others, a newborn one | always        | the Deployment |
    | bears no stamp  | the others                | always        | the Deployment |
    | bears any stamp | whatever has drifted      | if it differs | -              |

    Args:
        service: What is asked for.
        observed: What there is.
        blocker: The first check that failed.
        image: The engine's image.
        decision: What the scaler says; None for a fixed number of replicas, or before there is a Deployment.
        course: How the roll-out is helped along.
        loads: What ready pods said just now.
        verdict: Which pods must not serve; they are quarantined, marked, and left out by the Service, even where the
            service is blocked.
        target: The revision that the spec asks for, where it is known already.

    Pods that have started lose their protection even where the service is blocked.
    """
    is_ours = not service.paused and (blocker is None or blocker.reason is not Blocked.NAME_TAKEN)
    out = tuple(quarantined(service, w) for w in verdict.release) if is_ours else ()
    started = startup_protection.ended(observed) if is_ours else ()
    if blocker is not None or service.paused or observed.manifest is None:
        guard = _guard(service, observed, verdict)
        return Plan(out, verdict.marks, apply=guard, started=started) if is_ours else Plan()
    left_over = _left_over(service, observed, names.config_map(service, observed.manifest))
    sources = mounted_sources(service, {ref: o for ref, o in observed.live.items() if ref not in left_over})
    older = Older(sources=sources, variables=observed.told_to_fetch)
    wanted = objects_for(service, observed.manifest, image, course, verdict, older)
    target = target or target_revision(service, observed, image)
    is_lost = course.action is Action.ABORT and course.template is None  # it cannot be said what to go back to
    known = tuple(o for o in wanted if not (is_lost and o["kind"] == "Deployment"))
    due = tuple(o for o in known if not is_applied(o, observed.live.get(Ref.of(o))))
    workload = observed.workload
    settle = tuple(o for o in due if o["kind"] == "Deployment" and not (workload and workload.is_stamped))
    policies = tuple(o for o in due if o["kind"] == "NetworkPolicy")
    born = tuple(newborn(o, service.least_replicas) for o in settle if workload is None)
    scale = _scale(service, workload, decision)
    return Plan(
        quarantine=out,
        marks=verdict.marks,
        started=started,
        costs=_costs(observed, scale, loads),
        policies=policies,
        apply=(
            *history.due(service, observed, target, image),
            *(o for o in due if o not in (*policies, *settle)),
            *born,
        ),
        scale=scale,
        settle=settle,
        delete=(
            *left_over,
            *_no_longer_asked_for(service, observed),
            *history.left_over(service, observed, target),
        ),
    )


def _guard(service: InferenceService, observed: Observed, verdict: Verdict) -> tuple[Object, ...]:
    """The Service alone, where it selects by a mark, or is to; one that somebody deleted or owns is left to them."""
    wanted = kubernetes_service(service, verdict)
    live = observed.live.get(ref := Ref.of(wanted))
    if live is None or not checks.is_ours(service, observed, ref) or is_applied(wanted, live):
        return ()
    was_guarded = names.SERVING in live["spec"].get("selector", {})
    return (wanted,) if verdict.is_guarded or was_guarded else ()


def target_revision(service: InferenceService, observed: Observed, image: str) -> str:
    """The revision that the spec asks for; empty where the manifest is not known."""
    return pods.revision(service, observed.manifest, image) if observed.manifest is not None else ""


def is_rolled_out(workload: Workload | None, revision: str) -> bool:
    """Whether every pod is of that revision."""
    return workload is not None and is_complete(workload, revision)


def _costs(observed: Observed, scale: Object | None, loads: Loads) -> tuple[tuple[str, int], ...]:
    """Before a scale-in, and while one is under way; during a roll-out there are more pods than replicas anyway."""
    workload = observed.workload
    if workload is None:
        return ()
    count: int = scale["spec"]["replicas"] if scale is not None else workload.replicas
    is_under_way = count < workload.replicas or is_complete(workload, workload.revision)
    return deletion_cost.changes(observed, count, loads) if is_under_way else ()


def _scale(service: InferenceService, workload: Workload | None, decision: Decision | None) -> Object | None:
    count = _count(service, workload, decision)
    if workload is not None and not workload.is_stamped:
        return replicas(service, workload.replicas if count is None else count)  # the scaler takes the field over
    has = None if workload is None else workload.replicas
    return None if count is None or count == has else replicas(service, count)


def _count(service: InferenceService, workload: Workload | None, decision: Decision | None) -> int | None:
    """The number of replicas to write, or None to leave what there is."""
    if workload is None or workload.replicas == 0 or service.scaling is None:
        return service.least_replicas  # what was suspended begins anew, whatever the scaler's mode
    return decision.replicas if decision is not None and service.scaling.mode is ScalingMode.ACTIVE else None


def _no_longer_asked_for(service: InferenceService, observed: Observed) -> tuple[Ref, ...]:
    """Our NetworkPolicy, once the spec has it switched off; no pod has to change for that."""
    policy = Ref("NetworkPolicy", names.network_policy(service))
    is_there = policy in observed.live and checks.is_ours(service, observed, policy)
    return (policy,) if is_there and not service.network.enabled else ()


def _left_over(service: InferenceService, observed: Observed, wanted: str) -> tuple[Ref, ...]:
    """Our ConfigMaps of older pins, once no pod of an older revision is left, in quarantine or out of it."""
    workload = observed.workload
    if workload is None or not is_rolled_out(workload, workload.revision):
        return ()
    if any(p.revision != workload.revision for p in observed.quarantined):
        return ()
    return tuple(
        ref
        for ref in sorted(observed.live)
        if ref.kind == "ConfigMap"
        and ref.name not in (wanted, *workload.config_maps)
        and checks.is_ours(service, observed, ref)
    )
