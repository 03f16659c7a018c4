"""The schema says what the types say, and the chart carries the same schema."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from operator_builders import MANIFEST_SPEC, body

from pinrail_contract.pins import MAX_FILES, ModelManifest, Role
from pinrail_operator.types import MAX_REPLICAS, InferenceService

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "crds").glob("*.yaml"))


def schema(plural: str) -> dict[str, Any]:
    document = yaml.safe_load((ROOT / "crds" / f"{plural}.yaml").read_text())
    return document["spec"]["versions"][0]["schema"]["openAPIV3Schema"]


def defaulted(node: dict[str, Any], value: Any) -> Any:
    """What the API server makes of a value: schema defaults filled in."""
    if node.get("type") == "object" and "properties" in node:
        filled = dict(value)
        for name, child in node["properties"].items():
            if name not in filled and "default" in child:
                filled[name] = child["default"]
            if name in filled:
                filled[name] = defaulted(child, filled[name])
        return filled
    return value


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.name)
def test_the_chart_carries_the_same_crds(file: Path) -> None:
    copy = ROOT / "charts" / "pinrail" / "crds" / file.name
    assert copy.read_text() == file.read_text(), "cp crds/*.yaml charts/pinrail/crds/"


@pytest.mark.parametrize("spec", [{}, {"replicas": None, "scaling": {"maxReplicas": 3}}], ids=["fixed", "scaled"])
def test_schema_defaults_are_the_types_defaults(spec: dict[str, Any]) -> None:
    bare = body(**spec)
    filled = {**bare, "spec": defaulted(schema("inferenceservices")["properties"]["spec"], bare["spec"])}
    assert filled["spec"]["limits"]["kvCacheMemory"] == "512Mi"
    assert InferenceService.from_body(filled) == InferenceService.from_body(bare)


def test_the_schema_knows_the_fields_that_the_types_know() -> None:
    """One value for each field of the schema is accepted by the parser, at every depth."""
    spec = schema("inferenceservices")["properties"]["spec"]
    full = {name: _example(child, name) for name, child in spec["properties"].items() if name != "replicas"}
    whole = body(**full, replicas=None)
    InferenceService.from_body(whole)


_CHOSEN = {
    "manifestRef": {"name": "m"}, "digest": "sha256:" + "0" * 64, "image": "e@sha256:" + "0" * 64, "name": "m",
    "cacheUtilization": "0.8", "scaleDownUtilization": "0.4", "kvCacheMemory": "1Gi",
    "priorityClassName": "p", "runtimeClassName": "r", "imagePullSecrets": [{"name": "s"}],
}  # fmt: skip


def _example(node: dict[str, Any], name: str = "") -> Any:
    if name in _CHOSEN:
        return _CHOSEN[name]
    if node.get("type") == "object":
        return {key: _example(child, key) for key, child in node.get("properties", {}).items()}
    if node.get("type") == "array":
        return [_example(node["items"])]
    if "enum" in node:
        return node["enum"][0]
    return {"integer": node.get("minimum", 1), "boolean": True, "string": "x"}[node["type"]]


def test_manifest_bounds_are_the_contracts() -> None:
    spec = schema("modelmanifests")["properties"]["spec"]["properties"]
    assert spec["files"]["maxItems"] == MAX_FILES
    assert spec["files"]["items"]["properties"]["role"]["enum"] == list(Role)
    assert set(spec) == set(MANIFEST_SPEC)
    assert set(spec["architecture"]["properties"]) == set(MANIFEST_SPEC["architecture"])


def test_replica_bounds_are_the_types() -> None:
    spec = schema("inferenceservices")["properties"]["spec"]["properties"]
    assert spec["replicas"]["maximum"] == MAX_REPLICAS
    assert spec["scaling"]["properties"]["maxReplicas"]["maximum"] == MAX_REPLICAS


@pytest.mark.parametrize("file", sorted((ROOT / "crds" / "examples").glob("*.yaml")), ids=lambda f: f.name)
def test_examples_pin_the_manifests_that_they_hold(file: Path) -> None:
    documents = list(yaml.safe_load_all(file.read_text()))
    digests = {
        d["metadata"]["name"]: ModelManifest.from_spec(d["spec"]).digest for d in documents if "files" in d["spec"]
    }
    for document in documents:
        model = document["spec"].get("model", {})
        if model.get("manifestRef", {}).get("name") in digests:
            assert model["digest"] == digests[model["manifestRef"]["name"]]
