"""The native backend on a tiny random model: what it refuses, what it measures; and when an engine is made with it."""

import json
import logging
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from pinrail_contract.canonical import sha256_of
from pinrail_contract.errors import ModelError
from pinrail_contract.launch import BackendName, Dtype, LaunchSpec, Quantization
from pinrail_contract.pins import Architecture, FilePin, ModelManifest, Role, Source
from pinrail_engine.core.plan import Begin, Grown, Row, StepPlan
from pinrail_engine.core.types import SamplingParams, TokenLogprobs
from pinrail_engine.errors import LaunchError
from pinrail_engine.model import weight_names
from pinrail_engine.model.arch import Arch
from pinrail_engine.run import memory
from pinrail_engine.run.native_backend import NativeBackend, NativeOptions, problem
from pinrail_engine.run.start import engine_for
from pinrail_engine.run.warm_up import largest_plan
from pinrail_engine.weights.verify import open_verified

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "vocab_size": 50,
    "max_position_embeddings": 128,
}
ARCH = Arch.from_config(CONFIG)
OPTIONS = NativeOptions(dtype=Dtype.FLOAT32, quantization=Quantization.NONE, block_size=16, threads=2)
PROMPT = [3, 14, 15, 9, 26, 5, 35, 8, 9, 7, 9, 32, 38, 4, 6, 26, 43, 38, 32, 7]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    dice = np.random.default_rng(0)
    shapes = weight_names.expected(ARCH).items()
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "tokenizer.json").write_text("{}")
    save_file({name: dice.standard_normal(shape, np.float32) for name, shape in shapes}, tmp_path / "m.safetensors")
    return tmp_path


@pytest.fixture
def make_backend(folder: Path) -> Iterator[Callable[..., NativeBackend]]:
    handle, made = os.open(folder / "m.safetensors", os.O_RDONLY), []

    def make(check_untouched: Callable[[], None] = lambda: None, **changes: Any) -> NativeBackend:
        made.append(NativeBackend({"m": handle}, ARCH, replace(OPTIONS, **changes), check_untouched))
        return made[-1]

    yield make
    for backend in made:
        backend.free()
    os.close(handle)


def plan(number: int, start: int, end: int, params: SamplingParams) -> StepPlan:
    """Positions of the prompt, for which the first step takes all blocks."""
    begin = Begin("a", 0, PROMPT, len(PROMPT), params)
    row = Row("a", 0, start, end - start, end == len(PROMPT))
    return StepPlan(number, (row,), *(((begin,), (Grown(0, 0, (1, 0)),)) if number == 1 else ((), ())))


@pytest.mark.native
@pytest.mark.parametrize("chunk", [1, 7, 20])
def test_what_is_told_of_a_prompt_does_not_depend_on_its_chunks(
    make_backend: Callable[..., NativeBackend], chunk: int
) -> None:
    backend = make_backend()
    backend.load()
    backend.allocate(2, 1, 32)
    params = SamplingParams(max_tokens=1, temperature=0, logprobs=2, prompt_logprobs=3)
    whole = backend.launch(plan(1, 0, len(PROMPT), params))()
    told: list[TokenLogprobs] = []
    for number, start in enumerate(range(0, len(PROMPT), chunk), 1):
        result = backend.launch(plan(number, start, min(start + chunk, len(PROMPT)), params))()
        told += result.prompt_logprobs.get("a", [])
    assert told == whole.prompt_logprobs["a"]
    assert len(told) == len(PROMPT) - 1
    assert (result.tokens, result.logprobs) == (whole.tokens, whole.logprobs)
    assert whole.logprobs[0] is not None
    assert whole.logprobs[0].rank == 1


@pytest.mark.native
def test_a_file_touched_before_all_is_read_is_never_served(make_backend: Callable[..., NativeBackend]) -> None:
    def touched() -> None:
        raise ModelError("m: changed while being read")

    with pytest.raises(ModelError, match="changed while being read"):
        make_backend(touched).load()


@pytest.mark.native
def test_a_cache_may_take_what_is_free_beside_the_largest_step(
    make_backend: Callable[..., NativeBackend], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pinrail_engine.run.memory.free_bytes", lambda: 2**30)
    backend = make_backend()
    backend.load()
    assert 2**29 < backend.measure(4, 64) <= 2**30


@pytest.mark.native
def test_the_largest_step_takes_the_memory_that_was_measured_without_computing_it(
    make_backend: Callable[..., NativeBackend], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pinrail_engine.run.memory.free_bytes", lambda: 2**30)
    backend = make_backend()
    backend.load()
    with monkeypatch.context() as patch:
        patch.setattr("pinrail_kernels.native.Decoder.forward", None)
        measured = 2**30 - backend.measure(4, 20_000)
    assert measured > 20_000 * 5 * ARCH.hidden * 4, "rows of at least five kinds"
    more = memory.peak_of(lambda: backend.launch(largest_plan(4, 20_000, 16))())
    assert more < measured / 5, "the cache that it fills, which is counted elsewhere"


@pytest.mark.native
@pytest.mark.parametrize(
    ("arch", "options", "said"),
    [
        pytest.param({}, {}, "", id="nothing"),
        pytest.param({}, {"block_size": 8}, "block_size is 8, want a multiple of 16", id="block size"),
        pytest.param({"hidden": 36}, {}, "hidden_size is 36, want a multiple of 8", id="hidden size"),
        pytest.param({"head_dim": 18}, {}, "heads times head_dim is 36, want a multiple of 8", id="heads"),
        pytest.param({"intermediate": 40}, {}, "intermediate_size is 40, want a multiple of 16", id="feed-forward"),
        pytest.param({"hidden": 40}, {"quantization": Quantization.INT8}, "", id="int8"),
        pytest.param(
            {"hidden": 40}, {"quantization": Quantization.INT4}, "hidden_size is 40, want a multiple of 32", id="int4"
        ),
    ],
)
def test_why_the_kernels_cannot(arch: dict[str, int], options: dict[str, Any], said: str) -> None:
    assert problem(replace(ARCH, **arch), replace(OPTIONS, **options)) == said


def test_the_kernels_are_not_used_where_they_are_not_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PINRAIL_ISA", "none")
    assert problem(ARCH, OPTIONS) == "PINRAIL_ISA=none: the CPU kernels are not wanted"


def made_with(folder: Path, **flags: Any) -> None:
    """Make an engine, and nothing more."""
    roles = {"config.json": Role.CONFIG, "m.safetensors": Role.WEIGHTS, "tokenizer.json": Role.TOKENIZER}
    contents = {name: (folder / name).read_bytes() for name in roles}
    pins = [FilePin(n, len(data), sha256_of(data).removeprefix("sha256:"), roles[n]) for n, data in contents.items()]
    manifest = ModelManifest.of(pins, Architecture.from_config(CONFIG), Source("file:///model"))
    spec = LaunchSpec(model_dir=str(folder), manifest="", **flags)
    with open_verified(folder, manifest, spec.verification) as model:
        engine_for(spec, model).stop()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        pytest.param({}, "backend=native reason=there is no accelerator", id="native", marks=pytest.mark.native),
        pytest.param({"backend": BackendName.TORCH}, "backend=torch reason=--backend asks for it", id="torch"),
        pytest.param(
            {"block_size": 8}, "backend=torch reason=.*block_size is 8", id="cannot", marks=pytest.mark.native
        ),
    ],
)
def test_the_log_says_what_computes_and_why(
    folder: Path, caplog: pytest.LogCaptureFixture, flags: dict[str, Any], said: str
) -> None:
    with caplog.at_level(logging.INFO):
        made_with(folder, **flags)
    assert re.search(said, caplog.text)


@pytest.mark.parametrize("quantization", [Quantization.INT8, Quantization.INT4])
def test_torch_refuses_quantised_weights(folder: Path, quantization: Quantization) -> None:
    with pytest.raises(LaunchError, match=f"--quantization: got {quantization}, want none on the torch backend"):
        made_with(folder, backend=BackendName.TORCH, quantization=quantization)
