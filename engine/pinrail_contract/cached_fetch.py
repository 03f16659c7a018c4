"""Fetch a model into a cache that pods share: one download, whoever wants it at once and whoever of them dies. I/O."""

import os
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

from .compare import Entry
from .errors import CacheError
from .fetch import AT_ONCE, NO_PAGE, Wait, fetch
from .file_lock import if_free, locked
from .folder import Progress, no_progress, open_folder, sha256_hex
from .model_cache import ModelCache, Say, in_words
from .pins import ModelManifest

_HOLDER_PATIENCE = 120.0  # seconds for the container that holds a model to begin
_LOOK = 0.1  # seconds between two looks at it


def fetch_cached(
    manifest: ModelManifest,
    cache: ModelCache,
    bound: int,
    holder: Path | None = None,
    *,
    progress: Progress = no_progress,
    say: Say = lambda _: None,
    wait: Wait = time.sleep,
    environment: Mapping[str, str] = os.environ,
    page: AbstractContextManager[None] = NO_PAGE,
) -> Path:
    """Make the cache hold the model whole; returns its folder.

    What is there is hashed, at once by all who want it; what is wrong is fetched again by one, while others wait.

    Args:
        manifest: Which model.
        cache: Where to.
        bound: Bytes that all models of the cache may take together.
        holder: The file that `pinrail hold` locks, which is waited for: the model is never without a lock. None: nobody
            keeps it after the fetch.
        progress: Called with bytes fetched.
        say: Called with what is waited for, and what is removed.
        wait: Takes seconds, between attempts and looks.
        environment: As `fetch` takes it.
        page: As `fetch` takes it; never entered by a pod that finds the model whole, or waits for another's fetch.

    Raises:
        CacheError: The model is larger than the bound, or finds no room beside those in use.
        SourceError: As `fetch` raises it.
    """
    if manifest.total_size > bound:
        wanted = f"want {manifest.total_size} or above for {manifest.digest}"
        raise CacheError(f"spec.model.cache.maxSize: got {bound}, {wanted}")
    folder, fetching = cache.folder(manifest.files_digest), cache.fetching(manifest.files_digest)
    with in_words(cache.root), cache.in_use(manifest.files_digest):
        while not is_whole(folder, manifest):
            with if_free(fetching) as lock:
                if lock is not None:
                    make_room = partial(cache.make_room, manifest, bound, say)
                    fetch(manifest, folder, progress, wait, environment, make_room, page)
                    _seal(folder, manifest)
                    break
            say(f"waiting for another pod that fetches {manifest.digest}")
            with locked(fetching, shared=True):
                pass  # it has ended, well or not
        if holder is not None:
            _await_holder(holder, wait)
    return folder


def is_whole(folder: Path, manifest: ModelManifest) -> bool:
    """Whether it holds exactly the model: by hash, some files at once, but for names and sizes that already say no."""
    try:
        sizes = {e.name: e.stat(follow_symlinks=False).st_size for e in os.scandir(folder)}
    except FileNotFoundError:
        return False
    if sizes != {f.path: f.size for f in manifest.files}:
        return False
    with open_folder(folder) as opened, ThreadPoolExecutor(AT_ONCE, "hash") as pool:
        sums = pool.map(_sum, [opened.get(f.path) for f in manifest.files])
        return list(sums) == [f.sha256 for f in manifest.files]


def _sum(handle: int | Entry | None) -> str:
    """Empty for what cannot be read: it is replaced."""
    try:
        return sha256_hex(handle) if isinstance(handle, int) else ""
    except OSError:
        return ""


def _await_holder(sign: Path, wait: Wait) -> None:
    """Whoever only looked for a file could find that of a process that is gone."""
    for _ in range(int(_HOLDER_PATIENCE / _LOOK)):
        with if_free(sign) as lock:
            if lock is None:
                return
        wait(_LOOK)
    raise CacheError(f"{sign}: nobody has locked it for {_HOLDER_PATIENCE:.0f} s, want `pinrail hold` beside the fetch")


def _seal(folder: Path, manifest: ModelManifest) -> None:
    """Nobody writes to a file again: a wrong one is replaced."""
    for pin in manifest.files:
        (folder / pin.path).chmod(0o444)
