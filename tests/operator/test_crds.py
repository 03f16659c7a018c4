"""The schema says what the types say, and the chart carries the same schema."""

import importlib.util
import re
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import yaml
from operator_builders import MANIFEST_SPEC, body

from pinrail_contract.pins import MAX_FILES, ModelManifest, Role
from pinrail_contract.runtime import BACKENDS, COMPUTE_DTYPES, DTYPES, WEIGHT_DTYPES, Runtime
from pinrail_operator.engine_args import OURS, UNPINNING
from pinrail_operator.network_policy import MOST_EXCEPTIONS, MOST_LABELS, MOST_PEERS, MOST_PORTS, MOST_VALUES, Operator
from pinrail_operator.scaling_policy import MAX_REPLICAS
from pinrail_operator.types import InferenceService

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


BORN_WITH_DEFAULTS = {
    "replicas", "verification.mode", "engine.type", "engine.backend", "engine.dtype", "engine.quantization",
    "engine.prefixCache", "engine.cacheEvents", "limits.maxNumSeqs", "limits.maxNumBatchedTokens", "limits.maxQueued",
    "limits.blockSize", "limits.kvCacheMemory", "scheduling.policy", "drain.timeoutSeconds", "rollout.maxSurge",
    "rollout.maxUnavailable", "rollout.onUnschedulable", "revisionHistoryLimit", "paused", "suspend",
    "scaling.minReplicas", "scaling.mode", "scaling.targets.cacheUtilization", "scaling.targets.scaleDownUtilization",
    "scaling.targets.queueDepth", "scaling.behavior.scaleUp.stabilizationWindowSeconds",
    "scaling.behavior.scaleDown.stabilizationWindowSeconds", "scaling.metrics.staleAfterSeconds",
}  # fmt: skip


@pytest.mark.parametrize("spec", [{}, {"replicas": None, "scaling": {"maxReplicas": 3}}], ids=["fixed", "scaled"])
def test_a_field_that_came_later_has_no_default_in_the_schema(spec: dict[str, Any]) -> None:
    """CRDs are renewed before the operator: one that still leads would refuse a field that it does not know."""
    bare = {k: v for k, v in body(**spec)["spec"].items() if v is not None}
    filled = defaulted(schema("inferenceservices")["properties"]["spec"], bare)
    assert set(leaves(filled)) - set(leaves(bare)) <= BORN_WITH_DEFAULTS


def leaves(value: Any, path: str = "") -> Iterator[str]:
    if not isinstance(value, dict):
        yield path
        return
    for name, child in value.items():
        yield from leaves(child, f"{path}.{name}".lstrip("."))


@pytest.mark.parametrize("left_out", [0, 1])
def test_the_schema_knows_the_fields_that_the_types_know(left_out: int) -> None:
    """One value for each field of the schema is accepted by the parser, at every depth; of an exclusive pair one."""
    spec = schema("inferenceservices")["properties"]["spec"]
    full = {name: _example(child, name, left_out) for name, child in spec["properties"].items() if name != "replicas"}
    whole = body(**full, replicas=None)
    InferenceService.from_body(whole)


_CHOSEN = {
    "manifestRef": {"name": "m"}, "digest": "sha256:" + "0" * 64, "image": "e@sha256:" + "0" * 64, "name": "m",
    "cacheUtilization": "0.8", "scaleDownUtilization": "0.4", "kvCacheMemory": "1Gi",
    "priorityClassName": "p", "runtimeClassName": "r", "imagePullSecrets": [{"name": "s"}],
    "tracesEndpoint": "http://c:4318", "maxSurge": 1, "maxUnavailable": 0,
    "args": ["--seed=1"], "tolerance": "0.1",
    "endpoint": "https://h", "from": [{"podSelector": {}}],
    "cache": {"persistentVolumeClaim": {"claimName": "c"}, "maxSize": "1Gi"},
}  # fmt: skip


def _example(node: dict[str, Any], name: str, left_out: int) -> Any:
    if name in _CHOSEN:
        return _CHOSEN[name]
    if node.get("type") == "object":
        absent = {pair[left_out] for pair in exclusive(node)}
        children = {key: child for key, child in node.get("properties", {}).items() if key not in absent}
        return {key: _example(child, key, left_out) for key, child in children.items()}
    if node.get("type") == "array":
        return [_example(node["items"], "", left_out)]
    if "enum" in node:
        return "vllm" if "vllm" in node["enum"] else node["enum"][0]  # which may have every field
    return {"integer": node.get("minimum", 1), "boolean": True, "string": "x"}[node["type"]]


LARGEST_SPEC = 1_400_000  # characters: below etcd's 1.5 MiB, with room for managedFields and status


def nodes(node: dict[str, Any], path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every schema below one, with its path."""
    yield path, node
    for name, child in node.get("properties", {}).items():
        yield from nodes(child, f"{path}.{name}")
    for mark, key in (("[]", "items"), ("[*]", "additionalProperties")):
        if key in node:
            yield from nodes(node[key], path + mark)


def _longest_key(node: dict[str, Any]) -> int:
    """Characters that a map's keys may have, as its rules say it; 0 where they do not."""
    rules = " ".join(r["rule"] for r in node.get("x-kubernetes-validations", []))
    found = re.search(r"self\.all\(key, size\(key\) <= (\d+)\)", rules)
    return int(found[1]) if found else 0


def is_bounded(node: dict[str, Any]) -> bool:
    """Whether the schema says how large a value can be, keys of maps included."""
    if "additionalProperties" in node:
        return "maxProperties" in node and _longest_key(node) > 0
    if node.get("x-kubernetes-preserve-unknown-fields"):
        return False
    if node.get("type") == "array":
        return "maxItems" in node
    is_text = node.get("type") == "string" or node.get("x-kubernetes-int-or-string")
    return not is_text or "maxLength" in node or "enum" in node or node.get("format") == "date-time"


@pytest.mark.parametrize(("plural", "part"), [("inferenceservices", "spec"), ("inferenceservices", "status"),
                                              ("modelmanifests", "spec")])  # fmt: skip
def test_everything_that_can_grow_has_a_bound(plural: str, part: str) -> None:
    unbounded = [path for path, node in nodes(schema(plural)["properties"][part], part) if not is_bounded(node)]
    assert unbounded == []


@pytest.mark.parametrize(
    ("node", "bounded"),
    [
        ({"type": "string"}, False),
        ({"type": "string", "maxLength": 5}, True),
        ({"type": "array", "items": {"type": "integer"}}, False),
        ({"type": "object", "additionalProperties": {"type": "integer"}, "maxProperties": 3}, False),
        ({"type": "object", "x-kubernetes-preserve-unknown-fields": True}, False),
        ({"x-kubernetes-int-or-string": True}, False),
        ({"type": "integer"}, True),
    ],
    ids=str,
)
def test_what_counts_as_a_bound(node: dict[str, Any], bounded: bool) -> None:
    assert is_bounded(node) is bounded


def exclusive(node: dict[str, Any]) -> list[tuple[str, str]]:
    """Pairs of fields of which a rule wants exactly one."""
    rules = [r["rule"] for r in node.get("x-kubernetes-validations", [])]
    return re.findall(r"^has\(self\.(\w+)\) != has\(self\.(\w+)\)$", "\n".join(rules), re.MULTILINE)


def largest(node: dict[str, Any]) -> int:
    """Characters of the longest JSON that a schema takes."""
    if "additionalProperties" in node:
        return 2 + int(node["maxProperties"]) * (_longest_key(node) + 4 + largest(node["additionalProperties"]))
    if node.get("type") == "object":
        sizes = {name: len(name) + 4 + largest(child) for name, child in node.get("properties", {}).items()}
        return 2 + sum(sizes.values()) - sum(min(sizes[name] for name in pair) for pair in exclusive(node))
    if node.get("type") == "array":
        return 2 + int(node["maxItems"]) * (largest(node["items"]) + 1)
    return 2 + int(node.get("maxLength") or max((len(str(v)) for v in node.get("enum", [])), default=20))


@pytest.mark.parametrize("plural", ["inferenceservices", "modelmanifests"])
def test_no_spec_outgrows_the_store(plural: str) -> None:
    assert largest(schema(plural)["properties"]["spec"]) < LARGEST_SPEC


def test_every_field_of_the_spec_is_described() -> None:
    spec = schema("inferenceservices")["properties"]["spec"]
    named = [
        path
        for path, node in nodes(spec, "spec")
        if not path.endswith(("]", "spec")) and "ffinity" not in path and not node.get("description")
    ]
    assert named == []


def test_the_reference_page_is_what_the_crds_say() -> None:
    found = importlib.util.spec_from_file_location("reference", ROOT / "docs" / "reference.py")
    assert found is not None
    assert found.loader is not None
    reference = importlib.util.module_from_spec(found)
    found.loader.exec_module(reference)
    assert reference.PAGE.read_text() == reference.page(), "make docs"


def test_manifest_bounds_are_the_contracts() -> None:
    spec = schema("modelmanifests")["properties"]["spec"]["properties"]
    assert spec["files"]["maxItems"] == MAX_FILES
    assert spec["files"]["items"]["properties"]["role"]["enum"] == list(Role)
    assert set(spec) == {*MANIFEST_SPEC, "engine", "numerics"}
    assert set(spec["architecture"]["properties"]) == set(MANIFEST_SPEC["architecture"])


def test_every_word_that_a_manifest_may_pin_is_one_that_the_contract_takes() -> None:
    spec = schema("modelmanifests")["properties"]["spec"]["properties"]
    numerics = spec["numerics"]["properties"]
    words = {name: tuple(node["enum"]) for name, node in numerics.items() if "enum" in node}
    assert words == {
        "backend": BACKENDS, "weightDtype": WEIGHT_DTYPES, "computeDtype": COMPUTE_DTYPES, "kvCacheDtype": DTYPES,
    }  # fmt: skip
    whole = {"engine": {"version": "0.1.0"}, "numerics": {k: v[0] for k, v in words.items()} | {"instructions": "x"}}
    assert Runtime.from_spec(whole).to_spec() == whole
    assert set(numerics) == set(whole["numerics"]) == set(reported()["numerics"]["properties"])
    assert all(node["description"] for node in (*numerics.values(), spec["engine"]["properties"]["version"]))


def reported() -> dict[str, Any]:
    """What a status says of the model."""
    found: dict[str, Any] = schema("inferenceservices")["properties"]["status"]["properties"]["model"]["properties"]
    return found


@pytest.mark.parametrize(
    ("flags", "path"),
    [(OURS, ("properties", "engine", "properties", "args", "items")), (UNPINNING, ())],
    ids=["that other fields set", "that would undo the pin"],
)
def test_the_schema_refuses_the_flags_that_the_parser_refuses(flags: tuple[str, ...], path: tuple[str, ...]) -> None:
    node = schema("inferenceservices")["properties"]["spec"]
    for step in path:
        node = node[step]
    (rule,) = [r["rule"] for r in node["x-kubernetes-validations"] if "f.startsWith(" in r["rule"]]
    listed = rule.partition("].exists(f,")[0].rpartition("[")[2]
    assert sorted(re.findall(r"'([a-z-]+)'", listed)) == sorted(flags)


def test_peer_bounds_are_the_parsers() -> None:
    security = schema("inferenceservices")["properties"]["spec"]["properties"]["security"]["properties"]
    peers, ports = (security["networkPolicy"]["properties"][name] for name in ("from", "egressPorts"))
    assert (ports["maxItems"], ports["items"]["minimum"], ports["items"]["maximum"]) == (MOST_PORTS, 1, 2**16 - 1)
    selector, block = (peers["items"]["properties"][name]["properties"] for name in ("podSelector", "ipBlock"))
    expressions = selector["matchExpressions"]
    assert (peers["maxItems"], block["except"]["maxItems"]) == (MOST_PEERS, MOST_EXCEPTIONS)
    assert (selector["matchLabels"]["maxProperties"], expressions["maxItems"]) == (MOST_LABELS, 1)
    assert expressions["items"]["properties"]["values"]["maxItems"] == MOST_VALUES
    assert expressions["items"]["properties"]["operator"]["enum"] == list(Operator)


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


def test_the_example_of_a_pinned_engine_pins_this_one() -> None:
    """Or whoever tries it is refused: after a release, `pinrail pin` writes it again."""
    text = (ROOT / "crds" / "examples" / "pinned-engine.yaml").read_text()
    manifest, asked = yaml.safe_load_all(text)
    pinned = ModelManifest.from_spec(manifest["spec"]).runtime
    assert pinned.engine_version == version("pinrail")
    assert (asked["spec"]["engine"]["backend"], asked["spec"]["engine"]["dtype"]) == (
        pinned.backend,
        pinned.weight_dtype,
    )
