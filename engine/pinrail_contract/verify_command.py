"""`pinrail verify MANIFEST DIR`: is this folder exactly what the manifest names?

Before an engine that does not look itself, this runs as an init container; what it found it leaves to the kubelet.
"""

import argparse
import sys
from pathlib import Path

from .command import Command
from .documents import read_manifest
from .folder import mismatches
from .launch import Verification
from .progress import ProgressBar
from .termination import ExitCode, Reason, Termination, write


def _run(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="pinrail verify", description="Compare a folder with a manifest.")
    parser.add_argument("manifest", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--digest", default="", help="sha256:… that the manifest must have")
    parser.add_argument(
        "--verification", type=Verification, choices=list(Verification), default=Verification.ENFORCE,
        help="Warn names what differs, and exits with 0",
    )  # fmt: skip
    args = parser.parse_args(argv)
    manifest = read_manifest(args.manifest)
    if args.digest and manifest.digest != args.digest:
        message = f"{args.manifest}: has digest {manifest.digest}, want {args.digest}"
        print(f"pinrail verify: {message}", file=sys.stderr)
        write(Termination(Reason.MANIFEST_MISMATCH, message))
        return ExitCode.MANIFEST_MISMATCH
    with ProgressBar("hashing", manifest.total_size) as progress:
        found = mismatches(args.folder, manifest, progress)
    if not found:
        print(f"OK: {len(manifest.files)} files, {manifest.total_size} bytes, {manifest.digest}")
        write(Termination(Reason.VERIFIED, manifest.digest))
        return ExitCode.OK
    for mismatch in found:
        print(mismatch)
    print(f"{args.folder}: {len(found)} of its files differ from the manifest", file=sys.stderr)
    differ = "1 file differs" if len(found) == 1 else f"{len(found)} files differ"
    listed = "; ".join(str(m) for m in found)
    write(Termination(Reason.MODEL_MISMATCH, f"{differ} from manifest {manifest.digest}: {listed}"))
    return ExitCode.OK if args.verification is Verification.WARN else ExitCode.FAILED


command = Command("say OK, or name every file that differs from a manifest", _run)
