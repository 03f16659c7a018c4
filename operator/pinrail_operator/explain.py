"""`pinrail explain`: what exactly runs, why this many, what blocks, and whether an upgrade is safe. Pure.

All of it is read off the cluster. None in the facts, and "not known" in the text, stand for what the cluster does not
state.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from pinrail_contract.metrics import FILES_DIFFER
from pinrail_contract.pins import ModelManifest
from pinrail_contract.runtime import UNSAID, Runtime

from . import checks, history, pods
from .observed import Body, Observed, Pod, Workload
from .overview import what_matters
from .phrases import conditions, is_healthy, is_seen, seconds_since
from .prospect import Prospect, prospect
from .runtimes import pins_of
from .scaling_policy import ScalingPolicy
from .types import InferenceService

Told = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Report:
    """What one ready pod says of itself."""

    digest: str = ""  # of the manifest that it verified, FILES_DIFFER, or empty where it says neither
    problem: str = ""  # why it was not heard
    runtime: Runtime = UNSAID  # its engine and numerics, as far as it names them


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What was read of the cluster for one service."""

    body: Body
    problem: str = ""  # why the spec cannot be read; `service` and `observed` are None then
    service: InferenceService | None = None
    observed: Observed | None = None
    pods: tuple[Body, ...] = ()  # those that are ending included
    reports: Mapping[str, Report] = field(default_factory=dict)  # by name of the pod
    host_caches: frozenset[str] | None = None  # folders of nodes that the operator takes as caches; None: not known


def explanation(facts: Facts, now: datetime) -> Told:
    """Everything that `explain_text` and the JSON form tell."""
    metadata = facts.body["metadata"]
    head = {
        "namespace": metadata["namespace"],
        "name": metadata["name"],
        "ageSeconds": seconds_since(metadata.get("creationTimestamp"), now),
        "condition": what_matters(facts.body),
    }
    blocks = _unhealthy(facts.body, now)
    if facts.service is None or facts.observed is None:
        return {**head, "invalid": facts.problem, "blocks": blocks}
    return {
        **head,
        "pinned": _pinned(facts.service, facts.observed),
        "pods": _pods(facts, facts.service, facts.observed, now),
        "replicas": _replicas(facts.body, facts.service, facts.observed, now),
        "blocks": blocks,
        "upgrade": {
            "operator": operator_upgrade(
                facts.body, facts.service, facts.observed, facts.reports, now, facts.host_caches
            ),
            "rollout": _rollout(facts.body, facts.observed.workload),
            "capacity": _capacity(_live(facts.observed, "Deployment")),
            "disruptionBudget": _budget(_live(facts.observed, "PodDisruptionBudget")),
            "drain": _drain(facts.service, _live(facts.observed, "Deployment")),
        },
    }


def running_image(observed: Observed) -> str:
    """The engine image of the Deployment's pod template; empty where there is none."""
    deployment = _live(observed, "Deployment")
    containers = deployment["spec"]["template"]["spec"]["containers"] if deployment else []
    return next((str(c["image"]) for c in containers if c["name"] == pods.ENGINE), "")


def operator_upgrade(
    body: Body,
    service: InferenceService,
    observed: Observed,
    reports: Mapping[str, Report],
    now: datetime,
    host_caches: Collection[str] | None = None,
) -> Told:
    """What an operator of this very version would change in a service that is left as it is.

    | what is compared                                 | effect    |
    |--------------------------------------------------|-----------|
    | no Deployment, or no manifest of the pinned name | None      |
    | it is blocked or paused                          | none      |
    | revision and all objects are those of now        | none      |
    | revision is that of now, objects are not         | objects   |
    | revision differs                                 | restart   |

    Objects and revision are those of a roll-out that is held or helped along, where it is.
    """
    workload, manifest = observed.workload, observed.manifest
    if workload is None or manifest is None:
        return {"effect": None, "why": "there is no Deployment" if workload is None else "there is no manifest"}
    image = service.engine.image or running_image(observed)
    blocker = checks.first_blocker(service, observed, image, host_caches)
    digests = {pod: r.digest for pod, r in reports.items() if r.digest}
    runtimes = {pod: r.runtime for pod, r in reports.items() if not r.problem or r.runtime != UNSAID}
    ahead = prospect(service, observed, blocker, image, now, digests, runtimes)
    written = _kinds(ahead)
    seen = {
        "revision": {"now": workload.revision, "then": ahead.revision},
        "objects": written,
        "steered": ahead.steered or None,
    }
    if blocker is not None or service.paused:
        why = "spec.paused is true" if service.paused else f"{blocker.reason if blocker else ''} blocks it"
        return {"effect": "none", "why": f"its pods are left as they are while {why}", **seen}
    if ahead.revision != workload.revision:
        return {"effect": "restart", "why": _why_restart(body, workload), **seen}
    if written:
        return {"effect": "objects", "why": "pods are left alone: their revision is the same", **seen}
    return {"effect": "none", "why": "it renders the same revision and the same objects", **seen}


def _why_restart(body: Body, workload: Workload) -> str:
    target = body.get("status", {}).get("revision", {}).get("target")
    if not is_seen(body) or target != workload.revision:
        return "the spec already asks for other pods than the Deployment's; see what blocks"
    return "it renders pods otherwise than the operator that wrote the Deployment"


def _kinds(ahead: Prospect) -> list[str]:
    """What is written besides the record of a revision, which changes nothing that runs."""
    found = [str(o["kind"]) for o in (*ahead.plan.policies, *ahead.plan.apply, *ahead.plan.settle)]
    return [kind for kind in found if kind != history.RECORD]


def _pinned(service: InferenceService, observed: Observed) -> Told:
    manifest, running = observed.manifest, running_image(observed)
    return {
        "model": service.model.name,
        "manifest": service.model.manifest,
        "digest": service.model.digest,
        "verification": str(service.verification),
        "unused": list(service.model.access.unused_by(manifest.source)) if manifest is not None else [],
        **(_manifest(manifest) if manifest is not None else _no_manifest(observed)),
        "engineImage": running or service.engine.image or None,
        "engineImageFrom": "spec.engine.image" if service.engine.image else "the operator's default",
    }


def _manifest(manifest: ModelManifest) -> Told:
    return {
        "manifestDigest": manifest.digest,
        "source": manifest.source.uri,
        "sourceRevision": manifest.source.revision or None,
        "bytes": manifest.total_size,
        "files": [f.to_json() for f in manifest.files],
        "runtime": manifest.runtime.to_spec(),
    }


def _no_manifest(observed: Observed) -> Told:
    return {
        "manifestDigest": None,
        "manifestProblem": observed.manifest_problem or "it does not exist",
        "source": None,
        "sourceRevision": None,
        "bytes": None,
        "files": [],
        "runtime": None,
    }


def _pods(facts: Facts, service: InferenceService, observed: Observed, now: datetime) -> list[Told]:
    pinned = pins_of(observed, {Pod.from_body(p).pin for p in facts.pods})
    return [_pod(p, facts, service, pinned, now) for p in facts.pods]


def _pod(body: Body, facts: Facts, service: InferenceService, pinned: Mapping[str, Runtime], now: datetime) -> Told:
    """Of one pod; `pinned` is what manifests pin of engine and numerics, by digest."""
    pod, status = Pod.from_body(body), body.get("status", {})
    report = facts.reports.get(pod.name, Report(problem="it is not ready"))
    if not report.digest and pod.is_ready and pod.verified:
        report = replace(report, digest=pod.verified, problem="")  # its engine does not say; its init container did
    different = pinned.get(pod.pin, UNSAID).differences(report.runtime)
    containers = status.get("containerStatuses")
    return {
        "name": pod.name,
        "node": body["spec"].get("nodeName"),
        "revision": pod.revision or None,
        "ready": pod.is_ready,
        "ending": pod.is_ending,
        "quarantined": pod.quarantine or None,
        "verified": False if pod.is_quarantined or different else verdict(report, service.model.digest),
        "reported": report.digest or None,
        "runs": report.runtime.to_spec() or None,
        "differs": [str(d) for d in different],
        "notHeard": None if pod.is_quarantined else report.problem or None,
        "restarts": None if containers is None else sum(c.get("restartCount", 0) for c in containers),
        "ageSeconds": seconds_since(body["metadata"].get("creationTimestamp"), now),
        "problem": _fault(pod),
    }


def verdict(report: Report, pinned: str) -> bool | None:
    """Whether a pod says that it verified the pinned digest; None where it does not say."""
    return None if not report.digest else report.digest == pinned and report.digest != FILES_DIFFER


def _fault(pod: Pod) -> str | None:
    said = [f.termination.message if f.termination else f"{f.reason}: {f.message}" for f in pod.faults]
    return next(iter([*said, pod.unschedulable]), None) or None


def _replicas(body: Body, service: InferenceService, observed: Observed, now: datetime) -> Told:
    status, workload = body.get("status", {}), observed.workload
    counts = {
        "asked": workload.replicas if workload is not None else None,
        "running": len(observed.pods),
        "ready": len(observed.ready_pods),
        "verified": status.get("model", {}).get("verifiedReplicas"),
        "suspended": service.suspended,
    }
    if not isinstance(service.replicas, ScalingPolicy):
        return {**counts, "fixed": service.replicas}
    scaling = dict(status.get("scaling", {}))
    last = scaling.pop("lastScale", None)
    since = {"secondsAgo": seconds_since(last.get("time"), now)} if last else {}
    return {
        **counts,
        "policy": _policy(service.replicas),
        "decision": scaling or None,
        "lastScale": {**last, **since} if last else None,
    }


def _policy(policy: ScalingPolicy) -> Told:
    return {
        "mode": str(policy.mode),
        "minReplicas": policy.min_replicas,
        "maxReplicas": policy.max_replicas,
        "cacheUtilization": policy.up_target,
        "scaleDownUtilization": policy.down_target,
        "queueDepth": policy.queue_depth,
        "scaleUpWindowSeconds": policy.up.window,
        "scaleDownWindowSeconds": policy.down.window,
        "scaleUpLimit": str(policy.up) or None,
        "scaleDownLimit": str(policy.down) or None,
        "source": str(policy.source),
        "staleAfterSeconds": policy.stale_after,
    }


def _unhealthy(body: Body, now: datetime) -> list[Told]:
    """Conditions that are not as they should be; a Ready that only repeats Stalled is left out."""
    found = [c for c in conditions(body).values() if not is_healthy(c)]
    stalled = next((c["message"] for c in found if c["type"] == "Stalled"), None)
    told = [c for c in found if c["type"] == "Stalled" or c["message"] != stalled]
    entries = [
        {
            **{key: c.get(key) for key in ("type", "status", "reason", "message")},
            "seconds": seconds_since(c.get("lastTransitionTime"), now),
        }
        for c in told
    ]
    return entries if is_seen(body) else [{**what_matters(body), "seconds": None}, *entries]


def _rollout(body: Body, workload: Workload | None) -> Told:
    revision = body.get("status", {}).get("revision", {})
    complete = conditions(body).get("RolloutComplete") if is_seen(body) else None
    return {
        "underWay": None if complete is None else complete["status"] != "True",
        "current": revision.get("current"),
        "target": revision.get("target"),
        "updated": workload.updated if workload is not None else None,
        "total": workload.total if workload is not None else None,
    }


def _capacity(deployment: Body | None) -> Told | None:
    """What a roll-out takes besides, in pods, by the Deployment's own strategy."""
    rolling = (deployment or {}).get("spec", {}).get("strategy", {}).get("rollingUpdate")
    if deployment is None or rolling is None:
        return None
    count = deployment["spec"].get("replicas", 1)
    surge, missing = rolling.get("maxSurge", "25%"), rolling.get("maxUnavailable", "25%")
    more, fewer = share(surge, count, up=True), share(missing, count, up=False)
    if more == fewer == 0:
        fewer = 1  # so does the Deployment's controller: no pod could be replaced
    return {"maxSurge": surge, "maxUnavailable": missing, "podsMore": more, "podsFewer": fewer}


def share(value: int | str, count: int, *, up: bool) -> int:
    """`value` of `count` pods; a percentage is rounded up for a surge, down for what may be missing."""
    if isinstance(value, int):
        return value
    part = int(value.removesuffix("%")) * count / 100
    return math.ceil(part) if up else math.floor(part)


def _budget(budget: Body | None) -> Told | None:
    if budget is None:
        return None
    spec, status = budget["spec"], budget.get("status", {})
    return {
        "rule": {key: spec[key] for key in ("minAvailable", "maxUnavailable") if key in spec},
        "disruptionsAllowed": status.get("disruptionsAllowed"),
        "healthy": status.get("currentHealthy"),
        "needed": status.get("desiredHealthy"),
    }


def _drain(service: InferenceService, deployment: Body | None) -> Told:
    pod = deployment["spec"]["template"]["spec"] if deployment is not None else {}
    return {
        "timeoutSeconds": service.drain_timeout,
        "terminationGracePeriodSeconds": pod.get("terminationGracePeriodSeconds"),
    }


def _live(observed: Observed, kind: str) -> Body | None:
    return next((body for ref, body in observed.live.items() if ref.kind == kind), None)
