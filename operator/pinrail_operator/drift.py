"""Whether a live object still is what was applied. Pure.

Two things must hold: its annotation names the same content, so that a field which is no longer wanted is noticed; and
every field that is wanted is there with its value, so that an edit by someone else is noticed.
"""

import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from . import names

_QUANTITY = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,2})?)([numkMGTPE]|[KMGTPE]i)?")
_UNITS = {unit: Decimal(1000) ** i for i, unit in enumerate(("n", "u", "m", "", "k", "M", "G", "T", "P", "E"), -3)}
_UNITS |= {unit: Decimal(1024) ** i for i, unit in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), 1)}

_CLOSED = ("NetworkPolicy",)
"""Kinds whose spec has to be what was applied and no more: what is added to a policy lets somebody in."""


def is_applied(wanted: Mapping[str, Any], live: Mapping[str, Any] | None) -> bool:
    """Whether applying `wanted` would change nothing."""
    if live is None:
        return False
    stamp = wanted["metadata"]["annotations"][names.APPLIED]
    is_whole = live["metadata"].get("annotations", {}).get(names.APPLIED) == stamp and covers(live, wanted)
    return is_whole and (wanted["kind"] not in _CLOSED or _without_empty(live) == _without_empty(wanted))


def covers(live: Any, wanted: Any, *, quantities: bool = False) -> bool:
    """Whether `live` holds everything that `wanted` does; what others added, the API server among them, does not count.

    Lists of named members are maps to server-side apply, where others may keep members of their own: taking `wanted`
    again would not remove those. The API server leaves out what is empty.

    Args:
        live: Any JSON value.
        wanted: Any JSON value.
        quantities: Strings are quantities, which the API server spells its own way: 1024Mi is 1Gi.
    """
    if live is None:
        return wanted is None or wanted in ("", [], (), {})
    if isinstance(wanted, Mapping):
        return isinstance(live, Mapping) and all(
            covers(live.get(key), value, quantities=quantities or key in ("resources", "sizeLimit"))
            for key, value in wanted.items()
        )
    if isinstance(wanted, list | tuple):
        if isinstance(live, list) and wanted and all(isinstance(m, Mapping) and "name" in m for m in wanted):
            return all(any(covers(have, want, quantities=quantities) for have in live) for want in wanted)
        pairs = zip(live, wanted, strict=True) if isinstance(live, list) and len(live) == len(wanted) else None
        return pairs is not None and all(covers(have, want, quantities=quantities) for have, want in pairs)
    return bool(live == wanted) or (quantities and _amount(live) == _amount(wanted) != live)


def dropped(wanted: Mapping[str, Any], live: Mapping[str, Any]) -> tuple[str, ...]:
    """Fields of a workload's pods that are wanted, and that `live`, which was applied just now, lacks altogether.

    An API server drops a field whose feature it has switched off, where it would refuse one that it does not know.
    """
    asked, made = (body.get("spec", {}).get("template", {}).get("spec", {}) for body in (wanted, live))
    return tuple(f"spec.template.spec.{key}" for key, value in asked.items() if value and key not in made)


def _without_empty(body: Mapping[str, Any]) -> dict[str, Any]:
    """A spec without its empty lists, which the API server leaves out; an empty selector further in selects all."""
    return {key: value for key, value in body["spec"].items() if value != []}


def _amount(quantity: Any) -> Decimal | str:
    match = _QUANTITY.fullmatch(str(quantity))
    return Decimal(match[1]) * _UNITS[match[2] or ""] if match else str(quantity)
