"""`pinrail explain NAME`: what exactly one service runs, why this many, what blocks, whether an upgrade is safe."""

from pinrail_contract.command import Command


def _run(argv: list[str]) -> int:
    from datetime import UTC, datetime

    from . import asking
    from .explain import explanation
    from .explain_text import explain_text

    parser = asking.parser("explain", "What a service runs, why so many replicas, what blocks, is an upgrade safe.")
    parser.add_argument("name")
    args = parser.parse_args(argv)
    facts = asking.ask(args, lambda lookup: lookup.facts_of(args.name))
    asking.show(args.output, explanation(facts, datetime.now(UTC)), explain_text)
    return 0


command = Command("say what a service runs, why so many, and whether it is safe to change", _run)
