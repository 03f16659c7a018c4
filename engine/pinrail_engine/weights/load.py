"""Weight files to the decoder's weights: names and shapes compared, matrices fused, dtype converted.

Every tensor is copied out of the mapping, so nothing that happens to the file later can reach a served model.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import WeightsError
from ..model import weight_names
from ..model.arch import Arch
from ..model.decoder import Layer, Weights
from .safetensors_file import Entry, map_tensors, read_header


def load(files: Mapping[str, int], arch: Arch, dtype: torch.dtype, device: torch.device) -> Weights:
    """Args: files: name -> open descriptor. Raises WeightsError that names every tensor that differs."""
    headers = {file: read_header(handle, file) for file, handle in files.items()}
    _check_names(headers, arch)
    tensors: dict[str, Tensor] = {}
    for file, handle in files.items():
        tensors |= map_tensors(handle, headers[file])
    source = _Source(tensors, dtype, device)
    embed = source.take(weight_names.EMBED)
    head = embed if arch.tied else source.take(weight_names.HEAD)
    layers = tuple(_layer(source, weight_names.layer_prefix(i)) for i in range(arch.layers))
    return Weights(embed, layers, source.take(weight_names.NORM), head)


@dataclass(frozen=True, slots=True)
class _Source:
    """The mapped tensors, and what they are to become."""

    tensors: Mapping[str, Tensor]
    dtype: torch.dtype
    device: torch.device

    def take(self, *names: str) -> Tensor:
        """A copy of one tensor, or of several joined by rows."""
        if len(names) == 1:
            return self.tensors[names[0]].to(self.device, self.dtype, copy=True)
        return torch.cat([self.tensors[name].to(self.device, self.dtype) for name in names])


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


def _check_names(headers: Mapping[str, Mapping[str, Entry]], arch: Arch) -> None:
    expected = weight_names.expected(arch)
    found: dict[str, tuple[int, ...]] = {}
    problems = []
    for file, name, entry in ((f, n, e) for f, entries in headers.items() for n, e in entries.items()):
        if name in found:
            problems.append(f"{name} stands in two files, one of them {file}")
        found[name] = entry.shape
    for name in sorted(expected.keys() | found.keys()):
        if name not in found:
            problems.append(f"{name} is missing, want shape {list(expected[name])}")
        elif name in expected and found[name] != expected[name]:
            problems.append(f"{name} has shape {list(found[name])}, want {list(expected[name])}")
        elif name not in expected and not weight_names.is_ignored(name, arch):
            problems.append(f"{name} is not a tensor of this network, want none such")
    if problems:
        raise WeightsError(f"weights: {len(problems)} tensors differ from config.json: {'; '.join(problems)}")
