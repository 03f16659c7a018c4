"""`pinrail import FILE.gguf DIR`: a standard safetensors folder out of a GGUF file."""

import argparse
import sys
from pathlib import Path

from pinrail_contract.command import Command
from pinrail_contract.progress import ProgressBar


def _run(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="pinrail import", description="Make a model folder out of a GGUF file.")
    parser.add_argument("file", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16", help="of the weights written")
    args = parser.parse_args(argv)

    from .gguf_model import import_gguf, open_reader

    parameters = sum(int(t.n_elements) for t in open_reader(args.file).tensors)
    with ProgressBar("importing", parameters, "M parameters") as progress:
        import_gguf(args.file, args.folder, args.dtype, progress)
    print(f"{args.folder}: {parameters / 1e6:.1f} M parameters as {args.dtype}", file=sys.stderr)
    return 0


command = Command("make a model folder out of a GGUF file", _run)
