"""`pinrail up FILE`: run an InferenceService on this machine, with no cluster."""

import argparse
from pathlib import Path

from pinrail_contract import endpoints
from pinrail_contract.cache import volumes
from pinrail_contract.command import Command


def _run(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="pinrail up", description="Run an InferenceService on this machine.")
    parser.add_argument("file", type=Path, help="YAML that holds an InferenceService and its ModelManifest")
    parser.add_argument("--port", type=int, default=endpoints.PORT, help="of the endpoint on 127.0.0.1")
    parser.add_argument("--volumes", type=Path, default=volumes(), help="pvc://claim/path is VOLUMES/claim/path")
    parser.add_argument("--ask", default="", metavar="TEXT", help="ask this once, print the answer, stop")
    parser.add_argument("--max-tokens", type=int, default=128, help="of the answer to --ask")
    args = parser.parse_args(argv)

    import asyncio

    from rich.console import Console

    from . import request, up

    asked = request.read(args.file)
    folder = request.model_folder(asked, args.volumes)
    options = up.Options(args.port, args.ask, args.max_tokens)
    return asyncio.run(up.run(asked, folder, options, Console()))


command = Command("run an InferenceService on this machine, with no cluster", _run)
