"""A manifest as YAML text. Pure.

Strings are written as JSON, which YAML reads as it stands, so nothing needs quoting rules of its own.
"""

import json
from typing import Any

from .pins import API_VERSION, KIND, ModelManifest


def manifest_yaml(name: str, manifest: ModelManifest) -> str:
    """A ModelManifest resource; its digest stands in the first line."""
    document = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": name},
        "spec": manifest.to_spec(),
    }
    return f"# digest: {manifest.digest}\n" + "\n".join(_lines(document)) + "\n"


def _lines(value: dict[str, Any], indent: str = "") -> list[str]:
    lines: list[str] = []
    for key, item in value.items():
        if isinstance(item, dict):
            lines += [f"{indent}{key}:", *_lines(item, indent + "  ")]
        elif isinstance(item, list):
            lines.append(f"{indent}{key}:")
            for element in item:
                first, *rest = _lines(element, indent + "    ")
                lines += [f"{indent}  - {first.strip()}", *rest]
        else:
            lines.append(f"{indent}{key}: {_scalar(item)}")
    return lines


def _scalar(value: object) -> str:
    plain = isinstance(value, str) and value and value.replace("-", "").isalpha() and value.islower()
    return (
        str(value)
        if plain and value not in ("true", "false", "null", "yes", "no", "on", "off", "y", "n")
        else json.dumps(value)
    )
