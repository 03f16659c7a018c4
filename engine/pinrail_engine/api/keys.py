"""Who may ask: the keys in a folder, as a Secret is mounted, read again when they change. I/O.

Each file of the folder is one key, so a new one is added, then the old one removed, without a restart. Keys are kept as
their sha256, are compared in a time that does not depend on them, and are told to nobody: not to logs, not in errors.
"""

import hashlib
import hmac
import logging
import re
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

from pinrail_engine.errors import KeysError

INTERVAL = 1.0  # seconds between two looks at the folder
MAX_KEYS = 1024
MAX_KEY = 4096  # bytes
_BLIND_LOOKS = 3  # looks in a row that fail, after which no key is valid: whoever revoked one must not wait for ever
_KEY = re.compile(rb"[\x21-\x7e]+")  # what a header can carry

_log = logging.getLogger("pinrail.api")

Stamp = tuple[tuple[str, int, int, int], ...]
"""Name, inode, time of last change and size of each file: a kubelet's swap of the folder changes the inodes."""


class ApiKeys:
    """The keys of a folder. `with` watches it, in a thread of its own: the event loop never waits for a disk."""

    def __init__(self, folder: Path) -> None:
        """Raises KeysError where the folder cannot be read, or holds no key."""
        self._folder = folder
        self._stop = threading.Event()
        self._failed = 0  # looks in a row
        self._watch = threading.Thread(target=self._run, name="api-keys", daemon=True)
        try:
            self._stamp = _stamp(folder)
            self._keys = _read(folder)
        except OSError as e:
            raise KeysError(folder, f"cannot be read: {e.strerror}") from e
        if not self._keys:
            raise KeysError(folder, "holds no key")

    def __enter__(self) -> Self:
        self._watch.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._stop.set()
        self._watch.join()

    def allow(self, given: bytes) -> bool:
        """Whether this is one of the keys. All are compared, and in full."""
        digest = hashlib.sha256(given).digest()
        found = False
        for key in self._keys:
            found |= hmac.compare_digest(key, digest)
        return found

    def look(self) -> None:
        """Read the keys again where a file has changed; a folder without any lets nobody in."""
        try:
            stamp = _stamp(self._folder)
            if stamp == self._stamp and not self._failed:
                return
            keys = _read(self._folder)
        except OSError as e:  # it may be amid a change
            self._failed += 1
            if self._failed == _BLIND_LOOKS:
                self._keys = frozenset()
                _log.error("api keys cannot be read, nobody is let in folder=%s error=%s", self._folder, e.strerror)
            return
        self._stamp, self._keys, self._failed = stamp, keys, 0
        _log.log(logging.INFO if keys else logging.ERROR, "api keys read again count=%d", len(keys))

    def _run(self) -> None:
        while not self._stop.wait(INTERVAL):
            self.look()


def _files(folder: Path) -> list[Path]:
    """In order; what begins with two dots is the kubelet's own."""
    return [path for path in sorted(folder.iterdir()) if not path.name.startswith("..") and path.is_file()]


def _stamp(folder: Path) -> Stamp:
    seen = [(path.name, path.stat()) for path in _files(folder)]
    return tuple((name, s.st_ino, s.st_mtime_ns, s.st_size) for name, s in seen)


def _read(folder: Path) -> frozenset[bytes]:
    """The sha256 of each key; a file that holds none is named, never shown."""
    found: set[bytes] = set()
    for path in _files(folder)[:MAX_KEYS]:
        with path.open("rb") as file:
            key = file.read(MAX_KEY + 1).strip()
        if len(key) > MAX_KEY or not _KEY.fullmatch(key):
            _log.warning("no api key in file=%s: want 1 to %d visible ASCII characters", path.name, MAX_KEY)
            continue
        found.add(hashlib.sha256(key).digest())
    return frozenset(found)
