"""What to do about a roll-out whose new pod finds no node while an old one holds the place. Pure.

What was begun is marked on the Deployment itself, so any operator that looks at it goes on where the last one was.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Self

from .observed import Observed, Pod, Workload
from .types import InferenceService, OnUnschedulable

GRACE = timedelta(seconds=30)
"""How long a new pod may be without a node before something is done."""


class Action(StrEnum):
    PROCEED = "Proceed"  # the roll-out goes as the spec says
    REPLACE = "Replace"  # one old pod goes before its successor has a node
    ABORT = "Abort"  # back to the previous revision


class Reason(StrEnum):
    """The reason of the condition RolloutComplete; empty where the pods themselves say why it is not complete."""

    NONE = ""
    WAITING = "Unschedulable"
    REPLACING = "Replacing"
    ABORTED = "RolloutAborted"


@dataclass(frozen=True, slots=True)
class Mark:
    """What the Deployment says was begun, for which target."""

    action: Action
    target: str  # the revision whose roll-out it is
    back_to: str = ""  # the revision that an aborted one went back to

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """The mark of an annotation; None where it is no mark of ours."""
        action, _, rest = text.partition(" ")
        target, _, back_to = rest.partition(" ")
        return cls(Action(action), target, back_to) if action in (Action.REPLACE, Action.ABORT) and target else None

    def __str__(self) -> str:
        return " ".join(filter(None, (self.action, self.target, self.back_to)))


@dataclass(frozen=True, slots=True)
class Course:
    """What the Deployment is to be while a roll-out is helped along."""

    action: Action = Action.PROCEED
    reason: Reason = Reason.NONE
    message: str = ""
    mark: Mark | None = None
    template: Mapping[str, Any] | None = field(default=None, repr=False)  # pods of `mark.back_to`; None: not known


PROCEED = Course()


def choose(service: InferenceService, observed: Observed, target: str, now: datetime) -> Course:
    """The course of this moment; it depends on nothing but what is given, so it may be asked at any time.

    "Stuck" is a pod of the target revision that the scheduler has had no node for during `GRACE`, while pods of an
    older revision are there and none of the service's pods is ending: one that ends makes room by itself.

    | onUnschedulable | roll-out   | mark                    | besides                     | action  | reason         |
    |-----------------|------------|-------------------------|-----------------------------|---------|----------------|
    | any             | complete   | any                     | -                           | Proceed |                |
    | Abort           | incomplete | Abort, of this target   | -                           | Abort   | RolloutAborted |
    | Replace         | incomplete | Replace, of this target | one pod may be missing      | Replace | Replacing      |
    | any             | not stuck  | none, or another        | -                           | Proceed |                |
    | Wait            | stuck      | none, or another        | -                           | Proceed | Unschedulable  |
    | Replace         | stuck      | any                     | no pod may be missing       | Proceed | Unschedulable  |
    | Replace         | stuck      | none, or another        | one pod may be missing      | Replace | Replacing      |
    | Abort           | stuck      | none, or another        | no ReplicaSet to go back to | Proceed | Unschedulable  |
    | Abort           | stuck      | none, or another        | there is one                | Abort   | RolloutAborted |

    One pod may be missing where `spec.disruption.minAvailable` is left all the same, or where there is only one; none
    may while a pod of the target is quarantined.

    Args:
        service: What is asked for.
        observed: What there is.
        target: The revision that the spec asks for; empty where it is not known.
        now: For the grace time; on the clock of the pods' conditions, by and large.
    """
    workload, policy = observed.workload, service.rollout.on_unschedulable
    if workload is None or not target or is_complete(workload, target):
        return PROCEED
    mark = Mark.parse(workload.mark)
    begun = mark.action if mark is not None and mark.target == target and str(mark.action) == str(policy) else None
    if mark is not None and begun is Action.ABORT:
        return _aborted(mark, observed)
    is_wrong = any(p.revision == target for p in observed.quarantined)  # such pods hold places, and do not serve
    can_replace = policy is OnUnschedulable.REPLACE and _may_miss_one(service, workload) and not is_wrong
    if begun is Action.REPLACE and can_replace:
        return _replacing(workload, target)
    stuck = first_stuck(observed, target, now)
    if stuck is None:
        return PROCEED
    if can_replace:
        return _replacing(workload, target)
    back_to = _previous(observed, target)
    if policy is OnUnschedulable.ABORT and back_to in observed.templates:
        return _aborted(Mark(Action.ABORT, target, back_to), observed)
    return Course(Action.PROCEED, Reason.WAITING, _waiting(service, stuck))


def is_complete(workload: Workload, revision: str) -> bool:
    """Whether the Deployment is of that revision, and counts no pod of another."""
    is_uniform = workload.updated == workload.total and workload.updated >= min(1, workload.replicas)
    return workload.revision == revision and workload.is_current and is_uniform


def first_stuck(observed: Observed, target: str, now: datetime) -> Pod | None:
    """The new pod that has waited longest for a node that only an old pod's end can give it."""
    if observed.ending or not any(p.revision != target for p in observed.pods):
        return None
    waiting = [(p.unschedulable_since, p.name, p) for p in observed.pods if p.revision == target and p.unschedulable]
    long_enough = [(at, name, pod) for at, name, pod in waiting if at is not None and now - at >= GRACE]
    return min(long_enough)[2] if long_enough else None


def needs_templates(service: InferenceService, observed: Observed) -> bool:
    """Whether pod templates of older revisions may be asked for: they are read for this alone.

    | asked for by    | while                                                              |
    |-----------------|--------------------------------------------------------------------|
    | a NetworkPolicy | there are pods of another revision than the Deployment's: it has   |
    |                 | to let through what they fetch by                                  |
    | Abort           | a pod finds no node, or an abort was begun: it goes back to one    |
    """
    workload, pods = observed.workload, observed.pods
    if workload is None:
        return False
    if service.network.enabled and any(p.revision != workload.revision for p in pods):
        return True
    if service.rollout.on_unschedulable is not OnUnschedulable.ABORT:
        return False
    begun = Mark.parse(workload.mark)
    return any(p.unschedulable for p in pods) or (begun is not None and begun.action is Action.ABORT)


def _may_miss_one(service: InferenceService, workload: Workload) -> bool:
    return workload.replicas <= 1 or workload.replicas - 1 >= (service.min_available or 0)


def _previous(observed: Observed, target: str) -> str:
    """The older revision of which most pods are ready; empty where there is none."""
    old = Counter(p.revision for p in observed.ready_pods if p.revision and p.revision != target)
    return min(old, key=lambda revision: (-old[revision], revision), default="")


def _replacing(workload: Workload, target: str) -> Course:
    outage = "" if workload.replicas > 1 else "; it is the only one: nothing serves until the new pod is ready"
    message = f"pods of revision {target} found no node, so one old pod at a time makes room for its successor{outage}"
    return Course(Action.REPLACE, Reason.REPLACING, message, Mark(Action.REPLACE, target))


def _aborted(mark: Mark, observed: Observed) -> Course:
    message = (
        f"new pods found no node, so the roll-out of revision {mark.target} was aborted and revision {mark.back_to} "
        "goes on, until the spec changes; next: free or add a node, then set spec.rollout.onUnschedulable to Wait"
    )
    return Course(Action.ABORT, Reason.ABORTED, message, mark, observed.templates.get(mark.back_to))


def _waiting(service: InferenceService, stuck: Pod) -> str:
    seen = f"pod {stuck.name} has no node {since(stuck.unschedulable_since)}: {stuck.unschedulable}"
    return f"{seen}; {_STEPS[service.rollout.on_unschedulable].format(least=service.min_available)}"


def since(moment: datetime | None) -> str:
    """In words that stay the same while time passes."""
    return f"since {moment:%Y-%m-%dT%H:%M:%SZ}" if moment is not None else "yet"


_STEPS = {
    OnUnschedulable.WAIT: (
        "next: free or add a node, or set spec.rollout.onUnschedulable to Replace (one old pod goes first) or Abort "
        "(back to the previous revision)"
    ),
    OnUnschedulable.REPLACE: (
        "no old pod may go first, since spec.disruption.minAvailable is {least}; next: free or add a node, or lower it"
    ),
    OnUnschedulable.ABORT: (
        "it cannot be aborted: no ReplicaSet of a revision that serves is left; next: free or add a node, or apply "
        "the earlier spec"
    ),
}
