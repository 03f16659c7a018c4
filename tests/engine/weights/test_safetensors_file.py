"""Headers that lenient readers accept, or that point where they must not."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from pinrail_engine.errors import WeightsError
from pinrail_engine.weights.safetensors_file import Entry, map_file, read_header, views


def header_of(path: Path, header: str, data: bytes = b"", length: int | None = None) -> dict[str, Entry]:
    raw = header.encode()
    path.write_bytes((len(raw) if length is None else length).to_bytes(8, "little") + raw + data)
    handle = os.open(path, os.O_RDONLY)
    try:
        return read_header(handle, "w")
    finally:
        os.close(handle)


def one(**changes: Any) -> str:
    return json.dumps({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]} | changes})


def test_a_file_of_the_format_s_own_library(tmp_path: Path) -> None:
    tensors = {"a": torch.randn(3, 5), "b": torch.randn(4).bfloat16(), "c": torch.randn(1, 2).half()}
    save_file(tensors, tmp_path / "w", metadata={"format": "pt"})
    handle = os.open(tmp_path / "w", os.O_RDONLY)
    mapped = views(map_file(handle), read_header(handle, "w"))
    os.close(handle)  # the mapping holds the file
    assert mapped.keys() == tensors.keys()
    for name in ("a", "c"):
        assert np.array_equal(mapped[name], tensors[name].numpy())
    assert mapped["b"].dtype == np.uint16  # numpy has no bfloat16
    assert np.array_equal(mapped["b"], tensors["b"].view(torch.uint16).numpy())


TWICE = '{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'


@pytest.mark.parametrize(
    ("header", "data", "message"),
    [
        pytest.param(TWICE, bytes(4), "holds the key 'a' twice", id="a name twice"),
        pytest.param("[]", b"", "a list, want an object", id="a list"),
        pytest.param("{", b"", "is not JSON", id="broken JSON"),
        pytest.param(one(dtype="I8"), bytes(8), "dtype 'I8', want one of F64, F32, F16, BF16", id="other dtype"),
        pytest.param(one(dtype=[]), bytes(8), r"dtype \[\]", id="dtype no string"),
        pytest.param(one(shape=[3]), bytes(8), "want 12 of them", id="shape larger than range"),
        pytest.param(one(shape=[-2]), bytes(8), "want a list of whole numbers", id="negative dimension"),
        pytest.param(one(shape=[2**62, 4]), bytes(8), "inside the file", id="product past 64 bits"),
        pytest.param(one(shape=[0]), bytes(8), "no empty dimension", id="empty dimension"),
        pytest.param(one(), bytes(4), "inside the file", id="range past the end"),
        pytest.param(one(), bytes(12), "fill 8 bytes of 12", id="bytes behind the last"),
        pytest.param(one(data_offsets=[4, 12]), bytes(12), "begins at byte 4 of the data, want 0", id="hole"),
        pytest.param(one(more=1), bytes(8), "want an object of dtype, shape and data_offsets", id="unknown field"),
        pytest.param(one(data_offsets=[8]), bytes(8), "want 8 of them inside the file", id="half a range"),
        pytest.param(one(shape=[True, 2]), bytes(8), "whole numbers", id="a boolean"),
    ],
)
def test_what_is_refused(tmp_path: Path, header: str, data: bytes, message: str) -> None:
    with pytest.raises(WeightsError, match=message):
        header_of(tmp_path / "w", header, data)


def test_overlapping_tensors_are_refused(tmp_path: Path) -> None:
    both = {name: {"dtype": "F32", "shape": [2], "data_offsets": [at, at + 8]} for name, at in (("a", 0), ("b", 4))}
    with pytest.raises(WeightsError, match="begins at byte 4 of the data, want 8"):
        header_of(tmp_path / "w", json.dumps(both), bytes(12))


@pytest.mark.parametrize("length", [2**63, 2**24 + 1, 100])
def test_a_header_longer_than_the_file_or_16_mib_is_refused(tmp_path: Path, length: int) -> None:
    with pytest.raises(WeightsError, match=f"header of {length} bytes"):
        header_of(tmp_path / "w", "{}", b"", length)


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "w").write_bytes(b"")
    handle = os.open(tmp_path / "w", os.O_RDONLY)
    with pytest.raises(WeightsError, match="in a file of 0"):
        read_header(handle, "w")
    os.close(handle)
