"""`pinrail fetch`: bring a manifest's files into a folder; the init container of https:// models."""

import argparse
import sys
from pathlib import Path

from . import termination
from .command import Command
from .documents import read_manifest
from .errors import SourceError
from .fetch import fetch
from .fetch_page import Address, showing
from .progress import ProgressBar


def _run(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="pinrail fetch", description="Bring a manifest's files into a folder.")
    parser.add_argument("--manifest", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True, help="folder; goes on where an earlier fetch stopped")
    where = "where its metrics page says how far it is; in a pod that is the engine's port, elsewhere nowhere"
    parser.add_argument("--metrics-address", type=Address.parse, metavar="HOST:PORT", help=where)
    args = parser.parse_args(argv)
    manifest = read_manifest(args.manifest)
    try:
        with (
            ProgressBar("fetching", manifest.total_size) as progress,
            showing(args.metrics_address or Address.of_pod(), lambda: progress.done, manifest.total_size),
        ):
            fetch(manifest, args.output, progress)
    except SourceError as e:
        termination.write(termination.Termination(termination.Reason.FETCH_FAILED, str(e)))
        raise
    print(f"{args.output}: {len(manifest.files)} files, {manifest.digest}", file=sys.stderr)
    return 0


command = Command("bring a manifest's files into a folder, verified and resumable", _run)
