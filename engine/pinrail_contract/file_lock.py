"""Locks on files (flock), which end with the process that has them, however it ends. I/O.

They hold between processes of one machine, and between machines where the file system says so (NFS of version 4).
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def locked(path: Path, *, shared: bool = False) -> Iterator[int]:
    """Wait for the lock, and have it while the block runs; yields the file's descriptor. Raises OSError."""
    handle = _open(path)
    try:
        fcntl.flock(handle, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
        yield handle
    finally:
        os.close(handle)


@contextmanager
def if_free(path: Path) -> Iterator[int | None]:
    """The exclusive lock while the block runs, or None at once where somebody has the file locked. Raises OSError."""
    handle = _open(path)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield None
        else:
            yield handle
    finally:
        os.close(handle)


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
