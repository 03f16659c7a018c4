"""`pinrail diff`: what applying documents would change, and what that does to pods. Pure.

A document is taken as the whole of what is asked for: a field that it leaves out goes back to the schema's default, as
with `kubectl apply` by the same person each time. Labels and annotations that others added stay, and do not count.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from pinrail_contract.errors import PinrailError
from pinrail_contract.pins import KIND as MANIFEST_KIND
from pinrail_contract.pins import ModelManifest

from . import checks, history
from .checks import Blocked
from .errors import SpecError
from .explain import running_image
from .observed import Observed
from .prospect import prospect
from .scaling_policy import ScalingPolicy
from .types import KIND, InferenceService
from .verifier import with_verifier
from .words import are, counted

Body = Mapping[str, Any]
Told = dict[str, Any]

KINDS = (KIND, MANIFEST_KIND)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One document, and what the cluster holds of that name."""

    new: Body  # with its namespace
    old: Body | None
    schema: Body  # the cluster's, for its defaults; empty where it is not known


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What a service's document meets in the cluster."""

    observed: Observed  # with the manifest that will stand after the apply
    now: datetime
    operator_image: str  # the default of the operator that runs; empty where that is not known
    host_caches: frozenset[str] | None = None  # folders of nodes that it takes as caches; None where that is not known


def compared(pair: Pair, around: Surroundings | None) -> Told:
    """What would change, and what refuses it.

    Args:
        pair: The document and what there is.
        around: For a service whose spec can be read; None for a manifest, or a spec that cannot.
    """
    old, new = pair.old, pair.new
    fields = [] if old is None else [*_metadata_changes(old, new), *_spec_changes(pair)]
    change = "create" if old is None else "change" if fields else "none"
    told = {
        "kind": new["kind"],
        "namespace": new["metadata"]["namespace"],
        "name": new["metadata"]["name"],
        "change": change,
        "fields": fields,
        "defaultsKnown": bool(pair.schema),
    }
    if new["kind"] == MANIFEST_KIND:
        return {**told, "refusals": manifest_refusals(pair, fields), "pods": None}
    service, problem = parsed(pair)
    if service is None or around is None:
        return {**told, "refusals": [problem], "pods": None}
    return {**told, **consequence(pair, service, around)}


def parsed(pair: Pair) -> tuple[InferenceService | None, str]:
    """The service that a document asks for, with the uid of the one that it replaces; or why it cannot be read."""
    kept = {key: (pair.old or {}).get("metadata", {}).get(key) for key in ("uid", "generation")}
    metadata = {**pair.new["metadata"], **{key: value for key, value in kept.items() if value}}
    try:
        return InferenceService.from_body({**pair.new, "metadata": metadata}), ""
    except SpecError as e:
        return None, str(e)


def manifest_refusals(pair: Pair, fields: list[Told]) -> list[str]:
    try:
        ModelManifest.from_spec(pair.new.get("spec"))
    except PinrailError as e:
        return [str(e)]
    changed = [f["field"] for f in fields if f["field"].startswith("spec")]
    if changed:
        wanted = f"a ModelManifest cannot be changed; {', '.join(changed)} would be; next: give it another name"
        return [f"spec: {wanted}, and name that in spec.model.manifestRef"]
    return []


def consequence(pair: Pair, service: InferenceService, around: Surroundings) -> Told:
    """`refusals`, and `pods`: whether they restart and how many replicas move.

    | what is so                                | restart | replicas that move              |
    |-------------------------------------------|---------|---------------------------------|
    | something blocks, or spec.paused is true  | false   | none: what runs is left alone   |
    | no engine image is known                  | None    | None                            |
    | there is no Deployment                    | false   | those that start                |
    | the Deployment's revision is the new one  | false   | those that are added or removed |
    | it is another one                         | true    | all that run or will            |

    The new revision is the one that an aborted roll-out went back to, where it was this one's.
    """
    observed, image = around.observed, default_image(pair.old, around) if not service.engine.image else ""
    image = service.engine.image or image
    service = with_verifier(service, observed, around.operator_image).asked_from(observed.operator_namespace)
    blocker = checks.first_blocker(service, observed, image, around.host_caches)
    if blocker is not None and blocker.reason is Blocked.IMAGE_MISSING:
        return {"refusals": [], "pods": _unknown(observed)}
    if blocker is not None:
        return {"refusals": [f"{blocker.reason}: {blocker.message}"], "pods": _untouched(observed, "blocked")}
    if service.paused:
        return {"refusals": [], "pods": _untouched(observed, "spec.paused is true")}
    assert observed.manifest is not None, "or a check would have failed"
    now = observed.workload
    ahead = prospect(service, observed, None, image, around.now)
    then = ahead.revision
    before, after = (now.replicas if now is not None else 0), replicas_after(service, observed)
    restart = now is not None and now.revision != then and before > 0
    return {
        "refusals": [],
        "pods": {
            "restart": restart,
            "why": _why(now is not None, restart, now is not None and now.revision == then),
            "revision": {"old": now.revision if now is not None else None, "new": then},
            "image": image,
            "replicas": {"old": before, "new": after},
            "moved": max(before, after) if restart else abs(after - before),
            "maxSurge": service.rollout.max_surge,
            "maxUnavailable": service.rollout.max_unavailable,
            "writes": sorted({str(o["kind"]) for o in (*ahead.plan.policies, *ahead.plan.apply, *ahead.plan.settle)}),
            "steered": ahead.steered or None,
        },
    }


def default_image(old: Body | None, around: Surroundings) -> str:
    """The image of a service that names none: what it runs with already, else what the operator is given."""
    names_one = bool(((old or {}).get("spec", {}).get("engine") or {}).get("image"))
    running = "" if old is None or names_one else running_image(around.observed)
    return running or around.operator_image


def replicas_after(service: InferenceService, observed: Observed) -> int:
    """How many the Deployment will ask for, before any load is looked at."""
    now = observed.workload
    if service.suspended or not isinstance(service.replicas, ScalingPolicy) or now is None or now.replicas == 0:
        return service.least_replicas
    return service.replicas.clamp(now.replicas)


def _why(exists: bool, restart: bool, same: bool) -> str:
    if restart:
        return "what a pod is made of changes"
    if not exists:
        return "there is none yet"
    return "the revision stays the same" if same else "none runs"


def _unknown(observed: Observed) -> Told:
    why = "the operator's default engine image is not known: no operator's Deployment can be read, or several differ"
    return {**_still(observed), "restart": None, "why": why, "moved": None}


def _untouched(observed: Observed, why: str) -> Told:
    return {**_still(observed), "restart": False, "why": f"{why}: what runs is left as it is", "moved": 0}


def _still(observed: Observed) -> Told:
    now = observed.workload
    count = now.replicas if now is not None else 0
    return {
        "revision": {"old": now.revision if now is not None else None, "new": None},
        "image": None,
        "replicas": {"old": count, "new": count},
        "writes": [],
    }


def exit_code(told: list[Told]) -> int:
    """0: nothing would change, 1: something would, 2: something is refused."""
    if any(t["refusals"] for t in told):
        return 2
    return int(any(t["change"] != "none" or _acts(t["pods"]) for t in told))


def _acts(told: Told | None) -> bool:
    """A record of the revision alone, as of an operator that is not upgraded yet, changes nothing that runs."""
    if told is None:
        return False
    return told["restart"] is not False or told["moved"] != 0 or bool({*told["writes"]} - {history.RECORD})


def with_manifest(observed: Observed, document: Body | None) -> Observed:
    """What will be observed once a ModelManifest of the same file is there too."""
    if document is None:
        return observed
    try:
        return replace(observed, manifest=ModelManifest.from_spec(document.get("spec")), manifest_problem="")
    except PinrailError as e:
        return replace(observed, manifest=None, manifest_problem=str(e))


def defaulted(schema: Body, value: Any) -> Any:
    """What the API server makes of a value: the schema's defaults filled in, at every depth."""
    if isinstance(value, list):
        return [defaulted(schema.get("items", {}), v) for v in value]
    if not isinstance(value, Mapping):
        return value
    properties: Mapping[str, Body] = schema.get("properties", {})
    defaults = {k: p["default"] for k, p in properties.items() if "default" in p}
    return {k: defaulted(properties.get(k, {}), v) for k, v in {**defaults, **_without_nulls(value)}.items()}


def _without_nulls(value: Body) -> Body:
    """The API server drops a null where a default is known, and shows no other."""
    return {k: v for k, v in value.items() if v is not None}


def _spec_changes(pair: Pair) -> Iterator[Told]:
    schema = pair.schema.get("properties", {}).get("spec", {})
    old, new = ((b or {}).get("spec", {}) for b in (pair.old, pair.new))
    return changes(defaulted(schema, old), defaulted(schema, new), "spec")


def _metadata_changes(old: Body, new: Body) -> Iterator[Told]:
    """Labels and annotations that the document names."""
    for part in ("labels", "annotations"):
        has, wanted = old["metadata"].get(part) or {}, new["metadata"].get(part) or {}
        yield from changes({k: has[k] for k in wanted if k in has}, wanted, f"metadata.{part}")


def changes(old: Any, new: Any, path: str) -> Iterator[Told]:
    """The smallest fields that differ; lists member by member where they are of one length, else as a whole."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in sorted({*old, *new}):
            yield from changes(old.get(key), new.get(key), f"{path}.{key}")
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for i, (before, after) in enumerate(zip(old, new, strict=True)):
            yield from changes(before, after, f"{path}[{i}]")
    elif old != new:
        yield {"field": path, "old": old, "new": new}


def diff_text(told: list[Told]) -> str:
    """One paragraph for each document."""
    return "\n\n".join("\n".join(_paragraph(t)) for t in told)


def _paragraph(told: Told) -> Iterator[str]:
    state = {"create": "is created", "change": "changes", "none": "no field changes"}[told["change"]]
    yield f"{told['kind']} {told['namespace']}/{told['name']}: {'REFUSED' if told['refusals'] else state}"
    for f in told["fields"]:
        yield f"  {f['field']}: {_shown(f['old'])} → {_shown(f['new'])}"
    if told["fields"] and not told["defaultsKnown"]:
        yield "  the cluster's schema cannot be read: a default that the file leaves out shows as a change"
    yield from (f"  refused: {r}" for r in told["refusals"])
    yield from (f"  {line}" for line in _pods(told["pods"]))


def _pods(told: Told | None) -> Iterator[str]:
    if told is None:
        return
    answer = {True: "RESTART", False: "do not restart", None: "restart: not known"}[told["restart"]]
    old, new = told["revision"]["old"], told["revision"]["new"]
    move = "" if new is None or old == new else f" (revision {old or 'none'} → {new})"
    yield f"pods {answer}: {told['why']}{move}"
    if told["moved"]:
        yield _moved(told)
    if told.get("steered"):
        yield told["steered"]
    if told["writes"]:
        yield f"the operator writes: {', '.join(told['writes'])}"


def _moved(told: Told) -> str:
    before, after = told["replicas"]["old"], told["replicas"]["new"]
    if told["restart"]:
        rule = f"maxSurge {told['maxSurge']}, maxUnavailable {told['maxUnavailable']}"
        return f"{counted(told['moved'], 'replica')} {are(told['moved'])} replaced ({before} → {after}; {rule})"
    verb = "started" if after > before else "removed"
    return f"{counted(told['moved'], 'replica')} {are(told['moved'])} {verb} ({before} → {after})"


def _shown(value: Any) -> str:
    return "unset" if value is None else f'"{value}"' if value == "" else str(value)
