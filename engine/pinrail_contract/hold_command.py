"""`pinrail hold`: keep a model in a cache for as long as a pod lives; the sidecar of fetches into a cache.

An engine's container may start again without the fetch before it: the files must be there still. It ends by a signal
alone: a sidecar that is not running makes its pod unready, and so takes an engine that serves out of service. What is
wrong with the cache is the fetch's to report.
"""

import argparse
import contextlib
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from .command import Command
from .documents import read_manifest
from .errors import CacheError
from .model_cache import ModelCache, held, in_words

_TOUCH = 3600.0  # seconds between two notes that the model is still used: who is killed leaves none
_PAUSE = 5.0  # seconds between two attempts to begin; the fetch waits for longer


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
    with contextlib.suppress(_Ended):
        _hold(args.manifest, args.cache, args.holder)
    return 0


def _hold(manifest: Path, cache: Path, holder: Path, wait: Callable[[float], None] = time.sleep) -> None:
    """Until a signal; `wait` takes seconds."""
    files, said = read_manifest(manifest).files_digest, set[str]()
    while True:
        try:
            with held(ModelCache.open(cache), files, holder) as touch:
                while True:
                    wait(_TOUCH)
                    _note(touch, cache, said)
        except CacheError as e:
            _tell(e, said)
        wait(_PAUSE)


def _note(touch: Callable[[], None], cache: Path, said: set[str]) -> None:
    """That the model is still used; it is held whether that can be noted or not."""
    try:
        with in_words(cache):
            touch()
    except CacheError as e:
        _tell(e, said)


def _tell(error: CacheError, said: set[str]) -> None:
    """Each error once, since one may last for days; `said` keeps those that were told."""
    if str(error) not in said:
        said.add(str(error))
        print(f"pinrail hold: {error}; goes on trying", file=sys.stderr, flush=True)


def _end(_signal: int, _frame: FrameType | None) -> None:
    raise _Ended


command = Command("keep a model in a cache for as long as a pod lives", _run)
