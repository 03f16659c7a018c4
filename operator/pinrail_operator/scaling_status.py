"""What a status says of scaling: the condition ScalingActive, and the last decision with its figures. Pure."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from .autoscale import Decision, Inputs, Reason
from .scaling_policy import MetricsSource, ScalingMode
from .view import Condition, View, written

_BLIND = (Reason.NO_METRICS, Reason.METRICS_INCOMPLETE)


def scaling_active(view: View) -> list[Condition]:
    """Left out for a fixed number of replicas: there is nothing that could be healthy or not."""
    policy, decision = view.service.scaling, view.decision
    if policy is None:
        return []
    if policy.mode is ScalingMode.PAUSED:
        return [Condition("ScalingActive", "False", "ScalingPaused", "spec.scaling.mode is Paused")]
    if view.blocker is not None and not view.is_scaled:
        return [Condition("ScalingActive", "False", view.blocker.reason, "nothing is scaled: see the condition Ready")]
    if decision is None:
        return [Condition("ScalingActive", "Unknown", "NoDecision", "there is nothing to scale yet")]
    if policy.mode is ScalingMode.RECOMMEND:
        return [Condition("ScalingActive", "False", "RecommendOnly", "spec.scaling.mode is Recommend")]
    status = "False" if decision.reason in _BLIND else "True"
    message = MESSAGES[decision.reason] + (_unread(view) if decision.reason in _BLIND else "")
    return [Condition("ScalingActive", status, decision.reason, message)]


def _unread(view: View) -> str:
    """What kind of error keeps Prometheus from telling a load; details are left to the log, since they change."""
    policy = view.service.scaling
    if policy is None or policy.source is MetricsSource.PODS or not view.unread:
        return ""
    return f"; {min(view.unread.values())}"[:1000]


MESSAGES = {
    Reason.BELOW_MINIMUM: "there were fewer than minReplicas",
    Reason.ABOVE_MAXIMUM: "there were more than maxReplicas",
    Reason.NO_METRICS: "no ready replica reports its load: nothing is scaled",
    Reason.CACHE_DEMAND: "KV blocks ran short: replicas are added",
    Reason.SLOT_DEMAND: "request slots ran short: replicas are added",
    Reason.STABILIZING_UP: "more is needed; it has to last for behavior.scaleUp's window",
    Reason.SCALE_UP_LIMIT: "more is needed; behavior.scaleUp lets no replica be added now",
    Reason.AT_MAXIMUM: "more is needed than maxReplicas allows",
    Reason.METRICS_INCOMPLETE: "not every ready replica reports its load: none is removed",
    Reason.REPLICAS_STARTING: "replicas are starting: none is removed",
    Reason.STEADY: "the load fits the replicas",
    Reason.QUEUED_REQUESTS: "fewer would do, but a queue is at targets.queueDepth: none is removed",
    Reason.STABILIZING_DOWN: "fewer would do; it has to last for behavior.scaleDown's window",
    Reason.SCALE_DOWN_LIMIT: "fewer would do; behavior.scaleDown lets no replica be removed now",
    Reason.LOW_DEMAND: "fewer will do: replicas are removed",
}
"""Without figures, which would make each tick a write; those stand in status.scaling."""


def last_decision(view: View, previous: Mapping[str, Any], now: datetime) -> dict[str, Any]:
    """The last decision, and the last one that changed the number of replicas.

    The figures are renewed when they have moved by a twentieth of the supply.
    """
    decision = view.decision
    if decision is None:
        return dict(previous)
    kept = {"lastScale": previous["lastScale"]} if "lastScale" in previous else {}
    if view.done.scale is not None and decision.replicas != decision.inputs.current:
        change = {"from": decision.inputs.current, "to": decision.replicas, "reason": str(decision.reason)}
        kept = {"lastScale": {**change, "message": decision.message, "time": written(now)}}
    fresh = {**_figures(decision), **kept}
    told = ("desiredReplicas", "reason", "reporting", "supplyBlocks", "lastScale")
    same = all(previous.get(key) == fresh.get(key) for key in told)
    moved = abs(previous.get("demandBlocks", 0) - fresh["demandBlocks"]) * 20
    return dict(previous) if same and moved < max(1, fresh["supplyBlocks"]) else fresh


def _figures(decision: Decision) -> dict[str, Any]:
    inputs: Inputs = decision.inputs
    return {
        "desiredReplicas": decision.replicas,
        "reason": str(decision.reason),
        "message": decision.message,
        "demandBlocks": round(inputs.demand_blocks),
        "supplyBlocks": round(inputs.supply_blocks),
        "reporting": inputs.reporting,
    }
