"""A folder of fetched models that pods share: who uses which, and what is removed for another. I/O.

| in the cache             | is                                                                                 |
|--------------------------|------------------------------------------------------------------------------------|
| sha256-HEX/              | exactly the files of that `files_digest`, and parts while they are fetched          |
| locks/sha256-HEX.use     | locked shared by whoever has the model, exclusively by whoever removes it           |
| locks/sha256-HEX.fetch   | locked exclusively by whoever fetches the model                                     |
| locks/room               | locked exclusively while sizes are added up and models are removed                  |
| locks/probe              | locked shared for a moment, to see whether the file system can                     |

A `.use` file holds the size that the model was let in with, and its time of change is the model's last use. Locks are
taken in the order of the table, and a model is only removed if its lock is free, so nobody waits in a circle. Names
that are none of these are left alone.

Imports little: a process of each pod has this loaded for as long as the pod lives.
"""

import errno
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from .errors import CacheError
from .eviction import Bounds, Cached, evictions
from .file_lock import if_free, locked
from .pins import ModelManifest

_MODEL = re.compile(r"sha256-[0-9a-f]{64}")
_LOCKS = "locks"
_DISK_MARGIN = 64 << 20  # bytes left free

Say = Callable[[str], None]
"""Takes a sentence for the log."""


@dataclass(frozen=True, slots=True)
class ModelCache:
    """An open cache; `open` makes one."""

    root: Path

    @classmethod
    def open(cls, root: Path) -> Self:
        """Raises CacheError where models cannot be written to `root`, or files cannot be locked there."""
        with in_words(root):
            (root / _LOCKS).mkdir(parents=True, exist_ok=True)
            if not os.access(root, os.W_OK | os.X_OK, effective_ids=True):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(root))
            with locked(root / _LOCKS / "probe", shared=True):
                return cls(root)

    def folder(self, files_digest: str) -> Path:
        """Where the files are, or will be; manifests that pin engine and numerics otherwise share them."""
        return self.root / folder_name(files_digest)

    @contextmanager
    def in_use(self, files_digest: str) -> Iterator[Callable[[], None]]:
        """Keep the model from being removed while the block runs; yields what notes that it is still used."""
        with locked(self._use(self.folder(files_digest).name), shared=True) as handle:
            os.utime(handle)
            try:
                yield lambda: os.utime(handle)
            finally:
                with suppress(OSError):  # whoever ends ends, noted or not
                    os.utime(handle)

    @property
    def _room(self) -> Path:
        return self.root / _LOCKS / "room"

    def _use(self, name: str) -> Path:
        return self.root / _LOCKS / f"{name}.use"

    def fetching(self, files_digest: str) -> Path:
        """The file that is locked while the model is fetched."""
        return self.root / _LOCKS / f"{self.folder(files_digest).name}.fetch"

    def make_room(self, manifest: ModelManifest, bound: int, say: Say, missing: int) -> None:
        """Let a model in that is in use, with `missing` bytes yet to come: remove others until all fit.

        Raises CacheError where it cannot fit beside the models in use, before anything is removed.
        """
        name = self.folder(manifest.files_digest).name
        with locked(self._room), ExitStack() as removable:
            others = [self._look(n, removable) for n in self._names() if n != name]
            wanted = Cached(name=name, size=manifest.total_size, missing=missing, last_used=0.0, is_in_use=True)
            free = shutil.disk_usage(self.root).free - _DISK_MARGIN
            for model in evictions(wanted, others, Bounds(size=bound, free=free)):
                say(f"removing {model.name}, the least recently used: {model.size} bytes")
                shutil.rmtree(self.root / model.name)
                self._use(model.name).write_text("")
            self._use(name).write_text(str(manifest.total_size))

    def _names(self) -> list[str]:
        return [e.name for e in os.scandir(self.root) if _MODEL.fullmatch(e.name) and e.is_dir(follow_symlinks=False)]

    def _look(self, name: str, removable: ExitStack) -> Cached:
        """The model as it stands; where nobody uses it, nobody can begin to until `removable` is closed."""
        lock, use = removable.enter_context(if_free(self._use(name))), self._use(name)
        on_disk = _bytes_in(self.root / name)
        promised = use.read_text()
        size = max(on_disk, int(promised) if promised.isdecimal() else 0)
        last_used = use.stat().st_mtime
        return Cached(name=name, size=size, missing=size - on_disk, last_used=last_used, is_in_use=lock is None)


def folder_name(files_digest: str) -> str:
    """Of a model within a cache; the engine's container has this folder mounted, and no other."""
    return files_digest.replace(":", "-")


@contextmanager
def held(cache: ModelCache, files_digest: str, sign: Path) -> Iterator[Callable[[], None]]:
    """`in_use` for as long as a pod lives, with a locked file that says so to the pod's fetch."""
    with in_words(cache.root), cache.in_use(files_digest) as touch, locked(sign):
        yield touch


@contextmanager
def in_words(root: Path) -> Iterator[None]:
    """What the system refuses of the cache's files, as CacheError."""
    try:
        yield
    except OSError as e:
        seen = f"{e.filename or root}: {e.strerror} for user {os.geteuid()}"
        raise CacheError(f"{seen}, want a folder that it can write, on a file system that has flock") from e


def _bytes_in(folder: Path) -> int:
    """Of its files; one that takes another name meanwhile is not counted."""
    total = 0
    for entry in os.scandir(folder):
        with suppress(FileNotFoundError):
            total += entry.stat(follow_symlinks=False).st_size
    return total
