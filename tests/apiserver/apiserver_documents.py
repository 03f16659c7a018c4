"""The two resources that a user writes, as fresh documents; each argument changes one thing."""

import copy
from typing import Any

from operator_builders import DIGEST, MANIFEST_SPEC


def pin(
    weights: str = "2" * 64, name: str = "tiny-v1", uri: str = "pvc://models/tiny/v1", **fields: Any
) -> dict[str, Any]:
    spec = copy.deepcopy(MANIFEST_SPEC) | {"source": {"uri": uri}, **fields}
    spec["files"][1]["sha256"] = weights
    return {"apiVersion": "pinrail.dev/v1alpha1", "kind": "ModelManifest", "metadata": {"name": name}, "spec": spec}


def service(**spec: Any) -> dict[str, Any]:
    model = {"name": "tiny", "manifestRef": {"name": "tiny-v1"}, "digest": DIGEST}
    whole = {"model": model, "replicas": 2, **spec}
    return {
        "apiVersion": "pinrail.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": "chat"},
        "spec": {key: value for key, value in whole.items() if value is not None},
    }
