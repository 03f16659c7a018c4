"""Small complete objects for the operator's tests; each argument changes one thing."""

import copy
from collections.abc import Mapping
from typing import Any

from pinrail_contract.metrics import LoadSample
from pinrail_contract.pins import ModelManifest
from pinrail_operator import names
from pinrail_operator.manifests import objects_for
from pinrail_operator.observed import Fault, Observed, Pod, Ref
from pinrail_operator.pods import revision
from pinrail_operator.types import InferenceService

IMAGE = "registry.test/pinrail/engine@sha256:" + "a" * 64
UID = "11111111-2222-3333-4444-555555555555"

ARCHITECTURE = {
    "class": "LlamaForCausalLM", "hiddenSize": 576, "layers": 30, "heads": 9, "kvHeads": 3, "headDim": 64,
    "vocabSize": 49152, "maxPositionEmbeddings": 8192,
}  # fmt: skip

MANIFEST_SPEC = {
    "schemaVersion": 1,
    "architecture": ARCHITECTURE,
    "files": [
        {"path": "config.json", "size": 512, "sha256": "1" * 64, "role": "config"},
        {"path": "model.safetensors", "size": 269060552, "sha256": "2" * 64, "role": "weights"},
        {"path": "tokenizer.json", "size": 1563271, "sha256": "3" * 64, "role": "tokenizer"},
    ],
    "source": {"uri": "pvc://models/tiny/v1"},
}


def manifest(uri: str = "pvc://models/tiny/v1", weights: str = "2" * 64) -> ModelManifest:
    spec = copy.deepcopy(MANIFEST_SPEC)
    spec["source"]["uri"] = uri
    spec["files"][1]["sha256"] = weights
    return ModelManifest.from_spec(spec)


DIGEST = manifest().digest


def body(status: Mapping[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    """An InferenceService of two fixed replicas; a value of None takes a field away."""
    whole = {"model": {"name": "tiny", "manifestRef": {"name": "tiny-v1"}, "digest": DIGEST}, "replicas": 2, **spec}
    return {
        "apiVersion": "pinrail.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": "chat", "namespace": "team", "uid": UID, "generation": 3, "resourceVersion": "7"},
        "spec": {key: value for key, value in whole.items() if value is not None},
        **({"status": dict(status)} if status is not None else {}),
    }


def service(**spec: Any) -> InferenceService:
    return InferenceService.from_body(body(**spec))


def cached(volume: Mapping[str, Any] | None = None, size: str = "500Gi", **spec: Any) -> InferenceService:
    """A service whose pods fetch into a cache, of a claim unless another volume is given."""
    cache = {**(volume or {"persistentVolumeClaim": {"claimName": "models-cache"}}), "maxSize": size}
    return service(**{**spec, "model": {**body()["spec"]["model"], "cache": cache}})


def scaled(minimum: int = 1, maximum: int = 4, **scaling: Any) -> InferenceService:
    bounds = {"minReplicas": minimum, "maxReplicas": maximum}
    return service(replicas=None, scaling={**bounds, **scaling})


def target(asked: InferenceService, pinned: ModelManifest | None = None) -> str:
    return revision(asked, pinned or manifest(), IMAGE)


def live_objects(
    asked: InferenceService, replicas: int = 2, pinned: ModelManifest | None = None, **counts: int
) -> dict[Ref, dict[str, Any]]:
    """All objects of a service as the API server would return them, rolled out unless `counts` say otherwise."""
    live = {}
    for applied in objects_for(asked, pinned or manifest(), IMAGE):
        held = copy.deepcopy(applied)
        held["metadata"] |= {"uid": "x", "resourceVersion": "1", "generation": 1}
        if held["kind"] == "Deployment":
            held["spec"]["replicas"] = replicas
            rolled_out = {"observed_generation": 1, "total": replicas, "updated": replicas, **counts}
            held["status"] = {
                "observedGeneration": rolled_out["observed_generation"],
                "replicas": rolled_out["total"],
                "updatedReplicas": rolled_out["updated"],
            }
        live[Ref.of(held)] = held
    return live


def pod(name: str = "chat-1", **changes: Any) -> Pod:
    """A ready pod of the default service's revision."""
    whole = {
        "name": name, "ip": "10.0.0.1", "revision": target(service()), "is_ready": True, "is_ending": False,
        "unschedulable": "", "faults": (), "uid": f"uid-of-{name}", "pin": DIGEST,
    }  # fmt: skip
    return Pod(**{**whole, **changes})


def faulty(fault: Fault, name: str = "chat-1", **changes: Any) -> Pod:
    return pod(name, is_ready=False, faults=(fault,), **changes)


def record(revision: str, number: int = 1, **data: Any) -> dict[str, Any]:
    """The ControllerRevision of the service `chat` for a revision."""
    owner = {"uid": UID}
    metadata = {"name": f"chat-{revision}", "labels": {names.REVISION: revision}, "ownerReferences": [owner]}
    return {"metadata": metadata, "revision": number, "data": data}


def observed(live: Mapping[Ref, Any] | None = None, pods: tuple[Pod, ...] = (), **changes: Any) -> Observed:
    """With a record of the revision that a live Deployment is of."""
    templates = [o["spec"]["template"] for o in (live or {}).values() if "template" in o.get("spec", {})]
    history = tuple(record(t["metadata"]["labels"][names.REVISION]) for t in templates)
    seen = {"manifest": manifest(), "manifest_problem": "", "live": live or {}, "pods": pods, "history": history}
    return Observed(**{**seen, **changes})  # type: ignore[arg-type]


def load(usage: float = 0.5, blocks: int = 100, **changes: Any) -> LoadSample:
    """A replica of 100 blocks and 10 request slots."""
    whole = {
        "running": 0, "waiting": 0, "kv_usage": usage, "kv_blocks": blocks, "waiting_blocks": 0.0, "max_num_seqs": 10,
    }  # fmt: skip
    return LoadSample(**{**whole, **changes})


LABELS = {names.SERVICE: "chat"}
