"""Whether a live object still is what was applied. Pure.

Two things must hold: its annotation names the same content, so that a field which is no longer wanted is noticed; and
every field that is wanted is there with its value, so that an edit by someone else is noticed.
"""

import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from . import names

_QUANTITY = re.compile(r"(\d+(?:\.\d+)?)(m|k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?")
_UNITS = {"m": Decimal("0.001")}
_UNITS |= {unit: Decimal(1000) ** i for i, unit in enumerate(("k", "M", "G", "T", "P"), 1)}
_UNITS |= {unit: Decimal(1024) ** i for i, unit in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi"), 1)}


def is_applied(wanted: Mapping[str, Any], live: Mapping[str, Any] | None) -> bool:
    """Whether applying `wanted` would change nothing."""
    if live is None:
        return False
    stamp = wanted["metadata"]["annotations"][names.APPLIED]
    return live["metadata"].get("annotations", {}).get(names.APPLIED) == stamp and covers(live, wanted)


def covers(live: Any, wanted: Any, *, quantities: bool = False) -> bool:
    """Whether `live` holds everything that `wanted` does; what the API server added does not count.

    Args:
        live: Any JSON value.
        wanted: Any JSON value.
        quantities: Strings are quantities, which the API server spells its own way: 1024Mi is 1Gi.
    """
    if isinstance(wanted, Mapping):
        if not isinstance(live, Mapping):
            return not wanted and live is None
        return all(
            covers(live.get(key), value, quantities=quantities or key in ("resources", "sizeLimit"))
            for key, value in wanted.items()
        )
    if isinstance(wanted, list | tuple):
        pairs = zip(live, wanted, strict=True) if isinstance(live, list) and len(live) == len(wanted) else None
        return pairs is not None and all(covers(have, want, quantities=quantities) for have, want in pairs)
    return bool(live == wanted) or (quantities and _amount(live) == _amount(wanted) != live)


def _amount(quantity: Any) -> Decimal | str:
    match = _QUANTITY.fullmatch(str(quantity))
    return Decimal(match[1]) * _UNITS.get(match[2], Decimal(1)) if match else str(quantity)
