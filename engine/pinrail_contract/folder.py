"""Model folders on disk: list, open and hash. I/O; what to make of the result is `compare`'s.

Files are opened once, without following links, and hashed through that descriptor. A loader maps the same
descriptor, so nobody can swap the path between the check and the use.
"""

import hashlib
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from .compare import Entry, Fault, Mismatch, compare
from .errors import ModelError
from .pins import ModelManifest

Progress = Callable[[int], None]
"""Called with the number of bytes just read."""

_CHUNK = 4 << 20  # bytes


def no_progress(_: int) -> None:
    """For callers that show none."""


@contextmanager
def open_folder(folder: Path) -> Iterator[dict[str, int | Entry]]:
    """Every name in `folder` with an open read-only descriptor, or an entry that says why there is none.

    Raises ModelError where `folder` is not a folder that can be listed.
    """
    try:
        names = sorted(os.listdir(folder))
    except OSError as e:
        raise ModelError(f"{folder}: {e.strerror}, want a folder of model files") from e
    opened: dict[str, int | Entry] = {}
    try:
        for name in names:
            opened[name] = _open_regular(folder / name)
        yield opened
    finally:
        for handle in opened.values():
            if isinstance(handle, int):
                os.close(handle)


Stamp = tuple[int, int]
"""A file's size, bytes, and time of last change, nanoseconds: another after each write, and nobody can set it back."""


@dataclass(frozen=True, slots=True)
class Hashed:
    """A folder's open descriptors; map or read these, never the path again."""

    handles: Mapping[str, int]  # name -> descriptor
    mismatches: tuple[Mismatch, ...]  # with the manifest
    stamps: Mapping[str, Stamp]  # from before the files were hashed

    def touched(self) -> tuple[str, ...]:
        """Names of files written, renamed or removed since: what was read of them may not be what was hashed."""
        return tuple(name for name, handle in self.handles.items() if _stamp(handle) != self.stamps[name])


@contextmanager
def verified(folder: Path, manifest: ModelManifest, progress: Progress = no_progress) -> Iterator[Hashed]:
    """The folder, hashed, and every way in which it differs from `manifest`. Descriptors live as long as the context.

    Raises ModelError where `folder` is not a folder that can be listed.
    """
    with open_folder(folder) as opened:
        handles = {name: handle for name, handle in opened.items() if isinstance(handle, int)}
        stamps = {name: _stamp(handle) for name, handle in handles.items()}
        entries = {name: _entry(handle, manifest, name, progress) for name, handle in opened.items()}
        yield Hashed(handles, compare(manifest, entries), stamps)


def mismatches(folder: Path, manifest: ModelManifest, progress: Progress = no_progress) -> tuple[Mismatch, ...]:
    """Every way in which `folder` differs from `manifest`."""
    with verified(folder, manifest, progress) as hashed:
        return hashed.mismatches


def sha256_hex(handle: int, progress: Progress = no_progress) -> str:
    """The sha256 of all bytes behind a descriptor, whatever its position."""
    digest, offset = hashlib.sha256(), 0
    while chunk := os.pread(handle, _CHUNK, offset):
        digest.update(chunk)
        offset += len(chunk)
        progress(len(chunk))
    return digest.hexdigest()


def _stamp(handle: int) -> Stamp:
    seen = os.fstat(handle)
    return seen.st_size, seen.st_ctime_ns


def _open_regular(path: Path) -> int | Entry:
    try:
        seen = path.lstat()
        if stat.S_ISLNK(seen.st_mode):
            return Entry(fault=Fault.SYMLINK)
        if not stat.S_ISREG(seen.st_mode):
            return Entry(fault=Fault.SPECIAL)
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as e:
        return Entry(fault=Fault.UNREADABLE, reason=e.strerror or "")
    if not stat.S_ISREG(os.fstat(handle).st_mode):  # swapped between the look and the open
        os.close(handle)
        return Entry(fault=Fault.SPECIAL)
    return handle


def _entry(handle: int | Entry, manifest: ModelManifest, name: str, progress: Progress) -> Entry:
    if isinstance(handle, Entry):
        return handle
    size = os.fstat(handle).st_size
    if size not in [f.size for f in manifest.files if f.path == name]:
        return Entry(size=size)  # already told apart, or extra: not worth reading
    try:
        return Entry(size=size, sha256=sha256_hex(handle, progress))
    except OSError as e:
        return Entry(fault=Fault.UNREADABLE, reason=e.strerror or "")
