"""Engine and numerics as a manifest pins them: optional, part of the digest, and compared without a guess."""

import copy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinrail_contract.__main__ import main
from pinrail_contract.documents import read_manifest
from pinrail_contract.errors import ManifestError
from pinrail_contract.pins import ModelManifest
from pinrail_contract.runtime import COMPUTE_DTYPES, DTYPES, UNREADABLE, UNSAID, WEIGHT_DTYPES, Runtime

SHA = "a" * 64
SPEC: dict[str, Any] = {
    "schemaVersion": 1,
    "source": {"uri": "pvc://models/tiny"},
    "architecture": {
        "class": "LlamaForCausalLM", "hiddenSize": 64, "layers": 2, "heads": 4, "kvHeads": 2, "headDim": 16,
        "vocabSize": 100, "maxPositionEmbeddings": 128,
    },
    "files": [
        {"path": "config.json", "size": 2, "sha256": SHA, "role": "config"},
        {"path": "model.safetensors", "size": 10, "sha256": SHA, "role": "weights"},
        {"path": "tokenizer.json", "size": 3, "sha256": SHA, "role": "tokenizer"},
    ],
}  # fmt: skip
FULL = Runtime(
    engine_version="0.1.0",
    backend="native",
    instructions="avx512_fp16",
    weight_dtype="bfloat16",
    compute_dtype="float16",
    kv_cache_dtype="bfloat16",
)

VERSIONS = st.from_regex(r"[0-9]{1,3}(\.[0-9]{1,3}){1,2}(rc[0-9])?", fullmatch=True)
RUNTIMES = st.builds(
    Runtime,
    engine_version=st.just("") | VERSIONS,
    backend=st.sampled_from(("", "native")),
    instructions=st.sampled_from(("", "avx2", "neon", "NVIDIA H200")),
    weight_dtype=st.sampled_from(("", *WEIGHT_DTYPES)),
    compute_dtype=st.sampled_from(("", *COMPUTE_DTYPES)),
    kv_cache_dtype=st.sampled_from(("", *DTYPES)),
)


def pinning(wanted: Runtime) -> ModelManifest:
    return ModelManifest.from_spec({**copy.deepcopy(SPEC), **wanted.to_spec()})


def test_the_demonstrations_digest_is_what_it_was_before_there_were_such_fields(example: Path) -> None:
    wanted = "sha256:b2b2b9ec736665d040d545929e4e00fa280713afaa116e94de464c19937f4304"
    assert read_manifest(example).digest == wanted
    assert read_manifest(example).runtime == UNSAID


def test_a_manifest_without_them_is_written_as_ever() -> None:
    assert pinning(UNSAID).to_spec() == SPEC


@given(RUNTIMES)
def test_what_is_pinned_survives_a_round_trip(wanted: Runtime) -> None:
    manifest = pinning(wanted)
    assert manifest.runtime == wanted
    assert ModelManifest.from_spec(manifest.to_spec()) == manifest


@given(RUNTIMES, RUNTIMES)
def test_the_digest_changes_with_every_field(one: Runtime, other: Runtime) -> None:
    assert (pinning(one).digest == pinning(other).digest) is (one == other)


@given(RUNTIMES)
def test_labels_say_all_of_it(said: Runtime) -> None:
    assert Runtime.from_labels({**said.labels(), "digest": "sha256:0", "verification": "verified"}) == said


@given(RUNTIMES, RUNTIMES)
def test_only_what_is_pinned_and_reported_otherwise_is_a_difference(wanted: Runtime, said: Runtime) -> None:
    pairs = list(zip(wanted.labels().values(), said.labels().values(), strict=True))
    found = wanted.differences(said)
    assert [(d.wanted, d.seen) for d in found] == [(w, s) for w, s in pairs if w and s and w != s]
    assert len(wanted.unreported(said)) == sum(bool(w and not s) for w, s in pairs)


def test_a_difference_names_its_field_what_was_seen_and_what_is_wanted() -> None:
    said = Runtime(engine_version="0.2.0", weight_dtype="int8", kv_cache_dtype="bfloat16")
    assert [str(d) for d in FULL.differences(said)] == [
        "spec.engine.version: got 0.2.0, want 0.1.0",
        "spec.numerics.weightDtype: got int8, want bfloat16",
    ]
    assert FULL.unreported(said) == (
        "spec.numerics.backend",
        "spec.numerics.instructions",
        "spec.numerics.computeDtype",
    )


@pytest.mark.parametrize(
    ("said", "line"),
    [
        (FULL, "0.1.0, backend native, instructions avx512_fp16, weightDtype bfloat16, computeDtype float16, "
         "kvCacheDtype bfloat16"),
        (Runtime(engine_version="0.32.0"), "0.32.0"),
        (Runtime(instructions="neon"), "instructions neon"),
        (UNSAID, ""),
    ],
)  # fmt: skip
def test_people_read_it_in_one_line(said: Runtime, line: str) -> None:
    assert str(said) == line


@pytest.mark.parametrize("word", ['a"b', "x\ny", "é", "x" * 129, "\\"])
def test_what_is_no_word_is_reported_as_unreadable_and_never_as_silence(word: str) -> None:
    said = Runtime.from_labels({"engine_version": word})
    assert said.engine_version == UNREADABLE
    assert len(Runtime(engine_version="0.1.0").differences(said)) == 1
    with pytest.raises(ManifestError):
        Runtime.from_spec({"engine": {"version": UNREADABLE}})


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ({"engine": {}}, "spec.engine: got no field, want one or more of version, or no spec.engine"),
        ({"engine": None}, "spec.engine: got NoneType, want an object"),
        ({"engine": {"version": ""}}, "spec.engine.version: got '', want an exact version such as 0.1.0"),
        ({"engine": {"version": 1}}, "spec.engine.version: got 1, want an exact version"),
        ({"engine": {"version": ">=0.1"}}, "spec.engine.version: got '>=0.1', want an exact version"),
        ({"engine": {"version": "1" * 65}}, "of at most 64 characters"),
        ({"engine": {"image": "x"}}, "spec.engine.image: is not a known field, want one of version"),
        ({"numerics": {}}, "spec.numerics: got no field, want one or more of backend, instructions, weightDtype"),
        ({"numerics": {"dtype": "x"}}, "spec.numerics.dtype: is not a known field, want one of backend, computeDtype"),
        ({"numerics": {"backend": "auto"}}, "spec.numerics.backend: got 'auto', want one of native, torch"),
        ({"numerics": {"weightDtype": "auto"}}, "weightDtype: got 'auto', want one of float32, bfloat16, int8, int4"),
        ({"numerics": {"computeDtype": "int8"}}, "computeDtype: got 'int8', want one of float32, bfloat16, float16"),
        ({"numerics": {"kvCacheDtype": "fp8"}}, "kvCacheDtype: got 'fp8', want one of float32, bfloat16"),
        ({"numerics": {"kvCacheDtype": ["float32"]}}, "kvCacheDtype: got ['float32'], want one of float32, bfloat16"),
        ({"numerics": {"instructions": "a\nb"}}, "instructions: got 'a\\nb', want an instruction set such as avx512"),
        ({"numerics": {"instructions": "x" * 129}}, "an accelerator's name, of at most 128 characters"),
        ({"numerics": {"backend": "torch", "weightDtype": "int8"}},
         "spec.numerics.weightDtype: got 'int8', want float32, bfloat16 while spec.numerics.backend is torch"),
    ],
)  # fmt: skip
def test_a_wrong_field_is_refused_with_what_was_seen_and_what_is_wanted(part: dict[str, Any], message: str) -> None:
    with pytest.raises(ManifestError) as caught:
        ModelManifest.from_spec({**copy.deepcopy(SPEC), **part})
    assert message in str(caught.value)


WORDS = [
    "--engine-version=0.1.0", "--backend=native", "--instructions=avx512_fp16", "--weight-dtype=bfloat16",
    "--compute-dtype=float16", "--kv-cache-dtype=bfloat16",
]  # fmt: skip


def test_pin_writes_what_its_options_say(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "manifest.yaml"
    assert main(["pin", str(folder), "--name=tiny", *WORDS, "-o", str(file)]) == 0
    assert read_manifest(file).runtime == FULL
    assert read_manifest(file).digest in capsys.readouterr().err
    assert main(["verify", str(file), str(folder)]) == 0


def test_pin_pins_no_engine_unless_it_is_told_to(manifest: ModelManifest) -> None:
    assert not manifest.to_spec().keys() & {"engine", "numerics"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--engine-version=>1"], "spec.engine.version: got '>1', want an exact version"),
        (["--engine-version="], "--engine-version: got '', want a word, or no such option"),
        (["--weight-dtype=fp8"], "invalid choice: 'fp8'"),
        (["--backend=torch", "--weight-dtype=int4"], "want float32, bfloat16 while spec.numerics.backend is torch"),
    ],
)
def test_pin_refuses_what_no_engine_can_be(
    folder: Path, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code = main(["pin", str(folder), "--name=tiny", *words])
    except SystemExit as e:  # argparse's own way
        code = int(e.code or 0)
    assert code != 0
    assert said in capsys.readouterr().err
