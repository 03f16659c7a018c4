"""`pinrail history NAME`: the revisions that a service has had, and what each one changed."""

from pinrail_contract.command import Command


def _run(argv: list[str]) -> int:
    from datetime import UTC, datetime

    from . import asking
    from .history_text import history_text, told

    parser = asking.parser("history", "The revisions that a service has had, newest first, and what each changed.")
    parser.add_argument("name")
    args = parser.parse_args(argv)
    facts = asking.ask(args, lambda lookup: lookup.facts_of(args.name))
    asking.show(args.output, told(facts, datetime.now(UTC)), history_text)
    return 0


command = Command("list the revisions that a service has had, and what each one changed", _run)
