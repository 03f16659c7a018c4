"""Every object that one service consists of, as Kubernetes reads it. Pure.

None of them says how many replicas there are: that field of the Deployment belongs to the scaler alone. Only a
Deployment that is made for the first time does, or a pod would start before the scaler has spoken.
"""

import contextlib
import json
from collections.abc import Mapping
from typing import Any

from pinrail_contract import endpoints
from pinrail_contract.access import endpoint_variable
from pinrail_contract.errors import ManifestError
from pinrail_contract.pins import API_VERSION, KIND, ModelManifest, Source

from . import environment, names, network_policy, pods
from .network_policy import Older
from .observed import Ref, is_owned_by
from .quarantine import CLEAR, SERVES, Verdict, Wrong
from .rollout import PROCEED, Action, Course
from .types import KIND as SERVICE_KIND
from .types import InferenceService

Object = dict[str, Any]

KINDS = ("NetworkPolicy", "ConfigMap", "Service", "PodDisruptionBudget", "Deployment")
"""In the order in which they are applied: pods are confined before they start, and start with what they mount."""

_NONE_OLDER = Older()


def objects_for(
    service: InferenceService,
    manifest: ModelManifest,
    image: str,
    course: Course = PROCEED,
    verdict: Verdict = CLEAR,
    older: Older = _NONE_OLDER,
) -> tuple[Object, ...]:
    """What the cluster should hold, in the order of `KINDS`; `older` is of pods that are yet to go."""
    return (
        *([_stamped(_network_policy(service, manifest.source, older))] if service.network.enabled else []),
        _stamped(_config_map(service, manifest)),
        kubernetes_service(service, verdict),
        _stamped(_disruption_budget(service)),
        _stamped(_steered(_held(_deployment(service, manifest, image), verdict, course), course)),
    )


def kubernetes_service(service: InferenceService, verdict: Verdict) -> Object:
    """It needs no manifest: what is barred is kept from answering though all else is blocked."""
    return _stamped(_service(service, verdict))


def replicas(service: InferenceService, count: int) -> Object:
    """What the scaler applies, and all that it owns."""
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": names.deployment(service), "namespace": service.key.namespace},
        "spec": {"replicas": count},
    }


def quarantined(service: InferenceService, wrong: Wrong) -> Object:
    """What is applied to a pod that must not serve: no selector of ours matches it then, and the service owns it."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": wrong.pod.name,
            "namespace": service.key.namespace,
            "uid": wrong.pod.uid,
            "labels": {names.SERVICE: service.key.name + names.QUARANTINED},
            "annotations": {names.QUARANTINE: str(wrong)},
            "ownerReferences": [{**_owner(service), "controller": False}],
        },
    }


def newborn(deployment: Mapping[str, Any], count: int) -> Object:
    """The Deployment as it is first made: with its replicas, and without the stamp of one that is complete."""
    metadata = {key: value for key, value in deployment["metadata"].items() if key != "annotations"}
    return {**deployment, "metadata": metadata, "spec": {**deployment["spec"], "replicas": count}}


def _deployment(service: InferenceService, manifest: ModelManifest, image: str) -> Object:
    rollout = service.rollout
    return {
        **head("apps/v1", "Deployment", names.deployment(service), service),
        "spec": {
            "selector": {"matchLabels": names.selector(service)},
            "strategy": {
                "type": "RollingUpdate",
                "rollingUpdate": {"maxSurge": rollout.max_surge, "maxUnavailable": rollout.max_unavailable},
            },
            "progressDeadlineSeconds": rollout.progress_deadline or pods.startup_seconds(manifest) + 60,
            "revisionHistoryLimit": service.revision_history,
            "template": pods.template(service, manifest, image),
        },
    }


def _held(deployment: Object, verdict: Verdict, course: Course) -> Object:
    """The Deployment while its roll-out stands still; one that is aborted has to go back."""
    is_held = verdict.is_held and course.action is not Action.ABORT
    return {**deployment, "spec": {**deployment["spec"], "paused": True}} if is_held else deployment


def _steered(deployment: Object, course: Course) -> Object:
    """The Deployment while its roll-out is helped along, marked with what was begun."""
    if course.action is Action.PROCEED:
        return deployment
    metadata = {**deployment["metadata"], "annotations": {names.ROLLOUT: str(course.mark)}}
    changed: Object = {"template": course.template} if course.action is Action.ABORT else {"strategy": _ONE_GOES_FIRST}
    return {**deployment, "metadata": metadata, "spec": {**deployment["spec"], **changed}}


_ONE_GOES_FIRST = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}


def _service(service: InferenceService, verdict: Verdict) -> Object:
    port = {"name": endpoints.PORT_NAME, "port": 80, "targetPort": endpoints.PORT_NAME, "protocol": "TCP"}
    marked = {names.SERVING: SERVES} if verdict.is_guarded else {}
    return {
        **head("v1", "Service", names.kubernetes_service(service), service),
        "spec": {"type": "ClusterIP", "selector": {**names.selector(service), **marked}, "ports": [port]},
    }


def _config_map(service: InferenceService, manifest: ModelManifest) -> Object:
    document = {"apiVersion": API_VERSION, "kind": KIND, "spec": manifest.to_spec()}
    return {
        **head("v1", "ConfigMap", names.config_map(service, manifest), service),
        "immutable": True,
        "data": {pods.MANIFEST_FILE: json.dumps(document, sort_keys=True)},
    }


def mounted_sources(service: InferenceService, live: Mapping[Ref, Mapping[str, Any]]) -> tuple[Source, ...]:
    """What a policy has to know besides the manifest: the sources that our ConfigMaps name.

    One goes when no pod mounts it, so those of older pods are there.
    """
    if not service.network.enabled:
        return ()
    ours = [o for ref, o in sorted(live.items()) if ref.kind == "ConfigMap" and is_owned_by(o, service.uid)]
    found = []
    for config_map in ours:
        with contextlib.suppress(ManifestError, ValueError, KeyError, TypeError):  # somebody's: no pod of ours needs it
            document = json.loads(config_map["data"][pods.MANIFEST_FILE])
            found.append(Source.from_json(document["spec"]["source"], "spec.source"))
    return tuple(found)


def _disruption_budget(service: InferenceService) -> Object:
    """Counts ready replicas, and protects them alone.

    | unhealthyPodEvictionPolicy | a pod that is not ready may be evicted                                  |
    |----------------------------|-------------------------------------------------------------------------|
    | IfHealthyBudget (default)  | while as many are ready as the budget wants, and so a broken one never  |
    |                            | where it is missed: a node with it cannot be drained                    |
    | AlwaysAllow                | at any time; one that only loads begins again on another node           |

    Neither keeps one that loads from `kubectl drain`: with a budget of one missing pod it is itself that one.
    """
    allowed = {"maxUnavailable": 1} if service.min_available is None else {"minAvailable": service.min_available}
    return {
        **head("policy/v1", "PodDisruptionBudget", names.disruption_budget(service), service),
        "spec": {
            "selector": {"matchLabels": names.selector(service)},
            **allowed,
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    }


def _network_policy(service: InferenceService, source: Source, older: Older) -> Object:
    """Of all pods, whatever their revision, and of those in quarantine, which are not let off."""
    sources, variables = (source, *older.sources), (_told_to_fetch(service, source), *older.variables)
    return {
        **head("networking.k8s.io/v1", "NetworkPolicy", names.network_policy(service), service),
        "spec": {
            "podSelector": names.all_pods(service),
            "policyTypes": ["Ingress", "Egress"],
            "ingress": network_policy.ingress(service.network, service.operator_namespace),
            "egress": network_policy.egress(sources, variables, service.engine.traces_endpoint, service.network.ports),
        },
    }


def _told_to_fetch(service: InferenceService, source: Source) -> dict[str, str]:
    """What the container that fetches is told in plain values: an endpoint of the spec stands above a variable's."""
    endpoint = service.model.access.used_by(source).endpoint
    given = {endpoint_variable(source): endpoint} if endpoint else {}
    return {**dict(environment.plain(service.engine.env)), **given}


def head(api_version: str, kind: str, name: str, service: InferenceService) -> Object:
    """What every object of a service begins with: its labels, and whose it is."""
    return {
        "apiVersion": api_version,
        "kind": kind,
        "metadata": {
            "name": name,
            "namespace": service.key.namespace,
            "labels": names.labels(service),
            "ownerReferences": [_owner(service)],
        },
    }


def _owner(service: InferenceService) -> Object:
    return {
        "apiVersion": API_VERSION,
        "kind": SERVICE_KIND,
        "name": service.key.name,
        "uid": service.uid,
        "controller": True,
        "blockOwnerDeletion": False,
    }


def _stamped(body: Object) -> Object:
    """The object with the hash of itself, which a live one is compared by."""
    annotations = {**body["metadata"].get("annotations", {}), names.APPLIED: names.digest_of(body)}
    return {**body, "metadata": {**body["metadata"], "annotations": annotations}}
