"""`pinrail rollback NAME`: the document that brings an earlier revision back, for Git or `kubectl apply`."""

from typing import TYPE_CHECKING, Any

from pinrail_contract.command import Command

if TYPE_CHECKING:
    from .explain import Facts
    from .lookup import Lookup


def _run(argv: list[str]) -> int:
    from . import asking, history
    from .history_text import record_of

    about = "Print the InferenceService that brings an earlier revision back, to be put into Git or applied; the number"
    parser = asking.parser("rollback", f"{about} of replicas and the like stay as they are now.")
    parser.set_defaults(output="yaml")
    parser.add_argument("name")
    parser.add_argument("--to", metavar="REVISION", default="", help="as `pinrail history` lists it; the one before")
    args = parser.parse_args(argv)

    async def question(lookup: "Lookup") -> "Facts":
        return await lookup.facts(await lookup.service(args.name))

    facts = asking.ask(args, question)
    record = record_of(facts, args.to)
    metadata: dict[str, Any] = {key: facts.body["metadata"][key] for key in ("name", "namespace")}
    spec = history.restored(record, facts.body["spec"])
    head = {"apiVersion": facts.body["apiVersion"], "kind": facts.body["kind"], "metadata": metadata}
    asking.show("json" if args.output == "json" else "yaml", {**head, "spec": spec}, str)
    return 0


command = Command("print the document that brings an earlier revision back", _run)
