"""The revisions that a service has had, kept as ControllerRevisions: what each one's pods were made from. Pure.

A record holds the fields of the spec that pods are made from, as they were written, and the image that was meant, so
that to apply it again gives the very same revision, whose ReplicaSet may still be there; for an engine that ours
verifies for, so long as the operator's own engine image is the same. Records are written once; only
their number moves, when the service comes back to one.
"""

from collections.abc import Mapping
from typing import Any

from pinrail_contract.pins import API_VERSION

from . import names
from .manifests import head
from .observed import Observed, Ref, is_owned_by
from .types import KIND as SERVICE_KIND
from .types import InferenceService

Object = Mapping[str, Any]

RECORD = "ControllerRevision"

_NOT_OF_PODS = {"replicas", "scaling", "disruption", "rollout", "revisionHistoryLimit", "paused", "suspend"}
"""Fields of the spec that change no pod, but for one of `disruption`."""

_OF_PODS = "protectStartup"

_POLICY = "networkPolicy"
"""The field of `security` that changes no pod, and that no record brings back."""


def records(service: InferenceService, observed: Observed) -> tuple[Object, ...]:
    """This very service's own, newest first."""
    ours = (r for r in observed.history if is_owned_by(r, service.uid))
    return tuple(sorted(ours, key=lambda r: int(r["revision"]), reverse=True))


def due(service: InferenceService, observed: Observed, target: str, image: str) -> tuple[Object, ...]:
    """What to apply so that the newest record is the target's: nothing, or that one."""
    known = records(service, observed)
    name = names.record(service, target)
    if not target or (known and known[0]["metadata"]["name"] == name):
        return ()
    if any(r["metadata"]["name"] == name and r not in known for r in observed.history):
        return ()  # somebody else's, and not worth a refusal
    earlier = next((r for r in known if r["metadata"]["name"] == name), None)
    wanted = head("apps/v1", RECORD, name, service)
    labels = {**wanted["metadata"]["labels"], names.REVISION: target}
    return (
        {
            **wanted,
            "metadata": {**wanted["metadata"], "labels": labels},
            "data": earlier["data"] if earlier is not None else _written(service, image),
            "revision": int(known[0]["revision"]) + 1 if known else 1,
        },
    )


def left_over(service: InferenceService, observed: Observed, target: str) -> tuple[Ref, ...]:
    """Records of revisions beyond `revisionHistoryLimit` that neither pods nor the Deployment are of."""
    workload = observed.workload
    pods = (*observed.pods, *observed.quarantined)
    in_use = {target, *(p.revision for p in pods), *([workload.revision] if workload is not None else [])}
    old = [r for r in records(service, observed) if revision_of(r) not in in_use]
    return tuple(Ref(RECORD, r["metadata"]["name"]) for r in old[service.revision_history :])


def revision_of(record: Object) -> str:
    return str(record["metadata"].get("labels", {}).get(names.REVISION, ""))


def restored(record: Object, spec: Object) -> dict[str, Any]:
    """A spec that asks for a record's pods, and in all else for what `spec` asks for."""
    then, now = _without_policy(record["data"]["spec"]), {k: v for k, v in spec.items() if k in _NOT_OF_PODS}
    kept = {k: v for k, v in now.get("disruption", {}).items() if k != _OF_PODS}
    disruption = {**kept, **then.get("disruption", {})}
    confined = {k: v for k, v in spec.get("security", {}).items() if k == _POLICY}
    security = {**then.get("security", {}), **confined}
    return {
        **then,
        **now,
        **({"disruption": disruption} if "disruption" in {*then, *now} else {}),
        **({"security": security} if security else {}),
    }


def _without_policy(spec: Object) -> dict[str, Any]:
    """A spec without its NetworkPolicy, and without `security` where nothing else is in it."""
    security = {k: v for k, v in spec.get("security", {}).items() if k != _POLICY}
    others = {k: v for k, v in spec.items() if k != "security"}
    return {**others, **({"security": security} if security else {})}


def _written(service: InferenceService, image: str) -> dict[str, Any]:
    """With the image by name: the operator's default may be another one by the time that it is wanted again."""
    fields = {k: v for k, v in _without_policy(service.written).items() if k not in _NOT_OF_PODS}
    of_pods = {"disruption": {_OF_PODS: True}} if service.protects_startup else {}
    spec = {**fields, **of_pods, "engine": {**fields.get("engine", {}), "image": image}}
    return {"apiVersion": API_VERSION, "kind": SERVICE_KIND, "spec": spec}
