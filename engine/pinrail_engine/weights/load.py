"""Weight files to the decoder's weights: matrices fused, dtype converted.

Every tensor is copied out of the mapping, so nothing that happens to the file later can reach a served model.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..model import weight_names
from ..model.arch import Arch
from ..model.decoder import Layer, Weights
from .safetensors_file import Array
from .tensors import map_tensors


def load(files: Mapping[str, int], arch: Arch, dtype: torch.dtype, device: torch.device) -> Weights:
    """Args: files: name -> open descriptor. Raises WeightsError that names every tensor that differs."""
    source = _Source(map_tensors(files, arch).by_name, dtype, device)
    embed = source.take(weight_names.EMBED)
    head = embed if arch.tied else source.take(weight_names.HEAD)
    layers = tuple(_layer(source, weight_names.layer_prefix(i)) for i in range(arch.layers))
    return Weights(embed, layers, source.take(weight_names.NORM), head)


@dataclass(frozen=True, slots=True)
class _Source:
    """The mapped tensors, and what they are to become."""

    arrays: Mapping[str, Array]
    dtype: torch.dtype
    device: torch.device

    def take(self, *names: str) -> Tensor:
        """A copy of one tensor, or of several joined by rows."""
        if len(names) == 1:
            return self._mapped(names[0]).to(self.device, self.dtype, copy=True)
        return torch.cat([self._mapped(name).to(self.device, self.dtype) for name in names])

    def _mapped(self, name: str) -> Tensor:
        array = self.arrays[name]
        tensor = torch.from_numpy(array)
        return tensor.view(torch.bfloat16) if array.dtype == np.uint16 else tensor


def _layer(source: _Source, prefix: str) -> Layer:
    attention, mlp = prefix + "self_attn.", prefix + "mlp."
    return Layer(
        attention_norm=source.take(prefix + "input_layernorm.weight"),
        qkv=source.take(*(f"{attention}{part}_proj.weight" for part in "qkv")),
        o=source.take(attention + "o_proj.weight"),
        mlp_norm=source.take(prefix + "post_attention_layernorm.weight"),
        gate_up=source.take(mlp + "gate_proj.weight", mlp + "up_proj.weight"),
        down=source.take(mlp + "down_proj.weight"),
    )
