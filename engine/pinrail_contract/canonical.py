"""Canonical JSON: the one byte string that a digest is taken of. Pure.

UTF-8, keys sorted, no white space, no floats (1.0 and 1 would be two spellings of one value), no duplicate keys.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from .errors import ManifestError


def canonical_bytes(value: Mapping[str, Any], path: str = "spec") -> bytes:
    """Raises ManifestError where `value` holds a float, which has no single spelling."""
    _refuse_floats(value, path)
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode()


def sha256_of(data: bytes) -> str:
    """`sha256:` and 64 hex digits."""
    return "sha256:" + hashlib.sha256(data).hexdigest()


def loads_strict(text: str | bytes, path: str) -> Any:
    """JSON without duplicate keys, NaN or infinities; raises ManifestError that names `path`."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        seen: dict[str, Any] = {}
        for key, value in pairs:
            if key in seen:
                raise ManifestError(path, f"holds the key {key!r} twice")
            seen[key] = value
        return seen

    def finite(constant: str) -> Any:
        raise ManifestError(path, f"holds {constant}, want a finite number")

    try:
        return json.loads(text, object_pairs_hook=unique, parse_constant=finite)
    except (ValueError, RecursionError) as e:
        raise ManifestError(path, f"is not JSON: {e}") from e


def known(value: Any, field: str, names: set[str]) -> None:
    """Raises ManifestError unless `value` is an object that holds none but `names`."""
    if not isinstance(value, Mapping):
        raise ManifestError(field, f"got {type(value).__name__}, want an object")
    for key in value:
        if key not in names:
            raise ManifestError(f"{field}.{key}", f"is not a known field, want one of {', '.join(sorted(names))}")


def _refuse_floats(value: Any, path: str) -> None:
    if isinstance(value, float):
        raise ManifestError(path, f"{value!r} is a float, want an integer or a decimal string")
    if isinstance(value, Mapping):
        for key, item in value.items():
            _refuse_floats(item, f"{path}.{key}")
    elif isinstance(value, list):
        for i, item in enumerate(value):
            _refuse_floats(item, f"{path}[{i}]")
