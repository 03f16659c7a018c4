"""`pinrail hold`: keep a model in a cache for as long as a pod lives; the sidecar of fetches into a cache.

An engine's container may start again without the fetch before it: the files must be there still.
"""

import argparse
import contextlib
import signal
import time
from pathlib import Path
from types import FrameType

from . import termination
from .command import Command
from .documents import read_manifest
from .errors import CacheError
from .model_cache import ModelCache, held

_TOUCH = 3600.0  # seconds between two notes that the model is still used: who is killed leaves none


class _Ended(Exception):
    """A signal has come."""


def _run(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="pinrail hold", description="Keep a model in a cache, until a signal.")
    parser.add_argument("--manifest", type=Path, required=True)
    parser.add_argument("--cache", type=Path, required=True, help="folder of models that processes share")
    parser.add_argument("--holder", type=Path, required=True, help="file that is locked while the model is held")
    args = parser.parse_args(argv)
    for sign in (signal.SIGTERM, signal.SIGINT):
        signal.signal(sign, _end)  # the first process of a container has no other way to end
    try:
        with contextlib.suppress(_Ended):
            _hold(args.manifest, args.cache, args.holder)
    except CacheError as e:
        termination.write(termination.Termination(termination.Reason.CACHE_FAILED, str(e)))
        raise
    return 0


def _hold(manifest: Path, cache: Path, holder: Path) -> None:
    with held(ModelCache.open(cache), read_manifest(manifest).files_digest, holder) as touch:
        while True:
            time.sleep(_TOUCH)
            touch()


def _end(_signal: int, _frame: FrameType | None) -> None:
    raise _Ended


command = Command("keep a model in a cache for as long as a pod lives", _run)
