"""What GitOps tools do with a user's manifest, as far as it decides whether they see a difference."""

import copy
import json
from collections.abc import Mapping
from typing import Any

Object = dict[str, Any]

LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


def flux_drift(live: Object, dry_run: Object) -> list[str]:
    """Where a server-side dry run of the manifest differs from what is there.

    Source: github.com/fluxcd/pkg/ssa, `hasDrifted`: labels and annotations of the dry run have to be there, and what is
    left without metadata and status has to be equal.
    """
    found = [
        f"metadata.{part}.{key}"
        for part in ("labels", "annotations")
        for key, value in dry_run["metadata"].get(part, {}).items()
        if live["metadata"].get(part, {}).get(key) != value
    ]
    bare = [{k: v for k, v in o.items() if k not in ("metadata", "status")} for o in (live, dry_run)]
    return found + ([] if bare[0] == bare[1] else ["spec"])


def argo_drift(live: Object, wanted: Mapping[str, Any]) -> list[str]:
    """Top-level keys that Argo CD's three-way diff would change.

    Source: github.com/argoproj/gitops-engine, `ThreeWayDiff`: a JSON merge patch from what was last applied, the
    manifest and the live object, put on the live object; `status` of custom resources is left out.
    """
    kept = live["metadata"].get("annotations", {}).get(LAST_APPLIED)
    before = _normal(json.loads(kept)) if kept else {}
    now, asked = _normal(live), _normal(wanted)
    predicted = _merged(now, _three_way(before, now, asked))
    return sorted(key for key in {*predicted, *now} if predicted.get(key) != now.get(key))


def _normal(o: Mapping[str, Any]) -> Object:
    """Without what the API server and kubectl write."""
    bare = copy.deepcopy({key: value for key, value in o.items() if key != "status"})
    metadata = bare.get("metadata", {})
    for key in ("managedFields", "resourceVersion", "uid", "generation", "creationTimestamp", "namespace"):
        metadata.pop(key, None)
    annotations = metadata.get("annotations", {})
    annotations.pop(LAST_APPLIED, None)
    if not annotations:
        metadata.pop("annotations", None)
    return bare


def _three_way(before: Object, now: Object, asked: Object) -> Object:
    """What the manifest adds or changes, and null for what it no longer holds."""
    patch: Object = {}
    for key, value in asked.items():
        if isinstance(value, dict) and isinstance(now.get(key), dict):
            deeper = _three_way(before.get(key) or {}, now[key], value)
            patch |= {key: deeper} if deeper else {}
        elif now.get(key) != value:
            patch[key] = value
    return patch | {key: None for key in before if key not in asked and key in now}


def _merged(value: Object, patch: Object) -> Object:
    """RFC 7386."""
    made = copy.deepcopy(value)
    for key, change in patch.items():
        if change is None:
            made.pop(key, None)
        elif isinstance(change, dict):
            made[key] = _merged(made[key] if isinstance(made.get(key), dict) else {}, change)
        else:
            made[key] = change
    return made
