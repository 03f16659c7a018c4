"""Bring a manifest's files into a folder: resumable, verified, exactly those files and no others. I/O.

A file is written as NAME.part and takes its name only once its sha256 is right, so a folder never holds a
wrong file under a right name. What is already there and right is not fetched again.
"""

import contextlib
import hashlib
import http.client
import shutil
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import IO

from .errors import SourceError
from .folder import Progress, mismatches, no_progress
from .pins import FilePin, ModelManifest, role_of

CHUNK = 1 << 20  # bytes
TIMEOUT = 30.0  # seconds without a byte
ATTEMPTS = 5  # per file, each going on where the last one stopped
DISK_MARGIN = 64 << 20  # bytes left free

Wait = Callable[[float], None]
"""Takes seconds; `time.sleep`, but for tests."""

Open = Callable[[str, int], contextlib.AbstractContextManager[IO[bytes]]]
"""(file name, offset in bytes) -> the file's bytes from there on."""


def fetch(manifest: ModelManifest, folder: Path, progress: Progress = no_progress, wait: Wait = time.sleep) -> None:
    """Make `folder` hold exactly the manifest's files.

    Raises:
        SourceError: The source lacks a file, delivers other bytes, keeps failing, the disk is too small, or `folder`
            holds files that are no model's.
    """
    folder.mkdir(parents=True, exist_ok=True)
    wrong = {m.path for m in mismatches(folder, manifest)}
    _remove_foreign(manifest, folder)
    wanted = [f for f in manifest.files if f.path in wrong]
    _check_disk(wanted, folder)
    progress(manifest.total_size - sum(f.size for f in wanted))
    opener = opener_of(manifest)
    for pin in wanted:
        _fetch_file(pin, folder, partial(_continue, pin, opener, progress), wait)


def opener_of(manifest: ModelManifest) -> Open:
    """How to read one file of the manifest's source; raises SourceError for a kind that is mounted, not fetched."""
    source = manifest.source
    if source.scheme == "https":
        return lambda name, offset: _open_https(source.uri.rstrip("/") + "/" + urllib.parse.quote(name), offset)
    if source.scheme == "file":
        return lambda name, offset: _open_file(Path(source.location) / name, offset)
    raise SourceError(f"source.uri: {source.uri} is mounted, not fetched; want https:// or file://")


def _fetch_file(pin: FilePin, folder: Path, transfer: Callable[[Path], str], wait: Wait) -> None:
    """Repeat `transfer`, which takes the part file and returns its sha256, until the file is whole."""
    part, whole = folder / f"{pin.path}.part", folder / pin.path
    whole.unlink(missing_ok=True)
    for attempt in range(1, ATTEMPTS + 1):
        try:
            digest = transfer(part)
            break
        except (OSError, http.client.HTTPException) as e:
            if final := _final(e):
                raise SourceError(f"{pin.path}: the source {final}") from e
            if attempt == ATTEMPTS:
                raise SourceError(f"{pin.path}: gave up after {ATTEMPTS} attempts: {e}") from e
            wait(2.0**attempt)
    if digest != pin.sha256:
        part.unlink()
        raise SourceError(f"{pin.path}: the source has sha256 {digest}, want {pin.sha256}")
    part.rename(whole)


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


@contextlib.contextmanager
def _open_https(url: str, offset: int) -> Iterator[IO[bytes]]:
    headers = {"Range": f"bytes={offset}-"} if offset else {}
    opener = urllib.request.build_opener(_HttpsOnly)
    with opener.open(urllib.request.Request(url, headers=headers), timeout=TIMEOUT) as response:
        if offset and response.status != 206:  # this server does not resume: skip what we have
            _skip(response, offset)
        yield response


class _HttpsOnly(urllib.request.HTTPRedirectHandler):
    """A redirect away from https would let the network choose the bytes, and is refused by name."""

    def redirect_request(  # type: ignore[no-untyped-def]
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers, newurl: str
    ) -> urllib.request.Request | None:
        if not newurl.startswith("https://"):
            raise SourceError(f"{req.full_url}: redirects to {newurl}, want https://")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


@contextlib.contextmanager
def _open_file(path: Path, offset: int) -> Iterator[IO[bytes]]:
    try:
        with path.open("rb") as f:
            f.seek(offset)
            yield f
    except FileNotFoundError as e:
        raise SourceError(f"{path.name}: the source has no such file") from e


def _skip(source: IO[bytes], n: int) -> None:
    while n > 0 and (chunk := source.read(min(CHUNK, n))):
        n -= len(chunk)


def _remove_foreign(manifest: ModelManifest, folder: Path) -> None:
    """Files of another model left in the folder would make it fail verification.

    Raises SourceError, before anything is removed, where the folder holds what is no model's: it is someone's own.
    """
    names = {f.path for f in manifest.files}
    foreign = [p for p in folder.iterdir() if p.name.removesuffix(".part") not in names and not p.is_dir()]
    own = sorted(p.name for p in foreign if role_of(p.name.removesuffix(".part")) is None)
    if own:
        listed = ", ".join(own[:3]) + (" …" if len(own) > 3 else "")
        raise SourceError(f"{folder}: holds {listed}, want a new folder, or one with files of models alone")
    for path in foreign:
        path.unlink()


def _check_disk(wanted: list[FilePin], folder: Path) -> None:
    have = sum(p.stat().st_size for f in wanted if (p := folder / f"{f.path}.part").exists())
    need, free = sum(f.size for f in wanted) - have + DISK_MARGIN, shutil.disk_usage(folder).free
    if need > free:
        raise SourceError(f"{folder}: has {free} bytes free, want {need} for {len(wanted)} files")
