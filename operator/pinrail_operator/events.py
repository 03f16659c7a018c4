"""What is worth telling a person, from two statuses and a decision. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from pinrail_contract.pins import ModelManifest

from . import names
from .autoscale import Decision
from .plan import Plan
from .quarantine import NEXT
from .rollout import Reason
from .types import InferenceService
from .words import counted


class EventType(StrEnum):
    NORMAL = "Normal"
    WARNING = "Warning"


@dataclass(frozen=True, slots=True)
class Event:
    type: EventType
    reason: str
    message: str


def events_for(
    previous: Mapping[str, Any], status: Mapping[str, Any], plan: Plan, decision: Decision | None
) -> tuple[Event, ...]:
    """One for each change that a person would ask about.

    | change                                  | event                                              |
    |-----------------------------------------|----------------------------------------------------|
    | Stalled is True, and was not so before  | Warning, with the condition's reason and message   |
    | a roll-out takes an old pod's place     | Warning, with RolloutComplete's reason and message |
    | a pod is quarantined                    | Warning Quarantined, with what it reported         |
    | Ready becomes True                      | Normal, with the condition's reason and message    |
    | replicas are written by the scaler      | Normal Scaled, with the decision's message         |
    """
    events: list[Event] = []
    was, now = _conditions(previous), _conditions(status)
    stalled, ready = now.get("Stalled", _NONE), now.get("Ready", _NONE)
    if stalled["status"] == "True" and stalled["reason"] != _if_true(was.get("Stalled", _NONE)):
        events.append(Event(EventType.WARNING, stalled["reason"], stalled["message"]))
    rollout = now.get("RolloutComplete", _NONE)
    if rollout["reason"] == Reason.REPLACING and was.get("RolloutComplete", _NONE)["reason"] != Reason.REPLACING:
        events.append(Event(EventType.WARNING, rollout["reason"], rollout["message"]))
    if ready["status"] == "True" and was.get("Ready", _NONE)["status"] != "True":
        events.append(Event(EventType.NORMAL, ready["reason"], ready["message"]))
    for pod in plan.quarantine:
        seen = f"{pod['metadata']['annotations'][names.QUARANTINE]}; it no longer serves, and another takes its place"
        events.append(Event(EventType.WARNING, "Quarantined", f"{seen}; {NEXT}"))
    if plan.scale is not None and decision is not None and decision.replicas != decision.inputs.current:
        count = plan.scale["spec"]["replicas"]
        message = f"from {decision.inputs.current} to {counted(count, 'replica')}: {decision.message}"
        events.append(Event(EventType.NORMAL, "Scaled", message))
    return tuple(events)


def unused_event(service: InferenceService, manifest: ModelManifest | None) -> Event | None:
    """Fields of `spec.model` that its source makes no use of: they keep nothing from serving, and do nothing."""
    unused = service.model.access.unused_by(manifest.source) if manifest is not None else ()
    if manifest is None or not unused:
        return None
    seen = f"{', '.join(unused)}: no effect on a source of {manifest.source.scheme}://"
    step = "next: take it away" if len(unused) == 1 else "next: take them away"
    return Event(EventType.WARNING, "FieldUnused", f"{seen}; {step}, or pin another source in ModelManifest "
                 f"{service.model.manifest}")  # fmt: skip


_NONE: Mapping[str, str] = {"status": "", "reason": "", "message": ""}


def _if_true(condition: Mapping[str, str]) -> str:
    return condition["reason"] if condition["status"] == "True" else ""


def _conditions(status: Mapping[str, Any]) -> dict[str, Mapping[str, str]]:
    return {c["type"]: c for c in status.get("conditions", [])}
