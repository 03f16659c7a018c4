"""`pinrail history NAME`: the revisions that a service has had, and what each one changed."""

from typing import TYPE_CHECKING

from pinrail_contract.command import Command

if TYPE_CHECKING:
    from .explain import Facts
    from .lookup import Lookup


def _run(argv: list[str]) -> int:
    from datetime import UTC, datetime

    from . import asking
    from .history_text import history_text, told

    parser = asking.parser("history", "The revisions that a service has had, newest first, and what each changed.")
    parser.add_argument("name")
    args = parser.parse_args(argv)

    async def question(lookup: "Lookup") -> "Facts":
        return await lookup.facts(await lookup.service(args.name))

    asking.show(args.output, told(asking.ask(args, question), datetime.now(UTC)), history_text)
    return 0


command = Command("list the revisions that a service has had, and what each one changed", _run)
