"""How a folder differs from its manifest: every difference, each with its file. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from .pins import FilePin, ModelManifest


class Fault(StrEnum):
    MISSING = "missing"
    EXTRA = "extra"
    TRUNCATED = "truncated"
    LONGER = "longer"
    CHANGED = "changed"
    SYMLINK = "symlink"
    SPECIAL = "special file"
    UNREADABLE = "unreadable"


@dataclass(frozen=True, slots=True)
class Entry:
    """What one name in the folder turned out to be."""

    size: int = 0  # bytes
    sha256: str = ""  # empty where the size already differs, or the file was not read
    fault: Fault | None = None  # SYMLINK, SPECIAL or UNREADABLE: its content was not looked at
    reason: str = ""  # the system's words, with UNREADABLE


@dataclass(frozen=True, slots=True)
class Mismatch:
    path: str
    fault: Fault
    detail: str

    def __str__(self) -> str:
        return f"{self.path}: {self.fault}: {self.detail}"


def compare(manifest: ModelManifest, entries: Mapping[str, Entry]) -> tuple[Mismatch, ...]:
    """Every mismatch, sorted by path; empty when the folder holds exactly what the manifest names.

    | in manifest | in folder              | result                    |
    |-------------|------------------------|---------------------------|
    | yes         | no                     | missing                   |
    | no          | yes                    | extra                     |
    | yes         | symlink, special, EIO  | that fault                |
    | yes         | smaller / larger       | truncated / longer        |
    | yes         | same size, other bytes | changed                   |
    | yes         | same size, same bytes  | none                      |
    """
    pins = {f.path: f for f in manifest.files}
    found = [_compare_one(name, pins.get(name), entries.get(name)) for name in sorted(pins.keys() | entries.keys())]
    return tuple(m for m in found if m is not None)


def _compare_one(name: str, pin: FilePin | None, entry: Entry | None) -> Mismatch | None:
    if entry is None:
        return Mismatch(name, Fault.MISSING, "named by the manifest, not in the folder")
    if pin is None:
        return Mismatch(name, Fault.EXTRA, "in the folder, not named by the manifest")
    if entry.fault is not None:
        seen = f"{entry.reason}, " if entry.reason else ""
        return Mismatch(name, entry.fault, f"{seen}want a regular file that can be read")
    if entry.size != pin.size:
        fault = Fault.TRUNCATED if entry.size < pin.size else Fault.LONGER
        return Mismatch(name, fault, f"has {entry.size} bytes, want {pin.size}")
    if entry.sha256 != pin.sha256:
        return Mismatch(name, Fault.CHANGED, f"has sha256 {entry.sha256}, want {pin.sha256}")
    return None
