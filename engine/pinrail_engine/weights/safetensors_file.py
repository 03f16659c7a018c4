"""One safetensors file, read through its descriptor: the header checked, the tensors mapped.

    8 bytes, little-endian: length of the header | header, JSON: name -> dtype, shape, [begin, end) | data

The header is parsed here, strictly, because lenient readers take the last of two tensors with one name. numpy has no
bfloat16: such a tensor is one of uint16, and no other is.

Source: the README of the safetensors project, section Format.
"""

import math
import mmap
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pinrail_contract.canonical import loads_strict
from pinrail_contract.errors import ManifestError

from ..errors import WeightsError

Array = NDArray[Any]

_HEADER_LIMIT = 16 << 20  # bytes
_DTYPES: dict[str, np.dtype[Any]] = {
    "F64": np.dtype(np.float64),
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(np.uint16),
}


@dataclass(frozen=True, slots=True)
class Entry:
    """Where one tensor lies."""

    dtype: np.dtype[Any]  # uint16 for bfloat16
    shape: tuple[int, ...]
    offset: int  # bytes from the start of the file


def read_header(handle: int, file: str) -> dict[str, Entry]:
    """Every tensor of a file; raises WeightsError where the header is not exactly right."""
    size = os.fstat(handle).st_size
    length = int.from_bytes(os.pread(handle, 8, 0), "little")
    if size < 8 or length > min(_HEADER_LIMIT, size - 8):
        raise WeightsError(f"{file}: header of {length} bytes in a file of {size}, want at most {_HEADER_LIMIT}")
    try:
        header = loads_strict(os.pread(handle, length, 8), file)
    except ManifestError as e:
        raise WeightsError(f"{file}: header: {e}") from e
    if not isinstance(header, dict):
        raise WeightsError(f"{file}: header is a {type(header).__name__}, want an object")
    header.pop("__metadata__", None)
    data = 8 + length
    spans = {name: _span(value, f"{file}: {name}", size - data) for name, value in header.items()}
    _check_cover(sorted(spans.values()), file, size - data)
    return {
        name: Entry(_DTYPES[value["dtype"]], tuple(value["shape"]), data + spans[name][0])
        for name, value in header.items()
    }


def map_file(handle: int) -> mmap.mmap:
    """A private mapping of a whole file: pages are read when touched, and nothing written here gets into it."""
    return mmap.mmap(handle, 0, access=mmap.ACCESS_COPY)


def views(mapping: mmap.mmap, entries: Mapping[str, Entry]) -> dict[str, Array]:
    """The tensors of a mapped file, which stays mapped as long as any of them lives."""
    return {
        name: np.frombuffer(mapping, entry.dtype, math.prod(entry.shape), entry.offset).reshape(entry.shape)
        for name, entry in entries.items()
    }


def _span(value: Any, where: str, size: int) -> tuple[int, int]:
    """A tensor's [begin, end) in the data, in bytes, checked against its dtype and shape."""
    if not isinstance(value, dict) or value.keys() != {"dtype", "shape", "data_offsets"}:
        raise WeightsError(f"{where}: want an object of dtype, shape and data_offsets")
    if not isinstance(value["dtype"], str) or value["dtype"] not in _DTYPES:
        raise WeightsError(f"{where}: dtype {value['dtype']!r}, want one of {', '.join(_DTYPES)}")
    shape, offsets = _whole_numbers(value["shape"], where), _whole_numbers(value["data_offsets"], where)
    wanted = math.prod(shape) * _DTYPES[value["dtype"]].itemsize
    if wanted == 0:
        raise WeightsError(f"{where}: shape {list(shape)}, want no empty dimension")
    if len(offsets) != 2 or offsets[1] > size or offsets[1] - offsets[0] != wanted:
        raise WeightsError(f"{where}: bytes {list(offsets)} of {size}, want {wanted} of them inside the file")
    return offsets[0], offsets[1]


def _whole_numbers(value: Any, where: str) -> tuple[int, ...]:
    good = isinstance(value, list) and all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in value)
    if not good:
        raise WeightsError(f"{where}: got {value!r}, want a list of whole numbers")
    return tuple(value)


def _check_cover(spans: list[tuple[int, int]], file: str, size: int) -> None:
    """Tensors must lie end to end: an overlap or a hole could hide what a file really holds."""
    reached = 0
    for begin, end in spans:
        if begin != reached:
            raise WeightsError(f"{file}: a tensor begins at byte {begin} of the data, want {reached}")
        reached = end
    if reached != size:
        raise WeightsError(f"{file}: tensors fill {reached} bytes of {size}, want all")
