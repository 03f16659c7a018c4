"""Bring a manifest's files into a folder: resumable, verified, exactly those files and no others. I/O.

A file is written as NAME.part and takes its name only once its sha256 is right, so a folder never holds a
wrong file under a right name. What is already there and right is not fetched again.
"""

import hashlib
import http.client
import os
import shutil
import ssl
import threading
import time
import urllib.error
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path

from .access import Access
from .errors import SourceError
from .folder import Progress, mismatches, no_progress
from .pins import FilePin, ModelManifest, role_of
from .sources import Open, opener_of

CHUNK = 1 << 20  # bytes
AT_ONCE = 4  # files
ATTEMPTS = 5  # per file, each going on where the last one stopped
DISK_MARGIN = 64 << 20  # bytes left free

Wait = Callable[[float], None]
"""Takes seconds; `time.sleep`, but for tests."""

NO_PAGE = nullcontext()


def fetch(
    manifest: ModelManifest,
    folder: Path,
    progress: Progress = no_progress,
    wait: Wait = time.sleep,
    environment: Mapping[str, str] = os.environ,
    make_room: Callable[[int], None] | None = None,
    page: AbstractContextManager[None] = NO_PAGE,
) -> None:
    """Make `folder` hold exactly the manifest's files; `environment` says what `access` names.

    `page` is entered while files are transferred, not while they are hashed.

    `make_room` takes the bytes that are yet to come, and raises where they do not fit; None looks at the free disk.

    Raises:
        SourceError: The source lacks a file, delivers other bytes, keeps failing, the disk is too small, or `folder`
            holds files that are no model's.
    """
    opener = opener_of(manifest.source, Access.of(manifest.source, environment))
    folder.mkdir(parents=True, exist_ok=True)
    wrong = {m.path for m in mismatches(folder, manifest)}
    _remove_foreign(manifest, folder, wrong)
    wanted = [f for f in manifest.files if f.path in wrong]
    begun = _begun(wanted, folder)
    missing = sum(f.size for f in wanted) - begun
    _check_disk(missing, len(wanted), folder) if make_room is None else make_room(missing)
    progress(manifest.total_size - missing)
    with page:
        _fetch_files(wanted, folder, opener, Shared(progress), wait)


class Shared:
    """Progress of files that are fetched at once; where one has failed, it ends the others at their next chunk."""

    def __init__(self, progress: Progress) -> None:
        self._progress, self._lock, self._ended = progress, threading.Lock(), False

    def __call__(self, n: int) -> None:
        with self._lock:
            if self._ended:
                raise Abandoned
            self._progress(n)

    def end(self) -> None:
        with self._lock:
            self._ended = True


class Abandoned(Exception):
    """Another file has failed."""


def _fetch_files(wanted: Sequence[FilePin], folder: Path, opener: Open, progress: Shared, wait: Wait) -> None:
    """Some at once; raises what the first that failed has raised."""
    with ThreadPoolExecutor(AT_ONCE, "fetch") as pool:
        transfers = [
            pool.submit(_fetch_file, pin, folder, partial(_continue, pin, opener, progress), wait) for pin in wanted
        ]
        try:
            for transfer in as_completed(transfers):
                transfer.result()
        except BaseException:
            progress.end()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _fetch_file(pin: FilePin, folder: Path, transfer: Callable[[Path], str], wait: Wait) -> None:
    """Make the file whole; what was put together from several transfers and is wrong is transferred anew, once.

    The source may have been mended in between, and only the bytes of one transfer say what it has.
    """
    part, whole = folder / f"{pin.path}.part", folder / pin.path
    whole.unlink(missing_ok=True)
    digest, is_pieced = _completed(pin, part, transfer, wait)
    if digest != pin.sha256 and is_pieced:
        part.unlink()
        digest, _ = _completed(pin, part, transfer, wait)
    if digest != pin.sha256:
        part.unlink()
        raise SourceError(f"{pin.path}: the source has sha256 {digest}, want {pin.sha256}")
    part.rename(whole)


def _completed(pin: FilePin, part: Path, transfer: Callable[[Path], str], wait: Wait) -> tuple[str, bool]:
    """Repeat `transfer`, which takes the part file and returns its sha256, until it ends: that, and whether it went on
    from bytes of an earlier one."""
    is_begun = part.exists()
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return transfer(part), is_begun or attempt > 1
        except (OSError, http.client.HTTPException) as e:
            if final := _final(e):
                raise SourceError(f"{pin.path}: the source {final}") from e
            if attempt == ATTEMPTS:
                raise SourceError(f"{pin.path}: gave up after {ATTEMPTS} attempts: {e}") from e
            wait(2.0**attempt)
    raise AssertionError("the last attempt returns or raises")


def _final(error: Exception) -> str:
    """What the source did that trying again cannot mend; empty where it can."""
    if isinstance(error, urllib.error.HTTPError) and error.code in (401, 403, 404, 410):
        return f"answers {error.code} {error.reason}"
    reason = getattr(error, "reason", None)
    if isinstance(reason, ssl.SSLCertVerificationError):
        return f"cannot be trusted: {reason.verify_message}"
    return ""


def _continue(pin: FilePin, opener: Open, progress: Progress, part: Path) -> str:
    """Append what is missing to the part file; returns the sha256 of it all. Raises OSError when cut short."""
    digest, have = hashlib.sha256(), 0
    if part.exists() and part.stat().st_size <= pin.size:
        with part.open("rb") as old:
            while chunk := old.read(CHUNK):
                digest.update(chunk)
                have += len(chunk)
    else:
        part.unlink(missing_ok=True)
    if have < pin.size:
        with opener(pin.path, have) as source, part.open("ab") as out:
            while have < pin.size and (chunk := source.read(min(CHUNK, pin.size - have))):
                out.write(chunk)
                digest.update(chunk)
                have += len(chunk)
                progress(len(chunk))
            if have == pin.size and source.read(1):
                raise SourceError(f"{pin.path}: the source has more than the {pin.size} bytes of the manifest")
    if have < pin.size:
        raise OSError(f"the source stopped at {have} of {pin.size} bytes")
    return digest.hexdigest()


def _remove_foreign(manifest: ModelManifest, folder: Path, wrong: Collection[str]) -> None:
    """Files of another model left in the folder would make it fail verification, and so would parts of right ones.

    Raises SourceError, before anything is removed, where the folder holds what is no model's: it is someone's own.
    """
    names = {f.path for f in manifest.files} | {f"{name}.part" for name in wrong}
    foreign = [p for p in folder.iterdir() if p.name not in names and not p.is_dir()]
    own = sorted(p.name for p in foreign if role_of(p.name.removesuffix(".part")) is None)
    if own:
        listed = ", ".join(own[:3]) + (" …" if len(own) > 3 else "")
        raise SourceError(f"{folder}: holds {listed}, want a new folder, or one with files of models alone")
    for path in foreign:
        path.unlink()


def _begun(wanted: list[FilePin], folder: Path) -> int:
    """Bytes that an earlier fetch left, from which this one goes on."""
    sizes = {f: p.stat().st_size for f in wanted if (p := folder / f"{f.path}.part").exists()}
    return sum(size for pin, size in sizes.items() if size <= pin.size)


def _check_disk(missing: int, files: int, folder: Path) -> None:
    need, free = missing + DISK_MARGIN, shutil.disk_usage(folder).free
    if need > free:
        raise SourceError(f"{folder}: has {free} bytes free, want {need} for {files} files")
