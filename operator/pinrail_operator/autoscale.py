"""The scaling decision: from what replicas report to how many there should be, and why. Pure.

`reconcile` measures, calls `decide`, then acts on what it returns; local mode does the same.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise

from pinrail_contract.metrics import LoadSample

from .scaling_policy import ScalingPolicy
from .words import are, counted


class Reason(StrEnum):
    """Why a number was chosen; the reason of the condition ScalingActive."""

    BELOW_MINIMUM = "BelowMinimum"
    ABOVE_MAXIMUM = "AboveMaximum"
    NO_METRICS = "NoMetrics"
    CACHE_DEMAND = "CacheDemand"  # scaled up: KV blocks bind
    SLOT_DEMAND = "SlotDemand"  # scaled up: requests per replica bind
    STABILIZING_UP = "StabilizingUp"
    AT_MAXIMUM = "AtMaximum"
    METRICS_INCOMPLETE = "MetricsIncomplete"
    REPLICAS_STARTING = "ReplicasStarting"
    STEADY = "Steady"
    QUEUED_REQUESTS = "QueuedRequests"
    STABILIZING_DOWN = "StabilizingDown"
    LOW_DEMAND = "LowDemand"  # scaled down


@dataclass(frozen=True, slots=True)
class Report:
    """What one ready replica last said."""

    load: LoadSample | None  # None: it never answered, or not with a load sample
    age: float = 0.0  # seconds since it said so


@dataclass(frozen=True, slots=True)
class Want:
    """What the load alone called for at one moment."""

    at: float  # seconds, on the caller's monotonic clock
    replicas: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """The figures that a decision was made from; totals over the replicas that reported."""

    current: int  # replicas asked for
    ready: int
    starting: int  # asked for and not ready yet
    reporting: int  # ready, and with a fresh and sane sample
    demand_blocks: float  # KV blocks held by live requests, plus those that the queues will need
    supply_blocks: float  # KV blocks of all replicas asked for, starting ones included
    requests: int  # running and waiting
    slots: int  # requests that all replicas asked for can run at once; 0 where unknown
    deepest_queue: int  # requests waiting in the one replica that has the most


@dataclass(frozen=True, slots=True)
class Decision:
    replicas: int
    reason: Reason
    message: str
    inputs: Inputs
    history: tuple[Want, ...] = field(repr=False)  # for the next call


def decide(
    policy: ScalingPolicy,
    samples: Sequence[Report],
    *,
    current: int,
    starting: int,
    history: tuple[Want, ...],
    now: float,
) -> Decision:
    """Choose the number of replicas: up on the totals that are known, down only when everything is known and quiet.

    `up` is the least number that carries the demand at `up_target`, `down` the least that carries it at `down_target`,
    each for the signal that needs more: KV blocks, or request slots. "Lowest" and "highest" are over the window of
    that direction, this moment's want included.

    | now       | reporting | up vs now | down vs now | besides                      | replicas | reason            |
    |-----------|-----------|-----------|-------------|------------------------------|----------|-------------------|
    | below min | -         | -         | -           | -                            | min      | BelowMinimum      |
    | above max | -         | -         | -           | -                            | max      | AboveMaximum      |
    | in bounds | none      | -         | -           | -                            | now      | NoMetrics         |
    | max       | any       | above     | -           | -                            | now      | AtMaximum         |
    | in bounds | any       | above     | -           | lowest <= now, or window not full | now | StabilizingUp     |
    | in bounds | any       | above     | -           | lowest > now, blocks bind    | lowest   | CacheDemand       |
    | in bounds | any       | above     | -           | lowest > now, slots bind     | lowest   | SlotDemand        |
    | in bounds | not all   | not above | -           | -                            | now      | MetricsIncomplete |
    | in bounds | all       | not above | -           | some are starting            | now      | ReplicasStarting  |
    | in bounds | all       | not above | not below   | -                            | now      | Steady            |
    | in bounds | all       | not above | below       | a queue at queue_depth       | now      | QueuedRequests    |
    | in bounds | all       | not above | below       | highest >= now, or window not full | now | StabilizingDown  |
    | in bounds | all       | not above | below       | highest < now                | highest  | LowDemand         |

    A sample that is older than `stale_after`, or holds NaN, an infinity or a negative figure, is a missing one. With
    an empty history, or after a gap in it, a whole window must be seen before replicas are removed, so it may live in
    memory: a restarted operator waits.

    Args:
        policy: Bounds, targets and windows.
        samples: One report for each ready replica.
        current: Replicas asked for now (the Deployment's `spec.replicas`), not the ready ones.
        starting: Replicas asked for that are not ready; they count as supply, or a slow load would run away.
        history: `Decision.history` of the previous call, oldest first.
        now: Seconds, on the same monotonic clock as `history`.

    Never raises.

    Source: the windows and the rule for missing figures are those of the Kubernetes HPA v2; totals instead of
    averages and the rehearsal of n-1 replicas follow llm-d's workload-variant-autoscaler.
    """
    fresh = [r.load for r in samples if r.load is not None and r.age <= policy.stale_after and _is_sane(r.load)]
    inputs = _inputs(fresh, len(samples), current, starting)
    if not policy.min_replicas <= current <= policy.max_replicas:
        return _back_in_bounds(policy, inputs, history)
    if not fresh:
        ready = counted(len(samples), "ready replica")
        seen = f"none of {ready} reports its load" if samples else "no replica is ready"
        return Decision(current, Reason.NO_METRICS, f"{seen}: hold {current}", inputs, history)
    up, signal = _needed(inputs, fresh, policy.up_target)
    down, _ = _needed(inputs, fresh, policy.down_target)
    want = policy.clamp(up if up > current else min(down, current))
    recorded = (*history, Want(now, want))
    if up > current:
        return _rise(policy, inputs, up, signal, recorded, now)
    return _fall(policy, inputs, down, recorded, now)


def _rise(
    policy: ScalingPolicy, inputs: Inputs, up: int, signal: Reason, recorded: tuple[Want, ...], now: float
) -> Decision:
    """The load needs more than there is."""
    kept = _recent(recorded, policy, now)
    need = f"{_figures(inputs)} need {counted(up, 'replica')}"
    if inputs.current == policy.max_replicas:
        return Decision(inputs.current, Reason.AT_MAXIMUM, f"{need}, maxReplicas is {inputs.current}", inputs, kept)
    lowest = min(_within(kept, policy.up_window, now))
    if lowest <= inputs.current or kept[0].at > now - policy.up_window:
        wait = f"{need}; waiting until that has lasted {policy.up_window:g} s"
        return Decision(inputs.current, Reason.STABILIZING_UP, wait, inputs, kept)
    return Decision(lowest, signal, need, inputs, kept)


def _fall(policy: ScalingPolicy, inputs: Inputs, down: int, recorded: tuple[Want, ...], now: float) -> Decision:
    """The load needs no more than there is."""
    current, fewer = inputs.current, policy.clamp(down)
    if inputs.reporting < inputs.ready:
        seen = f"no load from {inputs.ready - inputs.reporting} of {counted(inputs.ready, 'ready replica')}"
        return Decision(current, Reason.METRICS_INCOMPLETE, f"{seen}: none is removed", inputs, recorded[:-1])
    kept = _recent(recorded, policy, now)
    if inputs.starting > 0:
        seen = f"{inputs.starting} of {current} {are(inputs.starting)} starting"
        return Decision(current, Reason.REPLICAS_STARTING, seen, inputs, kept)
    if fewer >= current:
        fits = f"{_figures(inputs)} fit {counted(current, 'replica')}"
        return Decision(current, Reason.STEADY, fits, inputs, kept)
    need = f"{_figures(inputs)} would fit {counted(fewer, 'replica')}"
    if inputs.deepest_queue >= policy.queue_depth:
        seen = f"one has {counted(inputs.deepest_queue, 'request')} waiting, queueDepth is {policy.queue_depth}"
        return Decision(current, Reason.QUEUED_REQUESTS, f"{need}; {seen}", inputs, kept)
    highest = max(_within(kept, policy.down_window, now))
    if highest >= current or kept[0].at > now - policy.down_window:
        wait = f"{need}; waiting until that has lasted {policy.down_window:g} s"
        return Decision(current, Reason.STABILIZING_DOWN, wait, inputs, kept)
    return Decision(highest, Reason.LOW_DEMAND, need, inputs, kept)


def _back_in_bounds(policy: ScalingPolicy, inputs: Inputs, history: tuple[Want, ...]) -> Decision:
    below = inputs.current < policy.min_replicas
    reason = Reason.BELOW_MINIMUM if below else Reason.ABOVE_MAXIMUM
    bound = f"minReplicas is {policy.min_replicas}" if below else f"maxReplicas is {policy.max_replicas}"
    seen = f"{counted(inputs.current, 'replica')}, {bound}"
    return Decision(policy.clamp(inputs.current), reason, seen, inputs, history)


def _inputs(fresh: Sequence[LoadSample], ready: int, current: int, starting: int) -> Inputs:
    """Totals; replicas that do not report are taken to be as large as the others are on average."""
    scale = max(current, len(fresh)) / len(fresh) if fresh else 0.0
    knows_slots = all(s.max_num_seqs > 0 for s in fresh)
    return Inputs(
        current=current,
        ready=ready,
        starting=starting,
        reporting=len(fresh),
        demand_blocks=sum(s.used_blocks + s.waiting_blocks for s in fresh),
        supply_blocks=sum(s.kv_blocks for s in fresh) * scale,
        requests=sum(s.running + s.waiting for s in fresh),
        slots=round(sum(s.max_num_seqs for s in fresh) * scale) if knows_slots else 0,
        deepest_queue=max((s.waiting for s in fresh), default=0),
    )


def _needed(inputs: Inputs, fresh: Sequence[LoadSample], target: float) -> tuple[int, Reason]:
    """The least number of replicas that carries the demand at `target`, and the signal that binds."""
    blocks = sum(s.kv_blocks for s in fresh) / len(fresh)
    by_blocks = _replicas_for(inputs.demand_blocks, target * blocks)
    slots = sum(s.max_num_seqs for s in fresh) / len(fresh) if inputs.slots else 0.0
    by_slots = _replicas_for(inputs.requests, target * slots) if slots else 0
    return (by_slots, Reason.SLOT_DEMAND) if by_slots > by_blocks else (by_blocks, Reason.CACHE_DEMAND)


def _replicas_for(demand: float, each: float) -> int:
    """At least one; rounding errors of a part in a billion do not add a replica."""
    return max(1, math.ceil(demand / each - 1e-9))


def _recent(recorded: tuple[Want, ...], policy: ScalingPolicy, now: float) -> tuple[Want, ...]:
    """The unbroken run of wants that ends now, back to the first that is older than every window."""
    gap = next((i for i in range(len(recorded) - 1, 0, -1) if _is_gap(recorded[i - 1], recorded[i], policy)), 0)
    run, since = recorded[gap:], now - max(policy.up_window, policy.down_window)
    older = sum(1 for _, later in pairwise(run) if later.at <= since)
    return run[older:]


def _within(kept: tuple[Want, ...], window: float, now: float) -> list[int]:
    """What was wanted in the last `window` seconds, this moment included."""
    return [w.replicas for w in kept if w.at > now - window or w.at == now]


def _is_gap(earlier: Want, later: Want, policy: ScalingPolicy) -> bool:
    return not 0 <= later.at - earlier.at <= policy.stale_after


def _is_sane(load: LoadSample) -> bool:
    """Whether every figure is finite, not negative, and could be a replica's."""
    figures = (load.running, load.waiting, load.kv_usage, load.kv_blocks, load.waiting_blocks, load.max_num_seqs)
    return all(0 <= f < 1e15 for f in figures) and load.kv_blocks >= 1  # NaN compares as False


def _figures(inputs: Inputs) -> str:
    """The two utilisations in words."""
    blocks = f"{inputs.demand_blocks:.0f} of {inputs.supply_blocks:.0f} KV blocks"
    return blocks + (f" and {inputs.requests} of {inputs.slots} request slots" if inputs.slots else "")
