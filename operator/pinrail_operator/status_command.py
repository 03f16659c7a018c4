"""`pinrail status`: the services of a cluster, a line each."""

from pinrail_contract.command import Command


def _run(argv: list[str]) -> int:
    from datetime import UTC, datetime
    from functools import partial

    from . import asking
    from .overview import overview, overview_text

    parser = asking.parser("status", "The services of a namespace, a line each, or one of them.")
    parser.add_argument("name", nargs="?", default="", help="one service; all of the namespace if absent")
    parser.add_argument("-A", "--all-namespaces", action="store_true")
    args = parser.parse_args(argv)
    if args.name and args.all_namespaces:
        parser.error("got NAME and -A, want one of them")
    if args.name:
        bodies = [asking.ask(args, lambda lookup: lookup.service(args.name))]
    else:
        bodies = asking.ask(args, lambda lookup: lookup.services(everywhere=args.all_namespaces))
    text = partial(overview_text, namespaces=args.all_namespaces, details=bool(args.name))
    asking.show(args.output, overview(bodies, datetime.now(UTC)), text)
    return 0


command = Command("show what runs in a cluster, a line for each service", _run)
