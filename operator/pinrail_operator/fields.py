"""Reads one JSON object field by field; every refusal names the field, the value seen and the value wanted. Pure.

The CRD's schema says the same rules to the API server; these serve local mode, and objects older than the schema.
"""

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Self, TypeVar

from .errors import SpecError

Choice = TypeVar("Choice", bound=StrEnum)


class Fields:
    """An object at a path. Absent and null are the same: the field's default."""

    def __init__(self, value: Any, path: str, known: set[str] | None = None) -> None:
        """Refuses what is no object, and fields that are not `known`, where that is given."""
        if not isinstance(value, Mapping):
            raise SpecError(path, f"got {_shown(value)}, want an object")
        for key in value:
            if known is not None and key not in known:
                raise SpecError(f"{path}.{key}", f"is not a known field, want one of {', '.join(sorted(known))}")
        self._value, self._path = value, path

    def has(self, name: str) -> bool:
        return self._value.get(name) is not None

    @property
    def where(self) -> str:
        """The object's own path."""
        return self._path

    def path(self, name: str) -> str:
        return f"{self._path}.{name}"

    def child(self, name: str, known: set[str] | None) -> Self:
        """The object in `name`, of any fields where none are `known`; an absent one is empty."""
        return type(self)(self._raw(name, {}), self.path(name), known)

    def children(self, name: str, known: set[str], most: int) -> list[Self]:
        """The objects of the list in `name`."""
        items = self.items(name, most)
        return [type(self)(item, f"{self.path(name)}[{i}]", known) for i, item in enumerate(items)]

    def items(self, name: str, most: int) -> list[Any]:
        value = self._raw(name, [])
        if not isinstance(value, list) or len(value) > most:
            raise SpecError(self.path(name), f"got {_shown(value)}, want a list of at most {most}")
        return value

    def text(self, name: str, *, pattern: str, wanted: str, default: str | None = None, most: int = 512) -> str:
        """A string that matches the whole `pattern`; without a default it is required."""
        if default is not None and not self.has(name):
            return default
        value = self._value.get(name)
        if not isinstance(value, str) or len(value) > most or not re.fullmatch(pattern, value):
            raise SpecError(self.path(name), f"got {_shown(value)}, want {wanted}")
        return value

    def choice(self, name: str, default: Choice) -> Choice:
        """One member of `default`'s enumeration."""
        value, kind = self._raw(name, default), type(default)
        if value not in list(kind):
            raise SpecError(self.path(name), f"got {_shown(value)}, want one of {', '.join(kind)}")
        return kind(value)

    def integer(self, name: str, *, least: int, most: int, default: int | None = None) -> int:
        """A whole number within bounds; without a default it is required."""
        value = self._raw(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise SpecError(self.path(name), f"got {_shown(value)}, want a whole number of {least} to {most}")
        return value

    def optional_integer(self, name: str, *, least: int, most: int) -> int | None:
        """A whole number within bounds, or None where it is absent."""
        return self.integer(name, least=least, most=most) if self.has(name) else None

    def count_or_share(self, name: str, *, most: int, default: int) -> int | str:
        """A whole number of 0 to `most`, or a share of 0% to 100%, as Kubernetes' IntOrString."""
        value: int | str = self._raw(name, default)
        is_count = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most
        if not is_count and not (isinstance(value, str) and re.fullmatch(r"(100|[1-9]?[0-9])%", value)):
            raise SpecError(self.path(name), f"got {_shown(value)}, want a whole number of 0 to {most} or 0% to 100%")
        return value

    def reference(self, name: str, default: str | None = None) -> str:
        """The name of another resource; without a default it is required."""
        pattern = r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?"
        return self.text(name, pattern=pattern, wanted="a resource name", default=default, most=253)

    def label(self, name: str) -> str:
        """A name within a pod's spec, as that of a container; required."""
        wanted = "at most 63 of a-z, 0-9 and '-', beginning and ending with a letter or digit"
        return self.text(name, pattern=r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", wanted=wanted, most=63)

    def flag(self, name: str, default: bool) -> bool:
        value = self._raw(name, default)
        if not isinstance(value, bool):
            raise SpecError(self.path(name), f"got {_shown(value)}, want true or false")
        return value

    def mapping(self, name: str) -> Mapping[str, Any]:
        """An object that is passed through as it stands; an absent one is empty."""
        value = self._raw(name, {})
        if not isinstance(value, Mapping):
            raise SpecError(self.path(name), f"got {_shown(value)}, want an object")
        return value

    def mappings(self, name: str, most: int) -> list[Mapping[str, Any]]:
        """The objects of the list in `name`, passed through as they stand."""
        items = self.items(name, most)
        for i, item in enumerate(items):
            if not isinstance(item, Mapping):
                raise SpecError(f"{self.path(name)}[{i}]", f"got {_shown(item)}, want an object")
        return items

    def _raw(self, name: str, default: Any) -> Any:
        value = self._value.get(name)
        return default if value is None else value


def _shown(value: Any) -> str:
    """A value as a message shows it: short, and in words where there is none."""
    text = "nothing" if value is None else repr(value)
    return text if len(text) <= 200 else text[:199] + "…"
