"""`pinrail diff`: what an apply would change. Exit code 0 says nothing, 1 something, 2 that it fails or is refused."""

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pinrail_contract.command import Command
from pinrail_contract.errors import PinrailError

if TYPE_CHECKING:
    from .diff import Pair
    from .lookup import Lookup

Body = Mapping[str, Any]


def _run(argv: list[str]) -> int:
    from . import asking
    from .diff import diff_text, exit_code

    parser = asking.parser("diff", "What applying a file would change, or what the operator has yet to change.")
    parser.add_argument("name", nargs="?", default="", help="a service as it stands, instead of a file")
    parser.add_argument("-f", "--filename", default="", help="InferenceServices and ModelManifests; - is stdin")
    args = parser.parse_args(argv)
    if bool(args.name) == bool(args.filename):
        parser.error("want exactly one of NAME and -f FILE")
    try:
        given = _read(args.filename) if args.filename else []
        told = asking.ask(args, lambda lookup: _compared(lookup, given, args.name))
    except (PinrailError, OSError) as e:
        print(f"pinrail diff: {e}", file=sys.stderr)
        return 2
    asking.show(args.output, told, diff_text)
    return exit_code(told)


def _read(filename: str) -> list[dict[str, Any]]:
    """Raises ManifestError for a document that is no resource of ours with a name."""
    from pathlib import Path

    from pinrail_contract import documents
    from pinrail_contract.errors import ManifestError
    from pinrail_contract.pins import API_VERSION

    from .diff import KINDS

    where = "stdin" if filename == "-" else filename
    found = documents.read(Path("/dev/stdin" if filename == "-" else filename))
    if not found:
        raise ManifestError(where, f"holds no document, want {' or '.join(KINDS)}")
    for i, document in enumerate(found):
        seen = f"got {document.get('kind')!r} of {document.get('apiVersion')!r}"
        if document.get("kind") not in KINDS or document.get("apiVersion") != API_VERSION:
            raise ManifestError(
                f"{where}: document {i + 1}: kind", f"{seen}, want {' or '.join(KINDS)} of {API_VERSION}"
            )
        name = (document.get("metadata") or {}).get("name")
        if not isinstance(name, str) or not name:
            raise ManifestError(f"{where}: document {i + 1}: metadata.name", f"got {name!r}, want a name")
    return found


async def _compared(lookup: "Lookup", given: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    """Each document beside what the cluster holds; a service's name alone stands for its live resource."""
    from pinrail_contract.pins import KIND as MANIFEST_KIND

    from .diff import Pair, compared

    documents = given or [dict(await lookup.service(name))]
    placed = [{**d, "metadata": {"namespace": lookup.namespace, **d["metadata"]}} for d in documents]
    manifests = {_place(d): d for d in placed if d["kind"] == MANIFEST_KIND}
    schemas = {kind: await lookup.schema(kind) for kind in sorted({d["kind"] for d in placed})}
    told = []
    for document in placed:
        old = await lookup.resource(document["kind"], *_place(document))
        pair = Pair(new=document, old=old, schema=schemas[document["kind"]])
        around = None if document["kind"] == MANIFEST_KIND else await _around(lookup, pair, manifests)
        told.append(compared(pair, around))
    return told


async def _around(lookup: "Lookup", pair: "Pair", manifests: Mapping[tuple[str, str], Body]) -> Any:
    from datetime import UTC, datetime

    from .cluster import Cluster
    from .diff import Surroundings, parsed, with_manifest
    from .engine_fields import EngineType

    service, _ = parsed(pair)
    if service is None:
        return None
    observed = await Cluster(lookup.api).observe(service)
    needs_default = not service.engine.image or service.engine.type is EngineType.VLLM
    document = manifests.get((service.key.namespace, service.model.manifest))
    return Surroundings(
        observed=with_manifest(observed, document),
        now=datetime.now(UTC),
        operator_image=await lookup.operator_image() if needs_default else "",
        host_caches=await lookup.host_caches() if service.model.cache is not None else None,
    )


def _place(document: Body) -> tuple[str, str]:
    return document["metadata"]["namespace"], document["metadata"]["name"]


command = Command("show what an apply would change, and whether pods restart", _run)
