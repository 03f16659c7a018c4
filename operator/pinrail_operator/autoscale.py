"""The scaling decision: from what replicas report to how many there should be, and why. Pure.

`reconcile` measures, calls `decide`, then acts on what it returns; local mode does the same.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import pairwise

from pinrail_contract.metrics import LoadSample

from .scaling_pace import NO_CHANGES, Changes
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
    SCALE_UP_LIMIT = "ScaleUpLimit"  # behavior.scaleUp allows no more now
    AT_MAXIMUM = "AtMaximum"
    METRICS_INCOMPLETE = "MetricsIncomplete"
    REPLICAS_STARTING = "ReplicasStarting"
    STEADY = "Steady"
    QUEUED_REQUESTS = "QueuedRequests"
    STABILIZING_DOWN = "StabilizingDown"
    SCALE_DOWN_LIMIT = "ScaleDownLimit"  # behavior.scaleDown allows no fewer now
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
    changes: Changes = field(default=NO_CHANGES, repr=False)  # the same


def decide(
    policy: ScalingPolicy,
    samples: Sequence[Report],
    *,
    current: int,
    starting: int,
    history: tuple[Want, ...],
    now: float,
    changes: Changes = NO_CHANGES,
) -> Decision:
    """Choose the number of replicas: up on the totals that are known, down only when everything is known and quiet.

    `up` is the least number that carries the demand at `up_target`, `down` the least that carries it at `down_target`,
    each for the signal that needs more: KV blocks, or request slots. "Above" and "below" are by more than the tolerance
    of that direction. "Lowest" and "highest" are over its window, which has to be filled, this moment's want
    included; "allowed" is as far as its policies let it go.

    | now       | reporting | up        | down      | besides                           | replicas | reason            |
    |-----------|-----------|-----------|-----------|-----------------------------------|----------|-------------------|
    | below min | -         | -         | -         | -                                 | min      | BelowMinimum      |
    | above max | -         | -         | -         | -                                 | max      | AboveMaximum      |
    | in bounds | none      | -         | -         | -                                 | now      | NoMetrics         |
    | max       | any       | above     | -         | -                                 | now      | AtMaximum         |
    | in bounds | any       | above     | -         | lowest <= now, or not filled      | now      | StabilizingUp     |
    | in bounds | any       | above     | -         | lowest > now, allowed = now       | now      | ScaleUpLimit      |
    | in bounds | any       | above     | -         | both > now, blocks bind           | the less | CacheDemand       |
    | in bounds | any       | above     | -         | both > now, slots bind            | the less | SlotDemand        |
    | in bounds | not all   | not above | -         | -                                 | now      | MetricsIncomplete |
    | in bounds | all       | not above | -         | some are starting                 | now      | ReplicasStarting  |
    | in bounds | all       | not above | not below | -                                 | now      | Steady            |
    | in bounds | all       | not above | below     | a queue at queue_depth            | now      | QueuedRequests    |
    | in bounds | all       | not above | below     | highest >= now, or not filled     | now      | StabilizingDown   |
    | in bounds | all       | not above | below     | highest < now, allowed = now      | now      | ScaleDownLimit    |
    | in bounds | all       | not above | below     | both < now                        | the more | LowDemand         |

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
        changes: `Decision.changes` of the previous call. With none, policies count from now on, as the HPA's do.

    Never raises.

    Source: the windows and the rule for missing figures are those of the Kubernetes HPA v2; totals instead of
    averages and the rehearsal of n-1 replicas follow llm-d's workload-variant-autoscaler.
    """
    fresh = [r.load for r in samples if r.load is not None and r.age <= policy.stale_after and _is_sane(r.load)]
    inputs = _inputs(fresh, len(samples), current, starting)
    changes = changes.seen(current, now)
    return replace(_decide(policy, inputs, fresh, history, changes, now), changes=changes)


def _decide(
    policy: ScalingPolicy,
    inputs: Inputs,
    fresh: Sequence[LoadSample],
    history: tuple[Want, ...],
    changes: Changes,
    now: float,
) -> Decision:
    current = inputs.current
    if not policy.min_replicas <= current <= policy.max_replicas:
        return _back_in_bounds(policy, inputs, history)
    if not fresh:
        ready = counted(inputs.ready, "ready replica")
        seen = f"none of {ready} reports its load" if inputs.ready else "no replica is ready"
        return Decision(current, Reason.NO_METRICS, f"{seen}: hold {current}", inputs, history)
    up, signal = _needed(inputs, fresh, policy.up_target)
    is_above = _needed(inputs, fresh, policy.up_target * (1 + policy.up.tolerance))[0] > current
    down, _ = _needed(inputs, fresh, policy.down_target)
    is_below = _needed(inputs, fresh, policy.down_target * (1 - policy.down.tolerance))[0] < current
    fewer = policy.clamp(down) if is_below else current
    recorded = (*history, Want(now, policy.clamp(up) if is_above else fewer))
    if is_above:
        return _rise(policy, inputs, up, signal, recorded, changes, now)
    return _fall(policy, inputs, fewer, recorded, changes, now)


def _rise(
    policy: ScalingPolicy,
    inputs: Inputs,
    up: int,
    signal: Reason,
    recorded: tuple[Want, ...],
    changes: Changes,
    now: float,
) -> Decision:
    """The load needs more than there is."""
    kept = _recent(recorded, policy, now)
    need = f"{_figures(inputs)} need {counted(up, 'replica')}"
    if inputs.current == policy.max_replicas:
        return Decision(inputs.current, Reason.AT_MAXIMUM, f"{need}, maxReplicas is {inputs.current}", inputs, kept)
    lowest = min(_within(kept, policy.up.window, now))
    if lowest <= inputs.current or kept[0].at > now - policy.up.window:
        wait = f"{need}; waiting until that has lasted {policy.up.window:g} s"
        return Decision(inputs.current, Reason.STABILIZING_UP, wait, inputs, kept)
    most = policy.up.most(inputs.current, changes, now)
    if most is None or most >= lowest:
        return Decision(lowest, signal, need, inputs, kept)
    reason = signal if most > inputs.current else Reason.SCALE_UP_LIMIT
    return Decision(most, reason, f"{need}; scaleUp's {policy.up}", inputs, kept)


def _fall(
    policy: ScalingPolicy, inputs: Inputs, fewer: int, recorded: tuple[Want, ...], changes: Changes, now: float
) -> Decision:
    """The load needs no more than there is."""
    current = inputs.current
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
    highest = max(_within(kept, policy.down.window, now))
    if highest >= current or kept[0].at > now - policy.down.window:
        wait = f"{need}; waiting until that has lasted {policy.down.window:g} s"
        return Decision(current, Reason.STABILIZING_DOWN, wait, inputs, kept)
    fewest = policy.down.fewest(current, changes, now)
    if fewest <= highest:
        return Decision(highest, Reason.LOW_DEMAND, need, inputs, kept)
    reason = Reason.LOW_DEMAND if fewest < current else Reason.SCALE_DOWN_LIMIT
    return Decision(fewest, reason, f"{need}; scaleDown's {policy.down}", inputs, kept)


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
    run, since = recorded[gap:], now - max(policy.up.window, policy.down.window)
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
