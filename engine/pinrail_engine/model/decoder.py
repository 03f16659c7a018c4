"""The network: token ids in, logits out. One function per stage; the weights are data.

Knows nothing of requests, files or sampling. A batch is any mix of prefill chunks and single rows; where a row stands
in its sequence is in `positions`, and what it may see is in `extents`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from pinrail_kernels.paged_attention import Extent, paged_attention
from pinrail_kernels.rms_norm import rms_norm
from pinrail_kernels.rope import rope, rope_tables
from pinrail_kernels.silu_mul import silu_mul
from pinrail_kernels.store_kv import store_kv

from .arch import Arch


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer's weights, all of the compute dtype; matrices are [out, in]."""

    attention_norm: Tensor  # [hidden]
    qkv: Tensor  # [q_size + 2 kv_size, hidden]: queries, keys, values
    o: Tensor  # [hidden, q_size]
    mlp_norm: Tensor  # [hidden]
    gate_up: Tensor  # [2 intermediate, hidden]: gate, up
    down: Tensor  # [hidden, intermediate]


@dataclass(frozen=True, slots=True)
class Weights:
    embed: Tensor  # [vocab, hidden]
    layers: tuple[Layer, ...]
    norm: Tensor  # [hidden]
    head: Tensor  # [vocab, hidden]; `embed` itself where tied


@dataclass(frozen=True, slots=True)
class Batch:
    """What the network is run on: n rows."""

    token_ids: Tensor  # [n] int64
    positions: Tensor  # [n] int64, each in its own sequence
    slots: Tensor  # [n] int64, where in the cache each row's key and value go
    fresh: Tensor  # [f] int64, blocks that a text begins: zeroed first, so that no earlier text's numbers are in them
    extents: Sequence[Extent]  # who sees what


def forward(arch: Arch, weights: Weights, batch: Batch, kv_cache: Tensor) -> Tensor:
    """Run the network over a batch, writing its keys and values into the cache.

    Args:
        kv_cache: [layers, 2, n_blocks, block_size, kv_heads, head_dim], compute dtype; changed in place.

    Returns:
        [n, hidden]: what `logits` is made of, for whichever rows are wanted.
    """
    kv_cache.index_fill_(2, batch.fresh, 0.0)
    x = F.embedding(batch.token_ids, weights.embed)
    cos_sin = rope_tables(batch.positions, arch.head_dim, arch.rope_theta, x.dtype)
    for layer, cache in zip(weights.layers, kv_cache, strict=True):
        x = x + _attention(arch, layer, rms_norm(x, layer.attention_norm, arch.eps), cos_sin, batch, cache)
        x = x + F.linear(silu_mul(F.linear(rms_norm(x, layer.mlp_norm, arch.eps), layer.gate_up)), layer.down)
    return x


def logits(arch: Arch, weights: Weights, x: Tensor) -> Tensor:
    """The logits of the token after each row.

    Args:
        x: [s, hidden], of `forward`.

    Returns:
        [s, vocab] float32.
    """
    return F.linear(rms_norm(x, weights.norm, arch.eps), weights.head).float()


def _attention(
    arch: Arch, layer: Layer, x: Tensor, cos_sin: tuple[Tensor, Tensor], batch: Batch, cache: Tensor
) -> Tensor:
    """Args: x: [n, hidden]; cache: [2, n_blocks, block_size, kv_heads, head_dim]. Returns: [n, hidden]."""
    heads = F.linear(x, layer.qkv).view(x.shape[0], -1, arch.head_dim)
    q, k, v = torch.split(heads, [arch.heads, arch.kv_heads, arch.kv_heads], dim=1)
    q, k = rope(q, *cos_sin), rope(k, *cos_sin)
    store_kv(k, v, cache[0], cache[1], batch.slots)
    return F.linear(paged_attention(q, cache[0], cache[1], batch.extents).flatten(1), layer.o)
