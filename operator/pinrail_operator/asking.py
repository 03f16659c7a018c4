"""What `pinrail status`, `explain` and `diff` share: options, one question to a cluster, three forms of answer. I/O."""

import argparse
import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from .lookup import Lookup

Answer = TypeVar("Answer")


def parser(prog: str, description: str) -> argparse.ArgumentParser:
    """With the options that all three have."""
    made = argparse.ArgumentParser(prog=f"pinrail {prog}", description=f"{description} Reads the cluster alone.")
    made.add_argument("--context", default="", help="of the kubeconfig; its current one if absent")
    made.add_argument("-n", "--namespace", default="", help="the context's own if absent")
    made.add_argument("-o", "--output", choices=("text", "json", "yaml"), default="text")
    return made


def ask(args: argparse.Namespace, question: Callable[["Lookup"], Awaitable[Answer]]) -> Answer:
    """One question to the cluster that the options name.

    Raises OperatorError where there is no kubeconfig, no such CRD, no answer or no right to ask.
    """
    from .lookup import Lookup

    async def asked() -> Answer:
        with Lookup.open(args.context, args.namespace) as lookup:
            await lookup.require_crds()
            return await question(lookup)

    return asyncio.run(asked())


def show(form: str, facts: Any, text: Callable[[Any], str]) -> None:
    """Print facts as JSON, YAML or what `text` makes of them."""
    print(written(form, facts, text))


def written(form: str, facts: Any, text: Callable[[Any], str]) -> str:
    if form == "json":
        return json.dumps(facts, indent=2, ensure_ascii=False)
    if form == "yaml":
        import yaml

        return str(yaml.safe_dump(facts, sort_keys=False, allow_unicode=True)).rstrip("\n")
    return text(facts)
