"""Shards, fusing, dtypes: what the torch backend computes with."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from pinrail_contract.errors import ModelError
from pinrail_contract.launch import Dtype
from pinrail_engine.model import weight_names
from pinrail_engine.model.arch import Arch
from pinrail_engine.model.decoder import Weights
from pinrail_engine.run.torch_backend import TorchBackend, TorchOptions
from pinrail_engine.weights.load import load

ARCH = Arch(
    hidden=8,
    intermediate=12,
    layers=2,
    heads=4,
    kv_heads=2,
    head_dim=2,
    vocab=10,
    max_position=32,
    eps=1e-5,
    rope_theta=1e4,
    tied=True,
)


@pytest.fixture
def tensors() -> dict[str, Tensor]:
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


def loaded(files: dict[str, int], dtype: torch.dtype = torch.float32) -> Weights:
    return load(files, ARCH, dtype, torch.device("cpu"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_matrices_are_fused_and_converted(tmp_path: Path, tensors: dict[str, Tensor], dtype: torch.dtype) -> None:
    with saved(tmp_path, w=tensors) as files:
        weights = loaded(files, dtype)
    prefix = weight_names.layer_prefix(1)
    parts = [tensors[f"{prefix}self_attn.{part}_proj.weight"].to(dtype) for part in "qkv"]
    assert torch.equal(weights.layers[1].qkv, torch.cat(parts))
    assert weights.layers[1].gate_up.shape == (24, 8)
    assert weights.head is weights.embed
    assert weights.norm.dtype == dtype


def test_a_file_written_over_after_loading_changes_nothing(tmp_path: Path, tensors: dict[str, Tensor]) -> None:
    with saved(tmp_path, w=tensors) as files:
        weights = loaded(files, torch.bfloat16)
        with open(tmp_path / "w", "r+b") as f:
            f.write(bytes(os.path.getsize(tmp_path / "w")))
    assert torch.equal(weights.embed, tensors[weight_names.EMBED])


def test_a_file_touched_before_all_is_read_is_never_served(tmp_path: Path, tensors: dict[str, Tensor]) -> None:
    def touched() -> None:
        raise ModelError("w: changed while being read")

    options = TorchOptions(dtype=Dtype.FLOAT32, block_size=1, threads=1)
    with saved(tmp_path, w=tensors) as files, pytest.raises(ModelError, match="changed while being read"):
        TorchBackend(files, ARCH, options, touched).load()


def test_shards_are_read_together(tmp_path: Path, tensors: dict[str, Tensor]) -> None:
    names = sorted(tensors)
    first, second = ({n: tensors[n] for n in part} for part in (names[:7], names[7:]))
    with saved(tmp_path, a=first, b=second) as files:
        assert torch.equal(loaded(files).embed, tensors[weight_names.EMBED].float())


def test_a_second_copy_of_a_tied_head_is_left_unread(tmp_path: Path, tensors: dict[str, Tensor]) -> None:
    with saved(tmp_path, w=tensors | {weight_names.HEAD: torch.zeros(10, 8)}) as files:
        assert torch.equal(loaded(files).head, tensors[weight_names.EMBED].float())
