"""What the CPU kernels compute with: matrices joined and packed, norms widened, types converted."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from pinrail_engine.errors import WeightsError
from pinrail_engine.model import weight_names
from pinrail_engine.model.arch import Arch
from pinrail_engine.weights.pack import PackedWeights, Storage, pack
from pinrail_kernels.native import GATE, Kind, Native, Packed

pytestmark = pytest.mark.native

ARCH = Arch(
    hidden=32,
    intermediate=32,
    layers=2,
    heads=4,
    kv_heads=2,
    head_dim=16,
    vocab=10,
    max_position=32,
    eps=1e-5,
    rope_theta=1e4,
    tied=True,
)
FLOAT = Storage(layers=Kind.F32, head=Kind.F32)
HALF = Storage(layers=Kind.BF16, head=Kind.BF16)
PREFIX = weight_names.layer_prefix(1)


@pytest.fixture
def native() -> Native:
    return Native(2)


@pytest.fixture
def tensors() -> dict[str, Tensor]:
    torch.manual_seed(0)
    return {name: torch.randn(shape).bfloat16() for name, shape in weight_names.expected(ARCH).items()}


@contextmanager
def saved(folder: Path, **files: dict[str, Tensor]) -> Iterator[dict[str, int]]:
    handles = {}
    for name, content in files.items():
        save_file(content, folder / name)
        handles[name] = os.open(folder / name, os.O_RDONLY)
    yield handles
    for handle in handles.values():
        os.close(handle)


def packed(native: Native, folder: Path, tensors: dict[str, Tensor], storage: Storage = HALF) -> PackedWeights:
    with saved(folder, w=tensors) as files:
        return pack(native, files, ARCH, storage)


def values(native: Native, matrix: Packed) -> Tensor:
    return torch.from_numpy(native.unpack(matrix, 0, matrix.n))


@pytest.mark.parametrize("storage", [FLOAT, HALF], ids=["float32", "bfloat16"])
def test_matrices_are_joined_and_nothing_of_bfloat16_is_lost(
    native: Native, tmp_path: Path, tensors: dict[str, Tensor], storage: Storage
) -> None:
    weights = packed(native, tmp_path, tensors, storage)
    layer = weights.layers[1]
    parts = [tensors[f"{PREFIX}self_attn.{part}_proj.weight"].float() for part in "qkv"]
    assert torch.equal(values(native, layer.qkv), torch.cat(parts))
    assert torch.equal(values(native, layer.o), tensors[f"{PREFIX}self_attn.o_proj.weight"].float())
    assert torch.equal(values(native, layer.down), tensors[f"{PREFIX}mlp.down_proj.weight"].float())
    assert torch.equal(values(native, weights.embed), tensors[weight_names.EMBED].float())
    assert layer.qkv.kind is storage.layers
    assert weights.head is weights.embed


def test_gate_and_up_take_turns(native: Native, tmp_path: Path, tensors: dict[str, Tensor]) -> None:
    found = values(native, packed(native, tmp_path, tensors).layers[1].gate_up)
    gate, up = (tensors[f"{PREFIX}mlp.{part}_proj.weight"].float() for part in ("gate", "up"))
    wanted = torch.cat([part[first : first + GATE] for first in (0, GATE) for part in (gate, up)])
    assert torch.equal(found, wanted)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_a_file_of_any_float_type(
    native: Native, tmp_path: Path, tensors: dict[str, Tensor], dtype: torch.dtype
) -> None:
    tensors = {name: tensor.to(dtype) for name, tensor in tensors.items()}
    weights = packed(native, tmp_path, tensors, FLOAT)
    assert torch.equal(values(native, weights.embed), tensors[weight_names.EMBED].float())
    assert weights.norm.dtype == np.float32
    assert torch.equal(torch.from_numpy(weights.norm), tensors[weight_names.NORM].float())


def test_an_untied_head_is_packed_by_itself(native: Native, tmp_path: Path, tensors: dict[str, Tensor]) -> None:
    head = torch.randn(10, 32).bfloat16()
    with saved(tmp_path, w=tensors | {weight_names.HEAD: head}) as files:
        weights = pack(native, files, replace(ARCH, tied=False), HALF)
    assert torch.equal(values(native, weights.head), head.float())
    assert weights.head is not weights.embed


def test_quantised_weights_are_within_half_a_step(native: Native, tmp_path: Path, tensors: dict[str, Tensor]) -> None:
    storage = Storage(layers=Kind.INT4, head=Kind.INT8, group=32)
    weights = packed(native, tmp_path, tensors, storage)
    for matrix, name, steps in (
        (weights.layers[1].down, f"{PREFIX}mlp.down_proj.weight", 7),
        (weights.embed, weight_names.EMBED, 127),
    ):
        wanted = tensors[name].float()
        half = wanted.abs().amax(-1, keepdim=True) / steps / 2
        assert bool(((values(native, matrix) - wanted).abs() <= half * 1.001).all())
    assert weights.nbytes < packed(native, tmp_path, tensors).nbytes / 2


def test_a_file_written_over_after_loading_changes_nothing(
    native: Native, tmp_path: Path, tensors: dict[str, Tensor]
) -> None:
    weights = packed(native, tmp_path, tensors)
    with open(tmp_path / "w", "r+b") as f:
        f.write(bytes(os.path.getsize(tmp_path / "w")))
    assert torch.equal(values(native, weights.embed), tensors[weight_names.EMBED].float())
    assert torch.equal(torch.from_numpy(weights.norm), tensors[weight_names.NORM].float())


def test_shards_are_read_together(native: Native, tmp_path: Path, tensors: dict[str, Tensor]) -> None:
    names = sorted(tensors)
    first, second = ({n: tensors[n] for n in part} for part in (names[:7], names[7:]))
    with saved(tmp_path, a=first, b=second) as files:
        weights = pack(native, files, ARCH, HALF)
    assert torch.equal(values(native, weights.embed), tensors[weight_names.EMBED].float())


def test_tensors_that_differ_from_the_config_are_named(
    native: Native, tmp_path: Path, tensors: dict[str, Tensor]
) -> None:
    del tensors[weight_names.NORM]
    with pytest.raises(WeightsError, match=r"model\.norm\.weight is missing, want shape \[32\]"):
        packed(native, tmp_path, tensors)
