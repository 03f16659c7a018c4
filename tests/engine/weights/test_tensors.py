"""Names and shapes against config.json."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import save_file

from pinrail_engine.errors import WeightsError
from pinrail_engine.model import weight_names
from pinrail_engine.model.arch import Arch
from pinrail_engine.weights.tensors import map_tensors

ARCH = Arch(
    hidden=8,
    intermediate=16,
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
NORM = weight_names.NORM

Tensors = dict[str, NDArray[Any]]


@pytest.fixture
def tensors() -> Tensors:
    dice = np.random.default_rng(0)
    return {name: dice.standard_normal(shape, np.float32) for name, shape in weight_names.expected(ARCH).items()}


@contextmanager
def saved(folder: Path, **files: Tensors) -> Iterator[dict[str, int]]:
    handles = {}
    for name, content in files.items():
        save_file(content, folder / name)
        handles[name] = os.open(folder / name, os.O_RDONLY)
    yield handles
    for handle in handles.values():
        os.close(handle)


def test_every_difference_is_named(tmp_path: Path, tensors: Tensors) -> None:
    del tensors[NORM]
    tensors["model.layers.0.mlp.down_proj.weight"] = np.zeros((16, 8), np.float32)
    tensors["model.layers.2.mlp.down_proj.weight"] = np.zeros((8, 16), np.float32)
    with saved(tmp_path, w=tensors) as files, pytest.raises(WeightsError) as caught:
        map_tensors(files, ARCH)
    assert str(caught.value) == (
        "weights: 3 tensors differ from config.json: "
        "model.layers.0.mlp.down_proj.weight has shape [16, 8], want [8, 16]; "
        "model.layers.2.mlp.down_proj.weight is not a tensor of this network, want none such; "
        "model.norm.weight is missing, want shape [8]"
    )


def test_a_tensor_in_two_files_is_refused(tmp_path: Path, tensors: Tensors) -> None:
    again = {NORM: tensors[NORM]}
    with saved(tmp_path, a=tensors, b=again) as files, pytest.raises(WeightsError, match="stands in two files"):
        map_tensors(files, ARCH)


def test_what_was_released_is_there_when_it_is_read_again(tmp_path: Path, tensors: Tensors) -> None:
    with saved(tmp_path, w=tensors) as files:
        mapped = map_tensors(files, ARCH)
    for _ in range(2):
        assert np.array_equal(mapped.by_name[NORM], tensors[NORM])
        mapped.release()
