"""`pinrail bench accuracy`: what smaller weights change in what a model says, on a text that was written for this.

Each way to keep weights is compared with float32 weights and cache, position by position, on the same kernels.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.resources import files

import numpy as np
from numpy.typing import NDArray

from pinrail_contract.launch import Dtype, Quantization
from pinrail_kernels.native import Batch, Decoder, Native, room

from ..model.arch import Arch
from ..run.native_backend import NativeOptions, shape_of, storage_of
from ..weights.pack import pack

_CHUNK = 128  # positions whose logits are in memory at a time
_BLOCK = 16  # tokens

Logits = NDArray[np.float32]  # [n, vocab]

WAYS: Mapping[str, tuple[Dtype, Quantization]] = {
    "float32": (Dtype.FLOAT32, Quantization.NONE),
    "bfloat16": (Dtype.BFLOAT16, Quantization.NONE),
    "int8": (Dtype.BFLOAT16, Quantization.INT8),
    "int4": (Dtype.BFLOAT16, Quantization.INT4),
}
"""Name -> type of the cache and, unless quantised, of the weights. The first is what others are held against."""


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Of one way to keep weights, over all positions of the text."""

    weights: str
    weight_bytes: int
    tokens: int
    perplexity: float  # e to the mean of -log p(the token that follows)
    mean_error: float  # of a logit: the mean of |x - x in float32|
    largest_error: float
    divergence: float  # mean Kullback-Leibler divergence from float32's distribution, in nats
    same_choice: float  # share of positions where the likeliest token is float32's

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    def __str__(self) -> str:
        sizes = f"{self.weights:<9} {self.weight_bytes / 1e6:7.1f} MB  perplexity {self.perplexity:7.3f}"
        errors = f"logit error {self.mean_error:.4f} (largest {self.largest_error:.3f})"
        return f"{sizes}  {errors}  divergence {self.divergence:.5f}  same token {self.same_choice:6.1%}"


def text() -> str:
    return files(__package__).joinpath("accuracy.txt").read_text(encoding="utf-8")


def measure(native: Native, weights: Mapping[str, int], arch: Arch, tokens: Sequence[int]) -> Iterator[Accuracy]:
    """One for each of WAYS, as it is done.

    Args:
        weights: Files, name -> open descriptor.
        tokens: Ids of the text; cut to what the model was trained to see.
    """
    ids = np.array(tokens[: arch.max_position], np.int32)
    exact = _Reader(native, weights, arch, WAYS["float32"], len(ids))
    for name, way in WAYS.items():
        tried = exact if name == "float32" else _Reader(native, weights, arch, way, len(ids))
        sums = _Sums()
        for first in range(0, len(ids) - 1, _CHUNK):
            part = ids[first : min(first + _CHUNK, len(ids) - 1)]
            wanted = exact.read(part, first).copy()
            sums.add(wanted, tried.read(part, first), ids[first + 1 : first + 1 + len(part)])
        yield sums.result(name, tried.nbytes)


class _Reader:
    """A model with its weights kept in one way, and a cache for one text."""

    def __init__(
        self,
        native: Native,
        files: Mapping[str, int],
        arch: Arch,
        way: tuple[Dtype, Quantization],
        length: int,
    ) -> None:
        options = NativeOptions(dtype=way[0], quantization=way[1], block_size=_BLOCK, threads=native.threads)
        shape = shape_of(arch, options)
        packed = pack(native, files, arch, storage_of(options))
        self.nbytes = packed.nbytes
        self._decoder: Decoder = native.decoder(shape, packed.layers, packed.embed, packed.head, packed.norm)
        blocks = -(-length // _BLOCK)
        kv = room(shape.layers * blocks * shape.block_elements * shape.kv_type.itemsize)
        self._kv = kv.view(shape.kv_type).reshape(shape.layers, blocks, shape.block_elements)
        self._tables = np.arange(blocks, dtype=np.int32)[None]

    def read(self, ids: NDArray[np.int32], first: int) -> Logits:
        """Logits after each of `ids`, which stand at position `first` and on."""
        n = len(ids)
        sequences = np.array([[0, first, n, 0]], np.int32)
        positions = np.arange(first, first + n, dtype=np.int32)
        self._decoder.forward(Batch(ids, positions, sequences, self._tables, self._kv))
        return self._decoder.logits(np.arange(n, dtype=np.int32))


class _Sums:
    """What is added up over positions."""

    def __init__(self) -> None:
        self._tokens = self._same = 0
        self._surprise = self._error = self._largest = self._divergence = 0.0

    def add(self, exact: Logits, tried: Logits, following: NDArray[np.int32]) -> None:
        error = np.abs(tried - exact)
        wanted, told = _log_softmax(exact), _log_softmax(tried)
        self._tokens += len(following)
        self._same += int((exact.argmax(1) == tried.argmax(1)).sum())
        self._surprise -= float(told[np.arange(len(following)), following].sum())
        self._error += float(error.mean(1, dtype=np.float64).sum())
        self._largest = max(self._largest, float(error.max()))
        self._divergence += float((np.exp(wanted) * (wanted - told)).sum())

    def result(self, name: str, nbytes: int) -> Accuracy:
        n = self._tokens
        return Accuracy(
            weights=name,
            weight_bytes=nbytes,
            tokens=n,
            perplexity=math.exp(self._surprise / n),
            mean_error=self._error / n,
            largest_error=self._largest,
            divergence=self._divergence / n,
            same_choice=self._same / n,
        )


def _log_softmax(logits: Logits) -> NDArray[np.float64]:
    x = logits.astype(np.float64)
    x -= x.max(1, keepdims=True)
    x -= np.log(np.exp(x).sum(1, keepdims=True))
    return x
