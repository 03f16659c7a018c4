"""The network: token ids in, logits out. One function per stage; the weights are data.

Knows nothing of requests, files or sampling. A batch is any mix of prefill chunks and single rows; where a row stands
in its sequence is in `positions`, and what it may see is in `attention`. A layer is a handful of operations, each a
kernel where there are some for the device.
"""

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from pinrail_kernels.linear import linear
from pinrail_kernels.paged_attention import Plan, paged_attention
from pinrail_kernels.rms_norm import add_rms_norm, rms_norm
from pinrail_kernels.rope import rope_tables
from pinrail_kernels.rope_store_kv import rope_store_kv
from pinrail_kernels.silu_mul import silu_mul

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
    attention: Plan  # who sees what


def forward(arch: Arch, weights: Weights, batch: Batch, kv_cache: Tensor) -> Tensor:
    """Run the network over a batch, writing its keys and values into the cache.

    Args:
        kv_cache: [layers, 2, n_blocks, block_size, kv_heads, head_dim], compute dtype; changed in place.

    Returns:
        [n, hidden]: what `logits` is made of, for whichever rows are wanted.
    """
    if batch.fresh.shape[0]:
        kv_cache.index_fill_(2, batch.fresh, 0.0)
    x = F.embedding(batch.token_ids, weights.embed)
    turns = rope_tables(batch.positions, arch.head_dim, arch.rope_theta, x.dtype)
    norms = [*(layer.attention_norm for layer in weights.layers[1:]), weights.norm]  # what follows each layer
    normed = rms_norm(x, weights.layers[0].attention_norm, arch.eps)
    for layer, cache, norm in zip(weights.layers, kv_cache, norms, strict=True):
        attended = _attention(layer, normed, turns, batch, cache)
        normed, x = add_rms_norm(attended, x, layer.mlp_norm, arch.eps)
        normed, x = add_rms_norm(_mlp(layer, normed), x, norm, arch.eps)
    return normed


def logits(weights: Weights, x: Tensor) -> Tensor:
    """The logits of the token after each row.

    Args:
        x: [s, hidden], of `forward`.

    Returns:
        [s, vocab] float32.
    """
    return linear(x, weights.head).float()


def _attention(layer: Layer, x: Tensor, turns: tuple[Tensor, Tensor], batch: Batch, cache: Tensor) -> Tensor:
    """Args: x: [n, hidden]; cache: [2, n_blocks, block_size, kv_heads, head_dim]. Returns: [n, hidden]."""
    q = rope_store_kv(linear(x, layer.qkv), turns, batch.slots, cache[0], cache[1])
    return linear(paged_attention(q, cache[0], cache[1], batch.attention).flatten(1), layer.o)


def _mlp(layer: Layer, x: Tensor) -> Tensor:
    """Args: x: [n, hidden]. Returns: the same."""
    return linear(silu_mul(linear(x, layer.gate_up)), layer.down)
