"""`spec.engine.env`: variables of the engine, and which of them another container or this machine gets. Pure.

A variable's value stands in the spec, or is one key of a Secret or ConfigMap, which the kubelet reads and the operator
never does. A whole Secret cannot be taken: whoever writes it would choose the variables' names, and with LD_PRELOAD or
PYTHONPATH among them replace what is pinned, unseen.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self

from .errors import SpecError
from .fields import Fields
from .source_access import KeyRef

PROXIES = re.compile(r"(HTTP|HTTPS|ALL|NO)_PROXY|(http|https|all|no)_proxy")
"""How every client is told of its proxy, whose address may hold a password."""

_FORBIDDEN = re.compile(r"HOME|PATH|LD_.*|PYTHON.*")  # they could replace what is pinned


class Origin(StrEnum):
    """What a value is a key of; as a pod's spec has it."""

    SECRET = "secretKeyRef"
    CONFIG_MAP = "configMapKeyRef"


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueFrom:
    """One key of a Secret or ConfigMap in the service's namespace."""

    origin: Origin
    key: KeyRef
    is_optional: bool  # the engine starts without the variable where the key is missing; else its pod waits

    @classmethod
    def parse(cls, f: Fields) -> Self:
        given = [origin for origin in Origin if f.has(origin)]
        if len(given) != 1:
            raise SpecError(f.where, f"got {' and '.join(given) or 'nothing'}, want exactly one of {', '.join(Origin)}")
        reference = f.child(given[0], {"name", "key", "optional"})
        return cls(origin=given[0], key=KeyRef.read(reference), is_optional=reference.flag("optional", False))

    def to_json(self) -> dict[str, Any]:
        return {str(self.origin): {**self.key.to_json(), **({"optional": True} if self.is_optional else {})}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """One member of `spec.engine.env`."""

    name: str
    value: str = ""
    source: ValueFrom | None = None  # in place of `value`

    @classmethod
    def parse(cls, f: Fields) -> Self:
        name = f.text("name", pattern=r"[A-Za-z_][A-Za-z0-9_]*", wanted="a variable's name", most=128)
        if _FORBIDDEN.fullmatch(name):
            wanted = "want none of HOME, PATH, LD_* and PYTHON*: they could replace what is pinned"
            raise SpecError(f.path("name"), f"got {name!r}, {wanted}")
        if f.has("value") == f.has("valueFrom"):
            seen = "both value and valueFrom" if f.has("value") else "neither value nor valueFrom"
            raise SpecError(f.where, f"got {seen} for {name}, want exactly one of them")
        if f.has("valueFrom"):
            return cls(name=name, source=ValueFrom.parse(f.child("valueFrom", set(Origin))))
        return cls(name=name, value=f.text("value", pattern=r"(?s).*", wanted="at most 4096 characters", most=4096))

    def to_json(self) -> dict[str, Any]:
        """As a container's spec has it."""
        if self.source is not None:
            return {"name": self.name, "valueFrom": self.source.to_json()}
        return {"name": self.name, "value": self.value}

    def identity(self) -> tuple[str, Any]:
        """What a revision names of it: a value as it always was, else where the value is, never the value itself."""
        return self.name, self.value if self.source is None else self.source.to_json()


def parse(f: Fields) -> tuple[Variable, ...]:
    """`f` is `spec.engine`; each name once, as a pod has it."""
    found: dict[str, Variable] = {}
    for member in f.children("env", {"name", "value", "valueFrom"}, most=64):
        variable = Variable.parse(member)
        if variable.name in found:
            raise SpecError(member.path("name"), f"got {variable.name!r} for the second time, want each name once")
        found[variable.name] = variable
    return tuple(found.values())


def of_fetch(variables: Iterable[Variable]) -> tuple[Variable, ...]:
    """What the container that fetches gets: values of the spec, and of those that are read elsewhere a proxy's alone.

    It speaks to hosts that the engine has nothing to do with, and has secrets of its own (`spec.model`).
    """
    return tuple(v for v in variables if v.source is None or PROXIES.fullmatch(v.name))


def plain(variables: Iterable[Variable]) -> tuple[tuple[str, str], ...]:
    """Names and values of those whose value the spec itself gives."""
    return tuple((v.name, v.value) for v in variables if v.source is None)


def require_known(variables: Iterable[Variable], names: Collection[str], why: str) -> None:
    """Raises SpecError for one of `names` whose value is read elsewhere."""
    for i, variable in enumerate(variables):
        if variable.source is not None and variable.name in names:
            raise SpecError(f"spec.engine.env[{i}].valueFrom", f"got one for {variable.name}, want its value: {why}")


def on_this_machine(variables: Iterable[Variable], shell: Mapping[str, str]) -> dict[str, str]:
    """What local mode adds to an engine's environment: it has no Secrets, so the shell's own variables stand for them.

    Args:
        variables: Of the service.
        shell: The environment that `pinrail up` was started in.

    Raises SpecError where one that the engine needs is not set.
    """
    found: dict[str, str] = {}
    for i, variable in enumerate(variables):
        if variable.source is None:
            found[variable.name] = variable.value
        elif variable.name in shell:
            found[variable.name] = shell[variable.name]
        elif not variable.source.is_optional:
            seen = f"got a key of {variable.source.key.name!r}, which local mode cannot read"
            wanted = f"want {variable.name} in the shell's environment: `export {variable.name}=…`"
            raise SpecError(f"spec.engine.env[{i}].valueFrom", f"{seen}, {wanted}")
    return found
