"""`pinrail verify MANIFEST DIR`: is this folder exactly what the manifest names?"""

import argparse
import sys
from pathlib import Path

from .command import Command
from .documents import read_manifest
from .folder import mismatches
from .progress import ProgressBar
from .termination import ExitCode


def _run(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="pinrail verify", description="Compare a folder with a manifest.")
    parser.add_argument("manifest", type=Path)
    parser.add_argument("folder", type=Path)
    args = parser.parse_args(argv)
    manifest = read_manifest(args.manifest)
    with ProgressBar("hashing", manifest.total_size) as progress:
        found = mismatches(args.folder, manifest, progress)
    if not found:
        print(f"OK: {len(manifest.files)} files, {manifest.total_size} bytes, {manifest.digest}")
        return ExitCode.OK
    for mismatch in found:
        print(mismatch)
    print(f"{args.folder}: {len(found)} of its files differ from the manifest", file=sys.stderr)
    return ExitCode.FAILED


command = Command("say OK, or name every file that differs from a manifest", _run)
