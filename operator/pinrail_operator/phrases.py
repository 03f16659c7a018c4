"""How facts of a cluster are put for a person: ages, sizes, digests, conditions, tables. Pure."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

NOT_KNOWN = "not known"


def seconds_since(stamp: str | None, now: datetime) -> int | None:
    """Whole seconds since a time as Kubernetes writes it; None where there is none."""
    if not stamp:
        return None
    return max(0, int((now - datetime.fromisoformat(stamp).astimezone(UTC)).total_seconds()))


def age(seconds: int | None) -> str:
    """`42s`, `5m`, `7h`, `12d`: the largest unit that is two or more of, as kubectl rounds."""
    if seconds is None:
        return NOT_KNOWN
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length}{unit}"
    return f"{seconds}s"


def size(count: int) -> str:
    """Bytes in decimal units: `512 B`, `271 MB`."""
    for unit, length in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= length:
            return f"{count / length:.3g} {unit}" if count < 1000 * length else f"{count // length} {unit}"
    return f"{count} B"


def short(digest: str) -> str:
    """Twelve hex digits of a digest, as container tools show them."""
    return digest.removeprefix("sha256:")[:12] if digest else "-"


def known(value: Any) -> str:
    """The value, or that it is not known; what is empty is not known either."""
    return NOT_KNOWN if value is None or value == "" else str(value)


def conditions(body: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """A resource's conditions by their type."""
    return {c["type"]: c for c in body.get("status", {}).get("conditions", [])}


def is_seen(body: Mapping[str, Any]) -> bool:
    """Whether the operator's status is about the newest spec."""
    generation = body["metadata"].get("generation", 0)
    return bool(body.get("status", {}).get("observedGeneration", -1) == generation)


def is_healthy(condition: Mapping[str, Any]) -> bool:
    """True is healthy for all but Stalled and Reconciling."""
    wanted = "False" if condition["type"] in ("Stalled", "Reconciling") else "True"
    return bool(condition["status"] == wanted)


def table(rows: list[Mapping[str, str]]) -> str:
    """Rows of the same columns below their names, aligned."""
    columns = list(rows[0])
    lines = [columns, *([row[c] for c in columns] for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
    return "\n".join("  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in lines)
