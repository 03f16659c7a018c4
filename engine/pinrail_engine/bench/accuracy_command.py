"""`pinrail bench accuracy`: the flags, the verified model, and a line for each way to keep weights."""

import argparse
from pathlib import Path

from pinrail_contract.canonical import loads_strict
from pinrail_contract.documents import read_manifest
from pinrail_contract.errors import ModelError
from pinrail_contract.launch import LaunchSpec
from pinrail_contract.termination import ExitCode

_EPILOG = "Other flags are --manifest and --model-dir, as of `pinrail serve`. On the CPU kernels alone."


def run(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="pinrail bench accuracy", epilog=_EPILOG, allow_abbrev=False)
    parser.add_argument("--json", action="store_true", help="one JSON object per line instead of a table")
    args, rest = parser.parse_known_args(argv)
    try:
        spec = LaunchSpec.parse(rest)
    except ValueError as e:
        parser.error(str(e))
    _measure(spec, args.json)
    return ExitCode.OK


def _measure(spec: LaunchSpec, as_json: bool) -> None:
    """Only the CPU kernels keep weights in so many ways, so nothing else is asked for."""
    from pinrail_kernels.native import Native

    from ..model.arch import Arch
    from ..run import threads
    from ..text.pipeline import TextPipeline
    from ..weights.verify import open_verified
    from .accuracy import measure, text

    with open_verified(Path(spec.model_dir), read_manifest(Path(spec.manifest)), spec.verification) as model:
        config = model.read("config.json")
        if config is None:
            raise ModelError("config.json: missing, want the description of the network")
        arch = Arch.from_config(loads_strict(config, "config.json"))
        tokens = TextPipeline.from_files(model.read).encode(text())
        for accuracy in measure(Native(threads.allowed()), model.weights(), arch, tokens):
            print(accuracy.to_json() if as_json else accuracy, flush=True)
