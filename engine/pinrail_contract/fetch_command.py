"""`pinrail fetch`: bring a manifest's files into a folder; the init container of https:// models."""

import argparse
import sys
from pathlib import Path

from . import termination
from .cached_fetch import fetch_cached
from .command import Command
from .documents import read_manifest
from .errors import CacheError, SourceError
from .fetch import fetch
from .fetch_page import Address, showing
from .launch import parse_bytes
from .model_cache import ModelCache
from .pins import ModelManifest
from .progress import ProgressBar


def _run(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="pinrail fetch", description="Bring a manifest's files into a folder.")
    parser.add_argument("--manifest", type=Path, required=True)
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--output", type=Path, help="folder; goes on where an earlier fetch stopped")
    where.add_argument(
        "--cache", type=Path, help="folder of models that processes share; each has one of its own there"
    )
    parser.add_argument("--max-size", type=parse_bytes, help="bytes that all models of --cache may take, such as 500Gi")
    parser.add_argument("--holder", type=Path, help="file that `pinrail hold` locks; waits for that before it ends")
    page = "where its metrics page says how far it is; in a pod that is the engine's port, elsewhere nowhere"
    parser.add_argument("--metrics-address", type=Address.parse, metavar="HOST:PORT", help=page)
    args = parser.parse_args(argv)
    if (args.cache is None) != (args.max_size is None):
        parser.error("want --max-size with --cache, and only there")
    manifest = read_manifest(args.manifest)
    try:
        with ProgressBar("fetching", manifest.total_size) as progress:
            folder = _fetch(args, manifest, progress)
    except (SourceError, CacheError) as e:
        is_cache = isinstance(e, CacheError)
        reason = termination.Reason.CACHE_FAILED if is_cache else termination.Reason.FETCH_FAILED
        termination.write(termination.Termination(reason, str(e)))
        raise
    print(f"{folder}: {len(manifest.files)} files, {manifest.digest}", file=sys.stderr)
    return 0


def _fetch(args: argparse.Namespace, manifest: ModelManifest, progress: ProgressBar) -> Path:
    """The folder that holds the model."""
    page = showing(args.metrics_address or Address.of_pod(), lambda: progress.done, manifest.total_size)
    if args.cache is None:
        fetch(manifest, args.output, progress, page=page)
        return Path(args.output)
    cache = ModelCache.open(args.cache)
    return fetch_cached(manifest, cache, args.max_size, args.holder, progress=progress, say=_say, page=page)


def _say(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)


command = Command("bring a manifest's files into a folder, verified and resumable", _run)
