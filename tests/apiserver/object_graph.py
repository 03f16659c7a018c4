"""What a namespace holds of ours, without what differs between two runs of the same thing."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from pinrail_operator import names

_CHANGING = ("uid", "resourceVersion", "creationTimestamp", "generation", "managedFields", "ownerReferences")


def normalised(objects: Iterable[Mapping[str, Any]], namespace: str) -> list[Any]:
    """The objects that a garbage collector would leave: those whose owner is gone are no part of it."""
    known = list(objects)
    alive = {o["metadata"]["uid"] for o in known}
    kept = [o for o in known if all(r["uid"] in alive for r in o["metadata"].get("ownerReferences", []))]
    text = json.dumps([_strip(o) for o in kept], sort_keys=True).replace(namespace, "NAMESPACE")
    return sorted(json.loads(text), key=lambda o: (o["kind"], o["metadata"]["name"]))


def _strip(o: Mapping[str, Any]) -> dict[str, Any]:
    annotations = {k: v for k, v in o["metadata"].get("annotations", {}).items() if k != names.APPLIED}  # holds the uid
    metadata = {k: v for k, v in o["metadata"].items() if k not in _CHANGING} | {"annotations": annotations}
    spec = {k: v for k, v in o["spec"].items() if not k.startswith(("clusterIP", "ipFamil"))} if "spec" in o else {}
    conditions = [(c["type"], c["status"], c.get("reason")) for c in o.get("status", {}).get("conditions", [])]
    told = {k: v for k, v in o.get("status", {}).items() if k not in ("conditions", "observedGeneration", "scaling")}
    return {"kind": o["kind"], "metadata": metadata, "spec": spec, "conditions": conditions, "status": told}
