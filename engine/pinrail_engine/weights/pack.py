"""Weight files to what the CPU kernels compute with: matrices fused, packed, perhaps quantised; norms as float32.

Every tensor is copied out of the mapping, whose pages are given back layer by layer: so no more than one layer is in
memory twice, and nothing that happens to a file later can reach a served model. Knows nothing of torch.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pinrail_kernels.native import Kind, Native, Packed, PackedLayer, Packing

from ..model import weight_names
from ..model.arch import Arch
from .safetensors_file import Array
from .tensors import Tensors, map_tensors


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """How weights are kept in memory."""

    layers: Kind  # of the layers' matrices
    head: Kind  # of the embedding table and the output head
    group: int = 0  # inputs that share a scale, where `layers` is INT4


@dataclass(frozen=True, slots=True)
class PackedWeights:
    embed: Packed  # [vocab, hidden]
    layers: tuple[PackedLayer, ...]
    norm: NDArray[np.float32]  # [hidden]
    head: Packed  # [vocab, hidden]; `embed` itself where tied

    @property
    def nbytes(self) -> int:
        """Of the matrices."""
        inner = (m for w in self.layers for m in (w.qkv, w.o, w.gate_up, w.down))
        return sum(m.nbytes for m in inner) + self.embed.nbytes + (0 if self.head is self.embed else self.head.nbytes)


def pack(native: Native, files: Mapping[str, int], arch: Arch, storage: Storage) -> PackedWeights:
    """Args: files: name -> open descriptor. Raises WeightsError that names every tensor that differs."""
    source = _Source(native, map_tensors(files, arch), storage)
    embed = source.table(weight_names.EMBED)
    head = embed if arch.tied else source.table(weight_names.HEAD)
    layers = tuple(_layer(source, weight_names.layer_prefix(i)) for i in range(arch.layers))
    return PackedWeights(embed, layers, source.norm(weight_names.NORM), head)


@dataclass(frozen=True, slots=True)
class _Source:
    """The mapped tensors, and what they are to become."""

    native: Native
    tensors: Tensors
    storage: Storage

    def table(self, name: str) -> Packed:
        packed = self.native.pack(self.storage.head, self._matrix(name))
        self.tensors.release()
        return packed

    def matrix(self, *names: str, by_turns: bool = False) -> Packing:
        """One matrix, or several joined by outputs."""
        parts = tuple(self._matrix(name) for name in names)
        return Packing(self.storage.layers, parts, self.storage.group, by_turns)

    def norm(self, name: str) -> NDArray[np.float32]:
        values = self.tensors.by_name[name]
        return widened(values) if values.dtype == np.uint16 else values.astype(np.float32)

    def _matrix(self, name: str) -> Array:
        """As the kernels read it: aligned, and of a type that they know."""
        values = self.tensors.by_name[name]
        known = values.astype(np.float32) if values.dtype == np.float64 else values
        return np.require(known, requirements="A")


def _layer(source: _Source, prefix: str) -> PackedLayer:
    attention, mlp = prefix + "self_attn.", prefix + "mlp."
    qkv, o, gate_up, down = source.native.pack_all(
        [
            source.matrix(*(f"{attention}{part}_proj.weight" for part in "qkv")),
            source.matrix(attention + "o_proj.weight"),
            source.matrix(mlp + "gate_proj.weight", mlp + "up_proj.weight", by_turns=True),
            source.matrix(mlp + "down_proj.weight"),
        ]
    )
    layer = PackedLayer(
        attention_norm=source.norm(prefix + "input_layernorm.weight"),
        qkv=qkv,
        o=o,
        mlp_norm=source.norm(prefix + "post_attention_layernorm.weight"),
        gate_up=gate_up,
        down=down,
    )
    source.tensors.release()
    return layer


def widened(values: NDArray[np.uint16]) -> NDArray[np.float32]:
    """bfloat16 as float32, exactly."""
    return (values.astype(np.uint32) << 16).view(np.float32)
