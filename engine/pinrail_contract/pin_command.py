"""`pinrail pin DIR`: write the manifest of a local model folder."""

import argparse
import os
import re
import sys
from dataclasses import fields
from pathlib import Path

from .canonical import loads_strict
from .command import Command
from .compare import Entry
from .errors import ModelError
from .folder import Progress, open_folder, sha256_hex
from .pins import SOURCES, Architecture, FilePin, ModelManifest, Role, Source, role_of
from .progress import ProgressBar
from .render import manifest_yaml
from .runtime import BACKENDS, COMPUTE_DTYPES, DTYPES, UNSAID, WEIGHT_DTYPES, Runtime

_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")


def pin_folder(folder: Path, source: Source, progress: Progress, runtime: Runtime = UNSAID) -> ModelManifest:
    """Hash every file of a model folder; `runtime` is the engine and the numerics to pin beside them.

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
    manifest = ModelManifest.of(files, architecture, source, runtime)
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
    _add_runtime(parser)
    parser.add_argument("-o", "--output", type=Path, help="file to write; standard output if absent")
    args = parser.parse_args(argv)
    if not _NAME.fullmatch(args.name):
        parser.error(f"--name: got {args.name!r}, want lower-case letters, digits, '-' and '.'")
    uri = args.source or f"file://{args.folder.resolve()}"
    source = Source.from_json({"uri": uri, "revision": args.revision}, "--source")
    runtime = _runtime(args)
    total = sum(p.lstat().st_size for p in args.folder.iterdir()) if args.folder.is_dir() else 0
    with ProgressBar("hashing", total) as progress:
        manifest = pin_folder(args.folder, source, progress, runtime)
    text = manifest_yaml(args.name, manifest)
    if args.output is None:
        print(text, end="")
        return 0
    args.output.write_text(text, encoding="utf-8")
    print(f"{args.output}: {len(manifest.files)} files pinned, {manifest.digest}", file=sys.stderr)
    return 0


def _add_runtime(parser: argparse.ArgumentParser) -> None:
    """What computes may be pinned too; `/v1/models` of a running engine says all of it."""
    pins = parser.add_argument_group("engine and numerics", "what may differ where nothing is given")
    pins.add_argument(
        "--engine-version", type=_word, metavar="VERSION", help="that the serving engine must have, exactly"
    )
    pins.add_argument("--backend", choices=BACKENDS)
    pins.add_argument(
        "--instructions", type=_word, metavar="NAME", help="instruction set such as avx512, or accelerator's name"
    )
    pins.add_argument("--weight-dtype", choices=WEIGHT_DTYPES, help="that weights are kept in")
    pins.add_argument("--compute-dtype", choices=COMPUTE_DTYPES, help="that weights are multiplied in")
    pins.add_argument("--kv-cache-dtype", choices=DTYPES)


def _word(text: str) -> str:
    if not text:
        raise argparse.ArgumentTypeError("got '', want a word, or no such option")
    return text


def _runtime(args: argparse.Namespace) -> Runtime:
    given = {f.name: getattr(args, f.name) for f in fields(Runtime)}
    wanted = Runtime(**{name: value for name, value in given.items() if value is not None})
    return Runtime.from_spec(wanted.to_spec())  # raises ManifestError that names the field


command = Command("write the manifest of a local model folder", _run)
