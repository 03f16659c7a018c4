"""The whole status of one service, computed from what is known now. Pure; one writer writes it, when it differs.

Conditions read as kstatus wants them: healthy is True for all but Reconciling and Stalled, which are True when
something is under way, or needs a person.
"""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from . import names, quarantine
from .checks import MODEL_REASONS, Blocked
from .engine_fields import EngineType
from .errors import SpecError
from .observed import OVERDUE, Pod
from .rollout import Action, since
from .runtimes import agreed
from .scaling_status import last_decision, scaling_active
from .view import Condition, View, written
from .words import are, counted

Status = dict[str, Any]

FILES_DIFFER = "FilesDiffer"
"""Reason of ModelVerified=False that keeps nothing from serving."""

QUARANTINED = "Quarantined"
"""Another such reason: what differed no longer serves."""

DIGEST_DIFFERS = "DigestDiffers"
ENGINE_DIFFERS = "EngineDiffers"
"""Reasons of ModelVerified=False where replicas report something else than their pin; only Warn lets them serve."""

ENGINE_STEP = "next: set spec.engine to what the manifest pins, or pin what runs"

PATIENCE = timedelta(seconds=15)
"""How long a service is without its manifest, and not ready for anything, before a person has to act."""


def render(view: View, previous: Mapping[str, Any], now: datetime) -> Status:
    """The status, with transition times kept where a condition did not change.

    Args:
        view: What is known.
        previous: The status as it stands.
        now: For conditions that change.
    """
    view = replace(view, is_awaiting=_awaits_manifest(view, previous, now))
    verified = _model_verified(view)
    workload = _workload_ready(view)
    rollout = _rollout_complete(view)
    stalled = _stalled(view, verified)
    ready = _ready(view, stalled, verified, workload, rollout)
    reconciling = _reconciling(view, stalled, rollout, workload)
    conditions = [ready, reconciling, stalled, verified, workload, *scaling_active(view), rollout]
    found = view.observed.workload
    status: Status = {
        "observedGeneration": view.service.generation,
        "conditions": _with_times(conditions, view.service.generation, previous, now),
        "replicas": len(view.observed.pods),
        "readyReplicas": len(view.observed.ready_pods),
        "updatedReplicas": found.updated if found is not None else 0,
        "selector": ",".join(f"{k}={v}" for k, v in names.selector(view.service).items()),
        "url": names.url(view.service),
        "revision": _revision(view, previous),
        "model": _model(view),
    }
    scaling = last_decision(view, previous.get("scaling", {}), now) if view.service.scaling is not None else {}
    return {**status, "scaling": scaling} if scaling else status


def refused(body: Mapping[str, Any], error: SpecError, previous: Mapping[str, Any], now: datetime) -> Status:
    """The status of a service whose spec cannot be read; what it reports besides is left as it was."""
    generation, message = body["metadata"].get("generation", 0), f"{error}; mend the field and apply again"
    conditions = [
        Condition("Ready", "False", Blocked.INVALID_SPEC, message),
        Condition("Reconciling", "False", Blocked.INVALID_SPEC, "nothing is done until the spec is mended"),
        Condition("Stalled", "True", Blocked.INVALID_SPEC, message),
    ]
    kept = {c["type"]: c for c in previous.get("conditions", [])}
    fresh = {c["type"]: c for c in _with_times(conditions, generation, previous, now)}
    return {**previous, "observedGeneration": generation, "conditions": list({**kept, **fresh}.values())}


def is_awaiting(status: Status) -> bool:
    """Whether a status says that something is awaited for a moment, after which it is to be looked at again."""
    told = {c["type"]: c for c in status["conditions"]}["Reconciling"]
    return bool((told["status"], told["reason"]) == ("True", Blocked.MANIFEST_MISSING))


def _awaits_manifest(view: View, previous: Mapping[str, Any], now: datetime) -> bool:
    """GitOps tools apply a service before its manifest, and some give all of it up where one object has failed."""
    if view.blocker is None or view.blocker.reason is not Blocked.MANIFEST_MISSING or view.service.paused:
        return False
    ready = {c["type"]: c for c in previous.get("conditions", [])}.get("Ready", {})
    began = ready["lastTransitionTime"] if ready.get("status") == "False" else written(now)
    return now - datetime.fromisoformat(began) < PATIENCE


def _model_verified(view: View) -> Condition:
    """Whether replicas of the wanted revision report the pinned digest, or say that the files are not those."""
    blocker, failure, ready = view.blocker, view.failure, view.ready_current
    pinned = view.service.model.digest
    if blocker is not None and blocker.reason in MODEL_REASONS:
        return Condition("ModelVerified", "False", blocker.reason, blocker.message)
    if failure is not None and failure.is_mismatch:
        return Condition("ModelVerified", "False", failure.reason, failure.message)
    if view.differing and view.tolerates:
        step = "repair the source, or pin what is there; spec.verification.mode Enforce would have refused to start it"
        seen = f"pod {view.differing[0].name} serves files that are not those of the manifest; next: {step}"
        return Condition("ModelVerified", "False", FILES_DIFFER, seen)
    if view.wrong:
        reason = ENGINE_DIFFERS if view.wrong[0].differences else DIGEST_DIFFERS
        return Condition("ModelVerified", "False", reason, f"{view.wrong[0]}; {_effect(view)}")
    if not ready:
        none = "no replica runs" if view.is_at_rest else "no replica of this revision is ready yet"
        return Condition("ModelVerified", "Unknown", "NoReplicaReady", none)
    reporting = sum(view.digests.get(p.name) == pinned for p in ready)
    if reporting < len(ready):
        seen = f"no digest yet from {len(ready) - reporting} of {counted(len(ready), 'ready replica')}"
        return Condition("ModelVerified", "Unknown", "NotReported", seen)
    if view.quarantined:
        seen = f"{view.quarantined[0].quarantine}; {_count_of(view.quarantined)} is kept for a person to look at"
        return Condition("ModelVerified", "False", QUARANTINED, f"{seen}; {quarantine.NEXT}")
    if view.service.engine.type is EngineType.VLLM:
        seen = f"before each ready replica started, an init container found its files to be {pinned}"
        return Condition(
            "ModelVerified",
            "True",
            "VerifiedBeforeStart",
            f"{seen}; the engine does not look at them again{_silence(view)}",
        )
    return Condition("ModelVerified", "True", "Verified", f"all ready replicas report {pinned}{_silence(view)}")


def _silence(view: View) -> str:
    """What the manifest pins and cannot be compared from outside; an engine that is ours has compared it itself."""
    fields, silent = view.unreported
    if not fields:
        return ""
    of = f"{silent} of {counted(len(view.ready_current), 'ready replica')}"
    verb = "does" if silent == 1 else "do"
    return f"; {of} {verb} not report {', '.join(fields)}, so that is not verified from outside"


def _effect(view: View) -> str:
    """What became of a replica that reports something else than its pin, and what is next."""
    step = ENGINE_STEP if view.wrong[0].differences else quarantine.NEXT
    if view.tolerates:
        return f"it serves, since spec.verification.mode is Warn; {step}"
    if view.service.paused:
        return f"it serves, since spec.paused is true; {step}"
    if len(view.quarantined) < quarantine.MOST:
        return quarantine.NEXT
    kept = f"{counted(len(view.quarantined), 'pod')} of this revision {are(len(view.quarantined))} quarantined already"
    held = "no other takes its place, and the roll-out stands still"
    return f"the Service leaves it out; {kept}, so {held}; next: name the right spec.engine.image, then delete them"


def _count_of(pods: tuple[Pod, ...]) -> str:
    return "it" if len(pods) == 1 else f"each of {len(pods)}"


def _is_served(view: View, verified: Condition) -> bool:
    """Whether a False ModelVerified keeps nothing from serving."""
    return verified.reason in (FILES_DIFFER, QUARANTINED) or (
        verified.reason in (DIGEST_DIFFERS, ENGINE_DIFFERS) and view.tolerates
    )


def _workload_ready(view: View) -> Condition:
    """Whether the least number of replicas is ready, of whatever revision."""
    ready, least = len(view.observed.ready_pods), view.service.least_replicas
    if least == 0:
        return _without_replicas(view)
    if ready >= least:
        seen = f"at least {counted(least, 'replica')} {are(least)} ready"
        return Condition("WorkloadReady", "True", "ReplicasReady", seen)
    failure, workload = view.failure, view.observed.workload
    seen = f"{ready} of {counted(least, 'replica')} {are(least)} ready"
    if failure is not None:
        return _short_of_replicas(view, failure.reason, seen, failure.message)
    if workload is not None and workload.failure:
        return _short_of_replicas(view, "WorkloadFailed", seen, workload.failure)
    return _short_of_replicas(view, "ReplicasStarting", seen)


def _short_of_replicas(view: View, reason: str, *said: str) -> Condition:
    """With how far those are that fetch their model."""
    return Condition("WorkloadReady", "False", reason, "; ".join(filter(None, (*said, view.progress))))


def _without_replicas(view: View) -> Condition:
    """Nothing is asked for, which is healthy once nothing is left."""
    left, suspended = len(view.observed.pods), view.service.suspended
    why = "spec.suspend is true" if suspended else "spec.replicas is 0"
    if left:
        seen = f"{why}: {counted(left, 'replica')} {are(left)} yet to stop"
        return Condition("WorkloadReady", "False", "ReplicasStopping", seen)
    if suspended:
        return Condition("WorkloadReady", "True", "Suspended", f"{why}: no replica runs until it is false")
    return Condition("WorkloadReady", "True", "NoReplicasWanted", f"{why}: nothing is asked for, and nothing serves")


def _rollout_complete(view: View) -> Condition:
    if view.is_rolled_out:
        return Condition("RolloutComplete", "True", "RolledOut", f"all replicas are of revision {view.target}")
    if view.observed.workload is None:
        return Condition("RolloutComplete", "False", "NotStarted", "there is no Deployment yet")
    reason, awaited = _awaited(view)
    if view.service.paused or view.course.reason:
        reason = "Paused" if view.service.paused else view.course.reason
    seen = f"replicas of revision {view.target or 'unknown'} are not the only ones yet"
    message = "; ".join(filter(None, (view.course.message or seen, awaited)))
    return Condition("RolloutComplete", "False", reason, message)


def _awaited(view: View) -> tuple[str, str]:
    """Why the roll-out is not complete: which pod waits, for what and since when; no words for what an action says.

    Times are moments, not durations, which would make each tick a write.
    """
    failure, starting = view.failure, [p for p in view.current_pods if not p.is_ready]
    if failure is not None:
        is_said = view.course.reason == failure.reason
        return failure.reason, "" if is_said else f"{failure.message} (waiting {since(failure.since)})"
    if not starting:
        return "RollingOut", ""
    oldest = min(view.fetching or starting, key=lambda p: (p.created is not None, p.created, p.name))
    return "RollingOut", f"{view.progress or f'pod {oldest.name} is starting'} (waiting {since(oldest.created)})"


def _stalled(view: View, verified: Condition) -> Condition:
    """Whether a person has to act, with the next step."""
    blocker, failure, workload = view.blocker, view.failure, view.observed.workload
    serving = _old_serving(view)
    if view.is_awaiting:
        return Condition("Stalled", "False", "Progressing", "nothing waits for a person yet")
    if blocker is not None:
        return Condition("Stalled", "True", blocker.reason, blocker.message + serving)
    if verified.status == "False" and not _is_served(view, verified):
        return Condition("Stalled", "True", verified.reason, verified.message + serving)
    if view.course.action is Action.ABORT:
        return Condition("Stalled", "True", view.course.reason, view.course.message + serving)
    is_short = not view.is_rolled_out or len(view.observed.ready_pods) < view.service.least_replicas
    if is_short and failure is not None and not failure.can_pass:
        return Condition("Stalled", "True", failure.reason, failure.message + serving)
    if is_short and workload is not None and workload.failure and workload.is_current:
        awaited = "; ".join(filter(None, (workload.failure, _awaited(view)[1])))
        return Condition("Stalled", "True", OVERDUE if workload.is_overdue else "WorkloadFailed", awaited + serving)
    return Condition("Stalled", "False", "Progressing", "nothing waits for a person")


def _ready(view: View, stalled: Condition, *parts: Condition) -> Condition:
    """The first part that is not healthy says why; files that differ are served where verification only warns.

    No replicas are healthy where none is asked for: there is nothing to verify.
    """
    name = view.service.model.name
    if stalled.status == "True":
        return Condition("Ready", "False", stalled.reason, stalled.message)
    if view.blocker is not None:
        return Condition("Ready", "False", view.blocker.reason, view.blocker.message)
    verified, workload, rollout = parts
    for part in (workload, rollout, verified):
        if part is verified and view.is_at_rest:
            return Condition("Ready", "True", workload.reason, workload.message)
        if part.status != "True" and not (part is verified and _is_served(view, part)):
            return Condition("Ready", part.status, part.reason, part.message)
    if view.differing or view.wrong:
        return Condition("Ready", "True", "ServingUnverified", f"serves {name}, of which {verified.message}")
    return Condition("Ready", "True", "Serving", f"verified replicas serve {name}")


def _reconciling(view: View, stalled: Condition, rollout: Condition, workload: Condition) -> Condition:
    if view.service.paused:
        return Condition("Reconciling", "False", "Paused", "spec.paused is true: everything is left as it is")
    if stalled.status == "True":
        return Condition("Reconciling", "False", "Stalled", "see the condition Stalled")
    if view.blocker is not None:
        seen = f"it may come within {PATIENCE.seconds} s, where both were applied together"
        return Condition("Reconciling", "True", view.blocker.reason, f"{view.blocker.message}; {seen}")
    for part in (workload, rollout):
        if part.status != "True":
            return Condition("Reconciling", "True", part.reason, part.message)
    if view.is_applying:
        return Condition("Reconciling", "True", "Applying", "changes were just applied")
    return Condition("Reconciling", "False", "Settled", "the cluster holds what the spec asks for")


def _revision(view: View, previous: Mapping[str, Any]) -> Status:
    """`current` is the last one that all replicas were of."""
    current = view.target if view.is_rolled_out else previous.get("revision", {}).get("current", "")
    return {key: value for key, value in (("current", current), ("target", view.target)) if value}


def _model(view: View) -> Status:
    """What ready replicas report, where they agree; an old pin that goes on serving shows here."""
    reported = {view.digests[p.name] for p in view.observed.ready_pods if p.name in view.digests}
    served = {"digest": reported.pop()} if len(reported) == 1 else {}
    runs = agreed(view.observed.ready_pods, view.runtimes).to_spec()
    version = {"engineVersion": runs["engine"]["version"]} if "engine" in runs else {}
    numerics = {"numerics": runs["numerics"]} if "numerics" in runs else {}
    return {**served, **version, **numerics, "verifiedReplicas": view.verified}


def _old_serving(view: View) -> str:
    old = [p for p in view.observed.ready_pods if p.revision != view.target]
    if not old:
        return ""
    return f"; {counted(len(old), 'replica')} of the previous revision {'goes' if len(old) == 1 else 'go'} on serving"


def _with_times(
    conditions: list[Condition], generation: int, previous: Mapping[str, Any], now: datetime
) -> list[dict[str, Any]]:
    """As the API has them; lastTransitionTime moves only where `status` does."""
    before = {c["type"]: c for c in previous.get("conditions", [])}
    stamp = written(now)
    return [
        {
            "type": c.type,
            "status": c.status,
            "reason": str(c.reason),
            "message": c.message[:4000],
            "observedGeneration": generation,
            "lastTransitionTime": (
                before[c.type]["lastTransitionTime"] if before.get(c.type, {}).get("status") == c.status else stamp
            ),
        }
        for c in conditions
    ]
