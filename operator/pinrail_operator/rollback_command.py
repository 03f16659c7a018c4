"""`pinrail rollback NAME`: the document that brings an earlier revision back, for Git or `kubectl apply`."""

from typing import Any

from pinrail_contract.command import Command


def _run(argv: list[str]) -> int:
    from . import asking, history
    from .history_text import record_of

    about = "Print the InferenceService that brings an earlier revision back, to be put into Git or applied; the number"
    parser = asking.parser("rollback", f"{about} of replicas and the like stay as they are now.")
    parser.set_defaults(output="yaml")
    parser.add_argument("name")
    parser.add_argument("--to", metavar="REVISION", default="", help="as `pinrail history` lists it; the one before")
    args = parser.parse_args(argv)
    facts = asking.ask(args, lambda lookup: lookup.facts_of(args.name))
    record = record_of(facts, args.to)
    metadata: dict[str, Any] = {key: facts.body["metadata"][key] for key in ("name", "namespace")}
    spec = history.restored(record, facts.body["spec"])
    head = {"apiVersion": facts.body["apiVersion"], "kind": facts.body["kind"], "metadata": metadata}
    asking.show("json" if args.output == "json" else "yaml", {**head, "spec": spec}, str)
    return 0


command = Command("print the document that brings an earlier revision back", _run)
