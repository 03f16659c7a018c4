"""Writes reference.md: every field of both resources, as the CRDs have them. `make docs` runs it."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reference.md"

_HEAD = """# Fields

Every field of the two resources of `pinrail.dev/v1alpha1`, as the CRDs in `crds/` have them: `kubectl explain` says the
same. Made by `make docs`; do not edit.

`[]` is each member of a list, `[*]` each value of a map. A field in **bold** is required where its parent is given.
"""

Schema = Mapping[str, Any]


def page() -> str:
    """The whole page, in Markdown."""
    crds = [yaml.safe_load(file.read_text(encoding="utf-8")) for file in sorted((ROOT / "crds").glob("*.yaml"))]
    return "\n".join([_HEAD, *(line for crd in crds for line in _resource(crd))])


def _resource(crd: Schema) -> Iterator[str]:
    names, version = crd["spec"]["names"], crd["spec"]["versions"][0]
    schema = version["schema"]["openAPIV3Schema"]
    yield f"## {names['kind']}\n"
    yield f"{schema['description']} Short name: `{names['shortNames'][0]}`.\n"
    for part in ("spec", "status"):
        if part in schema["properties"]:
            yield f"### {names['kind']}: {part}\n"
            yield from _table(schema["properties"][part], part, is_spec=part == "spec")
            yield ""


def _table(schema: Schema, path: str, *, is_spec: bool) -> Iterator[str]:
    """Nobody writes a status by hand: what bounds its fields is left out."""
    heads = ["field", "type", *(["default", "bounds"] if is_spec else []), ""]
    yield _row(heads)
    yield "|" + "---|" * len(heads)
    for rule in schema.get("x-kubernetes-validations", []):
        yield _row([f"`{path}`", "", "", "", _rule(rule)])
    for name, field, is_required in _fields(schema, path):
        shown = f"**`{name}`**" if is_required and is_spec else f"`{name}`"
        bounds = [_default(field), _bounds(field)] if is_spec else []
        yield _row([shown, _type(field), *bounds, _text(field)])


def _fields(schema: Schema, path: str) -> Iterator[tuple[str, Schema, bool]]:
    """(path, schema, whether it is required) of everything below, in the schema's order."""
    for name, field in schema.get("properties", {}).items():
        yield f"{path}.{name}", field, name in schema.get("required", [])
        yield from _fields(field, f"{path}.{name}")
    for mark, key in (("[]", "items"), ("[*]", "additionalProperties")):
        if key in schema:
            yield from _fields(schema[key], path + mark)


def _type(field: Schema) -> str:
    if field.get("x-kubernetes-int-or-string"):
        return "integer or string"
    for key, kind in (("items", "list"), ("additionalProperties", "map")):
        if key in field:
            return f"{kind} of {_type(field[key])}"
    return str(field.get("format", "")) if field.get("format") == "date-time" else str(field["type"])


def _default(field: Schema) -> str:
    value = field.get("default", {})
    if isinstance(value, dict):
        return ""  # its fields say theirs
    return f"`{json.dumps(value) if isinstance(value, bool) else value}`"


def _bounds(field: Schema) -> str:
    said = [_range(field)] if "minimum" in field or "maximum" in field else []
    said += [", ".join(f"`{v}`" for v in field["enum"])] if "enum" in field else []
    said += [f"at most {field[key]} {what}" for key, what in _SIZES if key in field and "enum" not in field]
    said += [f"`{field['pattern']}`"] if "pattern" in field else []
    member = field.get("items") or field.get("additionalProperties") or {}
    said += [f"each: {_bounds(member)}"] if member and "properties" not in member and _bounds(member) else []
    return "; ".join(said)


_SIZES = (("maxLength", "characters"), ("maxItems", "members"), ("maxProperties", "members"))


def _range(field: Schema) -> str:
    least, most = field.get("minimum"), field.get("maximum")
    if most is None:
        return f"at least {least}"
    return f"{least} to {most}" if least is not None else f"at most {most}"


def _text(field: Schema) -> str:
    rules = [_rule(r) for r in field.get("x-kubernetes-validations", [])]
    return " ".join([str(field.get("description", "")).strip(), *rules]).strip()


def _rule(rule: Schema) -> str:
    """What is wanted or refused, without the path that a refusal begins with."""
    said = re.sub(r"^(spec|metadata)[A-Za-z.]*: ", "", str(rule["message"]))
    return f"Wanted: {said.removeprefix('want ')}." if said.startswith("want ") else f"Refused: {said}."


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
