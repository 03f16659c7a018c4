"""What computes a model, and in which numbers: a manifest may pin it, and every replica says it. Pure.

The same files give other texts in another number type, on other instructions, or by another version of the engine. Each
field is optional: one that a manifest leaves out pins nothing, and one that an engine does not report is not judged.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

from .canonical import known
from .errors import ManifestError
from .launch import BackendName, Dtype, Quantization

BACKENDS = tuple(str(b) for b in BackendName if b is not BackendName.AUTO)
DTYPES = tuple(str(d) for d in Dtype if d is not Dtype.AUTO)
WEIGHT_DTYPES = (*DTYPES, *(str(q) for q in Quantization if q is not Quantization.NONE))
COMPUTE_DTYPES = (*DTYPES, "float16")

VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+!_-]{0,63}")
INSTRUCTIONS = re.compile(r"[A-Za-z0-9]([A-Za-z0-9 ._()/+-]{0,126}[A-Za-z0-9)])?")
UNREADABLE = "?"
"""Stands for what was reported and is no such word; no manifest can pin it."""

_REPORTED = re.compile(r"[ !#-\[\]-~]{1,128}")  # printable, without quotes and backslashes


@dataclass(frozen=True, slots=True)
class Difference:
    """A field of a manifest that is pinned as one thing and reported as another."""

    field: str  # such as spec.engine.version
    seen: str
    wanted: str

    def __str__(self) -> str:
        return f"{self.field}: got {self.seen}, want {self.wanted}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """`spec.engine` and `spec.numerics` of a manifest, or what a replica reports; '' pins or says nothing."""

    engine_version: str = ""
    backend: str = ""  # native or torch
    instructions: str = ""  # a processor's instruction set, or an accelerator's name
    weight_dtype: str = ""  # that weights are kept in
    compute_dtype: str = ""  # that weights are multiplied in
    kv_cache_dtype: str = ""

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any], field: str = "spec") -> Self:
        """What a manifest's spec pins; raises ManifestError with the field, what was seen and what is wanted."""
        found: dict[str, str] = {}
        for part in _PARTS:
            if part in spec:
                found |= _part(spec[part], part, f"{field}.{part}")
        made = cls(**found)
        if made.backend == BackendName.TORCH and made.weight_dtype in (Quantization.INT8, Quantization.INT4):
            wanted = f"want {_listed(DTYPES)} while {field}.numerics.backend is torch: only native keeps weights so"
            raise ManifestError(f"{field}.numerics.weightDtype", f"got {made.weight_dtype!r}, {wanted}")
        return made

    @classmethod
    def from_labels(cls, labels: Mapping[str, str]) -> Self:
        """What a replica reports, as the labels of its metric say it; absent ones say nothing."""
        said = {f.name: labels.get(f.name, "") for f in fields(cls)}
        return cls(**{k: v if not v or _REPORTED.fullmatch(v) else UNREADABLE for k, v in said.items()})

    def labels(self) -> dict[str, str]:
        """The inverse of `from_labels`: every field, by name."""
        return asdict(self)

    def to_spec(self) -> dict[str, Any]:
        """`engine` and `numerics` as a manifest holds them: without what is not pinned."""
        written: dict[str, dict[str, str]] = {}
        for f in _FIELDS:
            if value := getattr(self, f.attribute):
                written.setdefault(f.part, {})[f.key] = value
        return written

    def differences(self, reported: Self) -> tuple[Difference, ...]:
        """Every field that this pins and `reported` says otherwise; silence is no difference."""
        found = [Difference(f.path, getattr(reported, f.attribute), getattr(self, f.attribute)) for f in _FIELDS]
        return tuple(d for d in found if d.seen and d.wanted and d.seen != d.wanted)

    def unreported(self, reported: Self) -> tuple[str, ...]:
        """The fields that this pins and `reported` does not speak of."""
        return tuple(f.path for f in _FIELDS if getattr(self, f.attribute) and not getattr(reported, f.attribute))

    def __str__(self) -> str:
        return line_of(self.to_spec())


UNSAID = Runtime()
"""Pins nothing; says nothing."""


@dataclass(frozen=True, slots=True)
class _Field:
    part: str  # of the manifest's spec
    key: str  # in that part
    attribute: str  # of Runtime
    words: tuple[str, ...] = ()  # all that it may be
    pattern: re.Pattern[str] = VERSION  # that it matches, where any word will do
    wanted: str = ""  # the pattern, for people

    @property
    def path(self) -> str:
        return f"spec.{self.part}.{self.key}"

    def parse(self, value: Any, field: str) -> str:
        if isinstance(value, str) and (value in self.words if self.words else self.pattern.fullmatch(value)):
            return value
        wanted = f"one of {_listed(self.words)}" if self.words else self.wanted
        raise ManifestError(f"{field}.{self.key}", f"got {value!r}, want {wanted}")


_FIELDS = (
    _Field("engine", "version", "engine_version", wanted="an exact version such as 0.1.0, of at most 64 characters"),
    _Field("numerics", "backend", "backend", BACKENDS),
    _Field(
        "numerics", "instructions", "instructions", pattern=INSTRUCTIONS,
        wanted="an instruction set such as avx512, or an accelerator's name, of at most 128 characters",
    ),
    _Field("numerics", "weightDtype", "weight_dtype", WEIGHT_DTYPES),
    _Field("numerics", "computeDtype", "compute_dtype", COMPUTE_DTYPES),
    _Field("numerics", "kvCacheDtype", "kv_cache_dtype", DTYPES),
)  # fmt: skip
_PARTS = tuple(dict.fromkeys(f.part for f in _FIELDS))


def line_of(spec: Mapping[str, Mapping[str, str]]) -> str:
    """`engine` and `numerics` of a manifest or a report in one line, for people; '' where nothing is said."""
    version = spec.get("engine", {}).get("version", "")
    return ", ".join(filter(None, [version, *(f"{key} {word}" for key, word in spec.get("numerics", {}).items())]))


def _part(value: Any, part: str, field: str) -> dict[str, str]:
    """The attributes of one object, which holds one field or more: an empty one would be another way to pin nothing."""
    there = {f.key: f for f in _FIELDS if f.part == part}
    known(value, field, set(there))
    if not value:
        raise ManifestError(field, f"got no field, want one or more of {_listed(there)}, or no {field}")
    return {there[key].attribute: there[key].parse(item, field) for key, item in value.items()}


def _listed(words: Iterable[str]) -> str:
    return ", ".join(words)
