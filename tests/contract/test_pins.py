"""What a manifest is: parsed with messages that say field, seen and wanted; its digest covers all but the source."""

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinrail_contract.canonical import canonical_bytes, loads_strict, sha256_of
from pinrail_contract.errors import ManifestError
from pinrail_contract.pins import ModelManifest

SHA = "a" * 64
FILES_DIGEST = "sha256:c17d5f539b8504e5f06ac9bcd0b49730276b299e3dd69b5dfdd322cd20e34706"  # of SPEC; names folders
SPEC: dict[str, Any] = {
    "schemaVersion": 1,
    "source": {"uri": "pvc://models/tiny"},
    "architecture": {
        "class": "LlamaForCausalLM",
        "hiddenSize": 64,
        "layers": 2,
        "heads": 4,
        "kvHeads": 2,
        "headDim": 16,
        "vocabSize": 100,
        "maxPositionEmbeddings": 128,
    },
    "files": [
        {"path": "model.safetensors", "size": 10, "sha256": SHA, "role": "weights"},
        {"path": "config.json", "size": 2, "sha256": SHA, "role": "config"},
        {"path": "tokenizer.json", "size": 3, "sha256": SHA, "role": "tokenizer"},
    ],
}


def changed(path: str, value: Any) -> dict[str, Any]:
    """SPEC with one value put at `path` (dots between keys and indices); None removes it."""
    spec: Any = copy.deepcopy(SPEC)
    *parents, last = path.split(".")
    target = spec
    for key in parents:
        target = target[int(key) if isinstance(target, list) else key]
    key = int(last) if isinstance(target, list) else last
    if value is None:
        del target[key]
    else:
        target[key] = value
    return spec  # type: ignore[no-any-return]


def test_a_manifest_survives_a_round_trip() -> None:
    manifest = ModelManifest.from_spec(SPEC)
    assert ModelManifest.from_spec(manifest.to_spec()) == manifest
    assert manifest.total_size == 15


def test_the_digest_is_the_same_whatever_the_order_of_files_and_wherever_they_lie() -> None:
    shuffled = changed("files", list(reversed(SPEC["files"])))
    moved = changed("source.uri", "https://example.test/tiny/")
    digests = {ModelManifest.from_spec(s).digest for s in (SPEC, shuffled, moved)}
    assert len(digests) == 1


@pytest.mark.parametrize(
    ("path", "value"),
    [("files.0.sha256", "b" * 64), ("files.0.size", 11), ("architecture.layers", 3), ("files.2.path", "vocab.json")],
)
def test_the_digest_changes_with_everything_that_is_served(path: str, value: object) -> None:
    assert ModelManifest.from_spec(changed(path, value)).digest != ModelManifest.from_spec(SPEC).digest


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("schemaVersion", 2, "spec.schemaVersion: got 2, want 1: a newer schema needs a newer pinrail"),
        ("schemaVersion", True, "spec.schemaVersion: got True, want 1"),
        ("extra", 1, "spec.extra: is not a known field"),
        ("files", [], "spec.files: want a list of 1 to 512 files"),
        ("files.0.path", "../model.safetensors", "spec.files[0].path: got '../model.safetensors'"),
        ("files.0.path", "a/b", "no folders"),
        ("files.0.path", "..", "spec.files[0].path: got '..'"),
        ("files.0.size", -1, "spec.files[0].size: got -1"),
        ("files.0.size", 1.5, "spec.files[0].size: got 1.5"),
        ("files.0.sha256", "A" * 64, "want 64 lower-case hex digits"),
        ("files.0.role", "pickle", "spec.files[0].role: got 'pickle', want one of weights"),
        ("files.0.mode", 1, "spec.files[0].mode: is not a known field"),
        ("files.1", None, "has no file of role config"),
        ("files.1.path", "model.safetensors", "lists 'model.safetensors' twice"),
        ("architecture.layers", 0, "spec.architecture.layers: got 0, want a whole number above 0"),
        ("architecture.class", None, "spec.architecture.class: got None"),
        ("source.uri", "hf:/x", "spec.source.uri: got 'hf:/x', want pvc://claim/path"),
        ("source.uri", "pvc://models/../secrets", "without '..'"),
        ("source.uri", "http://example.test/", "want pvc://claim/path, https://base/"),
        ("source.uri", "hf://name", "got 'hf://name', want hf://organisation/name"),
        ("source.uri", "oci://ghcr.io/org/name:v1", "want oci://registry/repository@sha256:<64 hex digits>: tags move"),
        ("source.uri", "oci://name@sha256:" + "0" * 64, "want oci://registry/repository@sha256:"),
        ("source.uri", "s3://B/x", "got 's3://B/x', want s3://bucket/prefix, without '?' and '#'"),
        ("source.uri", "s3://bucket/x?y", "want s3://bucket/prefix"),
        ("source.uri", "hf://org/name/x", "got 'hf://org/name/x', want hf://organisation/name"),
        (
            "source",
            {"uri": "hf://org/name"},
            "spec.source.revision: got '', want the 40 lower-case hex digits of a commit",
        ),
        ("source", {"uri": "hf://org/name", "revision": "main"}, "spec.source.revision: got 'main', want the 40"),
        ("source", {"uri": "hf://org/name", "revision": "A" * 40}, "want the 40 lower-case hex digits of a commit"),
        ("source", "x", "spec.source: got str, want an object"),
    ],
)
def test_a_wrong_manifest_is_refused_with_its_field(path: str, value: object, message: str) -> None:
    with pytest.raises(ManifestError) as caught:
        ModelManifest.from_spec(changed(path, value))
    assert message in str(caught.value)


@given(st.recursive(st.integers() | st.text() | st.booleans(), lambda v: st.dictionaries(st.text(), v)))
def test_canonical_bytes_read_back_to_the_same_value(value: object) -> None:
    document = {"value": value}
    assert loads_strict(canonical_bytes(document), "x") == document


def test_a_known_canonical_form() -> None:
    written = canonical_bytes({"b": [1, "é"], "a": {"z": True, "y": None}})
    assert written == '{"a":{"y":null,"z":true},"b":[1,"é"]}'.encode()
    assert sha256_of(b"") == "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


@pytest.mark.parametrize("text", ['{"a":1,"a":2}', '{"a":NaN}', '{"a":Infinity}', "{", "[" * 100_000])
def test_json_with_two_meanings_or_none_is_refused(text: str) -> None:
    with pytest.raises(ManifestError):
        loads_strict(text, "model.json")


def test_a_float_has_no_canonical_form() -> None:
    with pytest.raises(ManifestError, match=r"spec.a\[0\]: 1.0 is a float"):
        canonical_bytes({"a": [1.0]})


@pytest.mark.parametrize(
    ("path", "value", "is_same"),
    [
        ("engine", {"version": "0.9.0"}, True),
        ("numerics", {"backend": "torch"}, True),
        ("architecture.layers", 3, True),
        ("source.uri", "https://example.test/tiny/", True),
        ("files", list(reversed(SPEC["files"])), True),
        ("files.0.size", 11, False),
        ("files.0.sha256", "b" * 64, False),
        ("files.0.path", "weights.safetensors", False),
    ],
)
def test_the_files_digest_changes_with_the_files_alone(path: str, value: object, is_same: bool) -> None:
    assert (ModelManifest.from_spec(changed(path, value)).files_digest == FILES_DIGEST) == is_same
