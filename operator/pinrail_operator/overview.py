"""`pinrail status`: the facts of each service that fit one line, from its spec and status alone. Pure."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from pinrail_contract.runtime import line_of

from .phrases import NOT_KNOWN, age, conditions, is_healthy, is_seen, known, seconds_since, short, table

Body = Mapping[str, Any]
Told = dict[str, Any]


def overview(bodies: Sequence[Body], now: datetime) -> list[Told]:
    """One entry for each service, by namespace and name; None stands for what is not known."""
    ordered = sorted(bodies, key=lambda b: (b["metadata"]["namespace"], b["metadata"]["name"]))
    return [_line(b, now) for b in ordered]


def _line(body: Body, now: datetime) -> Told:
    metadata, spec, status = body["metadata"], body.get("spec", {}), body.get("status", {})
    revision, scaling, model = status.get("revision", {}), status.get("scaling", {}), status.get("model", {})
    return {
        "namespace": metadata["namespace"],
        "name": metadata["name"],
        "pinned": spec.get("model", {}).get("digest"),
        "served": model.get("digest"),
        "verified": model.get("verifiedReplicas"),
        "engineVersion": model.get("engineVersion"),
        "numerics": model.get("numerics"),
        "ready": status.get("readyReplicas"),
        "desired": _desired(spec, status),
        "scaling": scaling.get("reason") if "scaling" in spec else "Fixed",
        "revision": {"current": revision.get("current"), "target": revision.get("target")},
        "condition": what_matters(body),
        "ageSeconds": seconds_since(metadata.get("creationTimestamp"), now),
    }


def _desired(spec: Body, status: Body) -> Any:
    """What is asked for, as far as spec and status say it; None before the scaler has spoken, or where it is off."""
    scaling = spec.get("scaling")
    if spec.get("suspend"):
        return 0
    if scaling is None:
        return spec.get("replicas")
    if scaling.get("mode", "Active") != "Active":
        return status.get("replicas")
    return status.get("scaling", {}).get("desiredReplicas")


def what_matters(body: Body) -> Told:
    """The one condition that a person should read, as `type`, `status`, `reason` and `message`.

    | status                          | shown                                |
    |---------------------------------|--------------------------------------|
    | none, or of an older spec       | NotSeen, made up here                |
    | Stalled is True                 | Stalled                              |
    | Ready is not True               | Ready                                |
    | Ready, and Reconciling is True  | Reconciling                          |
    | Ready, and another is unhealthy | the first of those, such as verified |
    | all healthy                     | Ready                                |
    """
    found = conditions(body)
    if not found or not is_seen(body):
        generation = body["metadata"].get("generation")
        message = f"the operator has not reported on generation {generation} yet; next: see whether it runs"
        return {"type": "Ready", "status": "Unknown", "reason": "NotSeen", "message": message}
    order = ("Stalled", "Ready", "Reconciling", *found)
    shown = next((found[t] for t in order if t in found and not is_healthy(found[t])), found.get("Ready"))
    told = shown or next(iter(found.values()))
    return {key: told[key] for key in ("type", "status", "reason", "message")}


def overview_text(lines: list[Told], *, namespaces: bool, details: bool) -> str:
    """A table.

    Args:
        lines: What `overview` returned.
        namespaces: Whether a column names them.
        details: Whether the condition's message follows, as for a single service.
    """
    if not lines:
        return "there is no InferenceService"
    rows = [_row(line) for line in lines]
    if not namespaces:
        rows = [{key: value for key, value in row.items() if key != "NAMESPACE"} for row in rows]
    return "\n".join([table(list(rows)), *(_details(line) for line in lines if details)])


def _details(line: Told) -> str:
    """What runs, as all ready replicas report it, and what its condition says."""
    numerics = {"numerics": line["numerics"]} if line["numerics"] else {}
    runs = line_of({"engine": {"version": line["engineVersion"] or NOT_KNOWN}, **numerics})
    return f"\nruns {runs}\n{line['condition']['type']}: {line['condition']['message']}"


def _row(line: Told) -> dict[str, str]:
    return {
        "NAMESPACE": line["namespace"],
        "NAME": line["name"],
        "PIN": short(line["pinned"] or ""),
        "ENGINE": line["engineVersion"] or "?",
        "VERIFIED": f"{_count(line['verified'])}/{_count(line['ready'])}",
        "READY": f"{_count(line['ready'])}/{_count(line['desired'])}",
        "SCALING": known(line["scaling"]),
        "REVISION": _revision(line["revision"]),
        "CONDITION": line["condition"]["reason"],
        "AGE": age(line["ageSeconds"]),
    }


def _count(number: int | None) -> str:
    return "?" if number is None else str(number)


def _revision(revision: Mapping[str, str | None]) -> str:
    current, target = revision["current"] or "none", revision["target"] or "none"
    return current if current == target else f"{current}→{target}"
