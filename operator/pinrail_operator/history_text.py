"""`pinrail history`: the revisions that a service has had, newest first, and what each one changed. Pure."""

from collections import Counter
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from . import history, names
from .diff import changes
from .errors import OperatorError
from .explain import Facts
from .phrases import age, seconds_since, short, table

Record = Mapping[str, Any]
Told = dict[str, Any]


def told(facts: Facts, now: datetime) -> list[Told]:
    """One entry a record; `changed` names the fields that differ from the revision before it, None for the first."""
    found = _records(facts)
    before: list[Record | None] = [*found[1:], None]
    pods = Counter(p["metadata"].get("labels", {}).get(names.REVISION, "") for p in facts.pods)
    return [_line(record, old, pods, now) for record, old in zip(found, before, strict=True)]


def record_of(facts: Facts, revision: str) -> Record:
    """The record of a revision, or of the newest that asks for something else.

    Raises OperatorError, with those that there are, where there is no such record.
    """
    found = _records(facts)
    others = [r for r in found if r["data"] != found[0]["data"]]  # by what they ask for, so that something comes back
    named = [r for r in found if history.revision_of(r) == revision] if revision else others
    if named:
        return named[0]
    name, there = facts.body["metadata"]["name"], ", ".join(history.revision_of(r) for r in found)
    seen = f"{name} has no record of revision {revision}" if revision else f"{name} has had no other revision"
    raise OperatorError(f"{seen}; there {'is none at all' if not there else f'are {there}'}")


def history_text(lines: list[Told]) -> str:
    if not lines:
        return "there is no record of a revision yet"
    return table([_row(line) for line in lines])


def _records(facts: Facts) -> tuple[Record, ...]:
    """Raises OperatorError where the spec cannot be read: it is not known whose records are whose."""
    if facts.service is None or facts.observed is None:
        raise OperatorError(facts.problem)
    return history.records(facts.service, facts.observed)


def _line(record: Record, before: Record | None, pods: Mapping[str, int], now: datetime) -> Told:
    spec = record["data"]["spec"]
    old = None if before is None else before["data"]["spec"]
    revision = history.revision_of(record)
    return {
        "revision": revision,
        "number": record["revision"],
        "ageSeconds": seconds_since(record["metadata"].get("creationTimestamp"), now),
        "pods": pods.get(revision, 0),
        "pinned": spec["model"]["digest"],
        "image": spec["engine"]["image"],
        "changed": None if old is None else [c["field"] for c in changes(old, spec, "spec")],
    }


def _row(line: Told) -> dict[str, str]:
    changed = line["changed"]
    return {
        "NUMBER": str(line["number"]),
        "REVISION": line["revision"],
        "AGE": age(line["ageSeconds"]),
        "PODS": str(line["pods"]),
        "PIN": short(line["pinned"]),
        "IMAGE": short(line["image"].rpartition("@")[2]) if "@" in line["image"] else line["image"],
        "CHANGED": "-" if changed is None else ", ".join(changed) or "nothing of the spec",
    }
