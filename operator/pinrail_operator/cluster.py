"""Reads and writes the cluster for one service at a time. I/O; what to write is `plan`'s and `status`'s to say."""

import asyncio
import hashlib
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, TypeVar

from pinrail_contract.errors import ManifestError
from pinrail_contract.pins import ModelManifest

from . import drift, names, startup_protection
from .api import Api
from .errors import Conflict, Missing, OperatorError, Refused
from .events import Event
from .observed import Observed, Pod, Ref, templates_by_revision
from .plan import Outcome, Plan
from .rollout import needs_templates
from .types import InferenceService, ServiceKey

log = logging.getLogger("pinrail.operator")

Body = Mapping[str, Any]
Part = TypeVar("Part")

_PATHS = {
    "ConfigMap": "/api/v1/namespaces/{}/configmaps",
    "Service": "/api/v1/namespaces/{}/services",
    "PodDisruptionBudget": "/apis/policy/v1/namespaces/{}/poddisruptionbudgets",
    "NetworkPolicy": "/apis/networking.k8s.io/v1/namespaces/{}/networkpolicies",
    "Deployment": "/apis/apps/v1/namespaces/{}/deployments",
    "InferenceService": "/apis/pinrail.dev/v1alpha1/namespaces/{}/inferenceservices",
    "ModelManifest": "/apis/pinrail.dev/v1alpha1/namespaces/{}/modelmanifests",
    "Pod": "/api/v1/namespaces/{}/pods",
    "ControllerRevision": "/apis/apps/v1/namespaces/{}/controllerrevisions",
    "ReplicaSet": "/apis/apps/v1/namespaces/{}/replicasets",
    "Event": "/api/v1/namespaces/{}/events",
}


@dataclass(frozen=True, slots=True)
class Cluster:
    api: Api

    async def service(self, key: ServiceKey) -> Body | None:
        return await self.api.get(_path("InferenceService", key.namespace, key.name))

    async def require_crds(self) -> None:
        """Raises OperatorError where the CRDs are not installed: nothing would be watched, without a word."""
        known = await self.api.get("/apis/pinrail.dev/v1alpha1")
        if known is None:
            raise OperatorError(
                "the API server knows no pinrail.dev/v1alpha1: install the CRDs, `kubectl apply -f crds/`"
            )

    async def observe(
        self, service: InferenceService, known: Observed | None = None, listed: Sequence[Body] | None = None
    ) -> Observed:
        """Everything that a reconcile decides from.

        Args:
            service: What is asked for.
            known: What was seen before, where all but the Deployment and its pods still is as it was; else it is read.
            listed: What `pods` returned, where it was asked already.
        """
        namespace, selector = service.key.namespace, _selector(service)
        ref = Ref("Deployment", names.deployment(service))
        deployment, bodies, quiet = await asyncio.gather(
            self.api.get(_path(ref.kind, namespace, ref.name)),
            self.pods(service) if listed is None else _given(listed),
            self._quiet(service) if known is None else _kept(known),
        )
        pods = [Pod.from_body(body) for body in bodies]
        seen = Observed(
            manifest=quiet.manifest,
            manifest_problem=quiet.problem,
            live={**({ref: deployment} if deployment is not None else {}), **quiet.live},
            pods=tuple(p for p in pods if not p.is_ending and not p.is_quarantined),
            ending=sum(p.is_ending for p in pods if not p.is_quarantined),
            quarantined=tuple(p for p in pods if not p.is_ending and p.is_quarantined),
            history=quiet.history,
        )
        if not needs_templates(service, seen):
            return seen
        replica_sets = await self.api.get(_path("ReplicaSet", namespace), labelSelector=selector)
        return replace(seen, templates=templates_by_revision((replica_sets or {}).get("items", [])))

    async def pods(self, service: InferenceService) -> Sequence[Body]:
        """All pods of a service, those that end or must not serve as well."""
        found = await self.api.get(_path("Pod", service.key.namespace), labelSelector=names.pods_selector(service))
        return tuple((found or {}).get("items", []))

    async def _quiet(self, service: InferenceService) -> "_Quiet":
        """What no controller writes: it changes by our hand, or by somebody's."""
        namespace = service.key.namespace
        refs = (
            Ref("Service", names.kubernetes_service(service)),
            Ref("PodDisruptionBudget", names.disruption_budget(service)),
        )
        policy = Ref("NetworkPolicy", names.network_policy(service))
        manifest, config_maps, history, *found = await asyncio.gather(
            self.api.get(_path("ModelManifest", namespace, service.model.manifest)),
            self.api.get(_path("ConfigMap", namespace), labelSelector=_selector(service)),
            self.api.get(_path("ControllerRevision", namespace), labelSelector=_selector(service)),
            *(self.api.get(_path(ref.kind, namespace, ref.name)) for ref in refs),
            self._if_allowed(_path(policy.kind, namespace, policy.name)),
        )
        live = {ref: body for ref, body in zip((*refs, policy), found, strict=True) if body is not None}
        live |= {
            Ref("ConfigMap", body["metadata"]["name"]): {"apiVersion": "v1", "kind": "ConfigMap", **body}
            for body in (config_maps or {}).get("items", [])  # members of a list do not say what they are
        }
        return _Quiet(*_manifest(manifest), live, tuple((history or {}).get("items", [])))

    async def _if_allowed(self, path: str) -> Body | None:
        """The object, or None where it may not be read: an operator whose rights are older than this field's.

        A service that asks for such an object has it applied, which is refused, and told; all others go on.
        """
        try:
            return await self.api.get(path)
        except Refused:
            return None

    async def apply(self, namespace: str, plan: Plan) -> Outcome:
        """Carry out a plan, in its order.

        What is refused of pods that must not serve, and of policies, and what the API server leaves a field of out,
        keeps nothing else from being done: the rest may be its cure, and what serves goes on. Any other refusal ends
        it there.
        """
        quarantine = await asyncio.gather(*(self._quarantine(namespace, pod) for pod in plan.quarantine))
        marks = await asyncio.gather(*(self._mark(namespace, pod, mark) for pod, mark in plan.marks))
        policies = await asyncio.gather(*(self._confine(namespace, policy) for policy in plan.policies))
        await asyncio.gather(*(self._unprotect(namespace, pod) for pod in plan.started))
        await asyncio.gather(*(self._set_cost(namespace, pod, cost) for pod, cost in plan.costs))
        refused = [*filter(None, (*quarantine, *marks, *policies))]
        beside = Plan(
            quarantine=_taken(plan.quarantine, quarantine),
            marks=_taken(plan.marks, marks),
            started=plan.started,
            costs=plan.costs,
            policies=_taken(plan.policies, policies),
        )
        return await self._write_in_order(namespace, plan, Outcome(beside, next(iter(refused), None)))

    async def _write_in_order(self, namespace: str, plan: Plan, so_far: Outcome) -> Outcome:
        """Go on from `so_far` with the parts that are carried out one object after the other."""
        done, refused, tried = so_far.done, so_far.refused, 0
        try:
            async for step, left_out in self._steps(namespace, plan):
                tried += 1
                done = done if left_out else done.with_step(step)
                refused = refused or left_out
        except Refused as e:
            return Outcome(done, e, is_scaled=tried >= len(plan.apply) + (plan.scale is not None))
        return Outcome(done, refused)

    async def _steps(self, namespace: str, plan: Plan) -> AsyncIterator[tuple[Plan, Refused | None]]:
        """Write each object; as a plan of its own, with what the API server leaves out of it."""
        for body in plan.apply:
            yield Plan(apply=(body,)), await self._apply(namespace, body, names.FIELD_MANAGER)
        if plan.scale is not None:
            yield Plan(scale=plan.scale), await self._apply(namespace, plan.scale, names.SCALER_FIELD_MANAGER)
        for body in plan.settle:
            yield Plan(settle=(body,)), await self._apply(namespace, body, names.FIELD_MANAGER)
        for ref in plan.delete:
            await self.api.delete(_path(ref.kind, namespace, ref.name))
            yield Plan(delete=(ref,)), None

    async def write_status(self, body: Body, status: Body) -> Body:
        """Replace the status; raises Conflict where the service has changed since `body` was read.

        Returns what the API server keeps of it: a CRD that is older than a field has it left out.
        """
        metadata = body["metadata"]
        path = _path("InferenceService", metadata["namespace"], metadata["name"]) + "/status"
        kept: Body = (await self.api.replace(path, {**body, "status": status}, names.FIELD_MANAGER)).get("status", {})
        return kept

    async def post(self, body: Body, event: Event) -> None:
        """Record an event on a service; one that says the same as an earlier one is dropped while that is kept."""
        try:
            await self.api.create(_path("Event", body["metadata"]["namespace"]), _event(body, event))
        except Conflict:
            return

    async def _quarantine(self, namespace: str, pod: Body) -> Refused | None:
        """The refusal where the pod may not be written; one whose owners may not be is left without ours."""
        try:
            await self._apply(namespace, pod, names.QUARANTINE_FIELD_MANAGER)
        except Refused as e:
            log.warning("owner of quarantined pod %s/%s: %s", namespace, pod["metadata"]["name"], e)
            metadata = {key: pod["metadata"][key] for key in ("labels", "annotations")}
            return await self._write_pod(namespace, pod["metadata"]["name"], metadata, names.QUARANTINE_FIELD_MANAGER)
        return None

    async def _confine(self, namespace: str, policy: Body) -> Refused | None:
        """The refusal, where the policy may not be written."""
        try:
            await self._apply(namespace, policy, names.FIELD_MANAGER)
        except Refused as e:
            return e
        return None

    async def _mark(self, namespace: str, pod: str, mark: str) -> Refused | None:
        """The refusal where the pod may not be written: then it is not selected, whatever it reported."""
        labels = {"labels": {names.SERVING: mark}}
        refused = await self._write_pod(namespace, pod, labels, names.QUARANTINE_FIELD_MANAGER)
        if refused is None:
            return None
        return Refused(f"label {names.SERVING} of pod {pod}, without which the Service leaves it out: {refused}")

    async def _unprotect(self, namespace: str, pod: str) -> None:
        """One that cannot be written stays protected, and so does its node; the next look tries again."""
        annotations = {"annotations": dict.fromkeys(startup_protection.WRITTEN)}
        if refused := await self._write_pod(namespace, pod, annotations, names.FIELD_MANAGER):
            log.warning("protection of %s/%s: %s", namespace, pod, refused)

    async def _set_cost(self, namespace: str, pod: str, cost: int) -> None:
        """A pod that may not be written keeps no scale-in from happening."""
        annotations = {"annotations": {names.DELETION_COST: str(cost)}}
        if refused := await self._write_pod(namespace, pod, annotations, names.SCALER_FIELD_MANAGER):
            log.warning("deletion cost of %s/%s: %s", namespace, pod, refused)

    async def _write_pod(self, namespace: str, pod: str, metadata: Body, manager: str) -> Refused | None:
        """The refusal, where the pod may not be written; one that is gone needs nothing."""
        try:
            await self.api.merge(_path("Pod", namespace, pod), {"metadata": metadata}, manager)
        except Missing:
            return None
        except Refused as e:
            return e
        return None

    async def _apply(self, namespace: str, body: Body, manager: str) -> Refused | None:
        """A refusal, where the API server takes the object and leaves a field of its pods out without a word."""
        made = await self.api.apply(_path(body["kind"], namespace, body["metadata"]["name"]), body, manager)
        if dropped := drift.dropped(body, made):
            seen = f"the API server leaves {', '.join(dropped)} of {body['kind']} {body['metadata']['name']} out"
            return Refused(f"{seen}: it is older than the field, or has its feature switched off")
        return None


@dataclass(frozen=True, slots=True)
class _Quiet:
    manifest: ModelManifest | None
    problem: str  # why it cannot be read
    live: Mapping[Ref, Body]  # our objects but the Deployment
    history: tuple[Body, ...]


def _taken(parts: tuple[Part, ...], refusals: Sequence[Refused | None]) -> tuple[Part, ...]:
    """Those that were not refused."""
    return tuple(part for part, refused in zip(parts, refusals, strict=True) if refused is None)


async def _given(listed: Sequence[Body]) -> Sequence[Body]:
    return listed


async def _kept(known: Observed) -> _Quiet:
    others = {ref: body for ref, body in known.live.items() if ref.kind != "Deployment"}
    return _Quiet(known.manifest, known.manifest_problem, others, known.history)


def _selector(service: InferenceService) -> str:
    return ",".join(f"{k}={v}" for k, v in names.selector(service).items())


def _path(kind: str, namespace: str, name: str = "") -> str:
    return _PATHS[kind].format(namespace) + (f"/{name}" if name else "")


def _manifest(body: Body | None) -> tuple[ModelManifest | None, str]:
    """The manifest, or why there is none."""
    if body is None:
        return None, ""
    try:
        return ModelManifest.from_spec(body.get("spec")), ""
    except ManifestError as e:
        return None, str(e)


def _event(body: Body, event: Event) -> dict[str, Any]:
    """Named by what it says, so that the API server itself drops the second of two alike."""
    metadata = body["metadata"]
    said = hashlib.sha256(f"{metadata['uid']} {event.reason} {event.message}".encode()).hexdigest()[:16]
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{metadata['name']}.{said}", "namespace": metadata["namespace"]},
        "involvedObject": {
            "apiVersion": body["apiVersion"],
            "kind": body["kind"],
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            "uid": metadata["uid"],
        },
        "type": str(event.type),
        "reason": event.reason,
        "message": event.message[:1024],
        "source": {"component": "pinrail"},
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }
