"""`pinrail pin DIR`: write the manifest of a local model folder."""

import argparse
import os
import re
import sys
from pathlib import Path

from .canonical import loads_strict
from .command import Command
from .compare import Entry
from .errors import ModelError
from .folder import Progress, open_folder, sha256_hex
from .pins import SOURCES, Architecture, FilePin, ModelManifest, Role, Source, role_of
from .progress import ProgressBar
from .render import manifest_yaml

_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")


def pin_folder(folder: Path, source: Source, progress: Progress) -> ModelManifest:
    """Hash every file of a model folder.

    Raises ModelError that names all files which cannot be pinned, ManifestError for a name that no manifest may hold.
    """
    with open_folder(folder) as opened:
        _refuse_unservable(folder, opened)
        handles = {name: handle for name, handle in opened.items() if isinstance(handle, int)}
        files = [
            FilePin(name, os.fstat(handle).st_size, sha256_hex(handle, progress), role)
            for name, handle in handles.items()
            if (role := role_of(name)) is not None
        ]
        _refuse_incomplete(folder, [f.role for f in files])
        config = os.pread(handles["config.json"], 1 << 20, 0)
    architecture = Architecture.from_config(loads_strict(config, f"{folder / 'config.json'}"))
    manifest = ModelManifest.of(files, architecture, source)
    return ModelManifest.from_spec(manifest.to_spec())  # what is written must be what can be read


def _refuse_unservable(folder: Path, opened: dict[str, int | Entry]) -> None:
    wrong = [f"{name} ({handle.fault})" for name, handle in opened.items() if isinstance(handle, Entry)]
    wrong += [f"{name} (not a kind of file that is served)" for name in opened if role_of(name) is None]
    if wrong:
        raise ModelError(f"{folder}: cannot pin {', '.join(sorted(set(wrong)))}; want a folder of model files alone")


def _refuse_incomplete(folder: Path, roles: list[Role]) -> None:
    wanted = {Role.CONFIG: "config.json", Role.WEIGHTS: "*.safetensors", Role.TOKENIZER: "tokenizer.json"}
    missing = [name for role, name in wanted.items() if role not in roles]
    if missing:
        raise ModelError(f"{folder}: has no {' and no '.join(missing)}")


def _run(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="pinrail pin", description="Write the manifest of a local model folder.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--name", required=True, help="metadata.name of the ModelManifest")
    where = f"where pods find the files: {SOURCES}"
    parser.add_argument("--source", default="", help=where)
    parser.add_argument("--revision", default="", help="what the source calls this version: of hf:// the commit")
    parser.add_argument("-o", "--output", type=Path, help="file to write; standard output if absent")
    args = parser.parse_args(argv)
    if not _NAME.fullmatch(args.name):
        parser.error(f"--name: got {args.name!r}, want lower-case letters, digits, '-' and '.'")
    uri = args.source or f"file://{args.folder.resolve()}"
    source = Source.from_json({"uri": uri, "revision": args.revision}, "--source")
    total = sum(p.lstat().st_size for p in args.folder.iterdir()) if args.folder.is_dir() else 0
    with ProgressBar("hashing", total) as progress:
        manifest = pin_folder(args.folder, source, progress)
    text = manifest_yaml(args.name, manifest)
    if args.output is None:
        print(text, end="")
        return 0
    args.output.write_text(text, encoding="utf-8")
    print(f"{args.output}: {len(manifest.files)} files pinned, {manifest.digest}", file=sys.stderr)
    return 0


command = Command("write the manifest of a local model folder", _run)
