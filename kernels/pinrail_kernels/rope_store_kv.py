# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Between a layer's projection and its attention: turn queries and keys, write keys and values into the cache.

    q = rope(queries),  k_cache[slot] = rope(keys),  v_cache[slot] = values

One pass over the projection, where `rope` and `store_kv` make several. `rope_store_kv_ref` is the definition and the
path of torch. The cosines are taken once a step for all layers, by `rope_tables`; the kernel rounds where torch does,
so it equals the definition bit for bit, but for float32, whose products a GPU may fuse.

Sources: as in `rope` and `store_kv`.
"""

import torch
from torch import Tensor

from .checks import FLOATS, want_dense, want_dtype, want_shape
from .dispatch import on_triton, tl, triton
from .rope import rope
from .store_kv import store_kv

_HEADS = 8  # of a program


def rope_store_kv_ref(
    qkv: Tensor, turns: tuple[Tensor, Tensor], slots: Tensor, k_cache: Tensor, v_cache: Tensor
) -> Tensor:
    """Shapes as in `rope_store_kv`."""
    kv_heads, d = k_cache.shape[2:]
    heads = qkv.view(qkv.shape[0], -1, d)
    q, k, v = torch.split(heads, [heads.shape[1] - 2 * kv_heads, kv_heads, kv_heads], dim=1)
    store_kv(rope(k, *turns), v, k_cache, v_cache, slots)
    return rope(q, *turns)


@triton.jit
def _turn(a, b, cos, sin):
    """Products and their difference are rounded one by one."""
    dtype = a.dtype
    a, b, cos, sin = a.to(tl.float32), b.to(tl.float32), cos.to(tl.float32), sin.to(tl.float32)
    ac, bs = (a * cos).to(dtype).to(tl.float32), (b * sin).to(dtype).to(tl.float32)
    bc, as_ = (b * cos).to(dtype).to(tl.float32), (a * sin).to(dtype).to(tl.float32)
    return (ac - bs).to(dtype), (bc + as_).to(dtype)


@triton.jit
def rope_store_kv_kernel(
    qkv_ptr, cos_ptr, sin_ptr, slots_ptr, q_ptr, k_ptr, v_ptr, qkv_stride, heads, kv_heads, half,
    HEADS: tl.constexpr, HALF: tl.constexpr
):  # fmt: skip
    # One program a row and HEADS heads of q, k and v in the order of the projection; HALF is d / 2 rounded up.
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    pair = tl.arange(0, HALF)
    inside = (pair < half)[None, :]
    there = (head < heads + 2 * kv_heads)[:, None] & inside
    place = head[:, None] * (2 * half) + pair[None, :]
    a = tl.load(qkv_ptr + row * qkv_stride + place, mask=there, other=0.0)
    b = tl.load(qkv_ptr + row * qkv_stride + place + half, mask=there, other=0.0)
    cos = tl.load(cos_ptr + row * half + pair, mask=pair < half, other=0.0)[None, :]
    sin = tl.load(sin_ptr + row * half + pair, mask=pair < half, other=0.0)[None, :]
    c, s = _turn(a, b, cos, sin)

    is_q = (head < heads)[:, None] & inside
    is_k = (head >= heads)[:, None] & (head < heads + kv_heads)[:, None] & inside
    is_v = (head >= heads + kv_heads)[:, None] & there
    to_q = q_ptr + row * heads * 2 * half + place
    slot = tl.load(slots_ptr + row).to(tl.int64) * kv_heads * 2 * half
    to_k = k_ptr + slot + place - heads * 2 * half
    to_v = v_ptr + slot + place - (heads + kv_heads) * 2 * half
    tl.store(to_q, c, mask=is_q)
    tl.store(to_q + half, s, mask=is_q)
    tl.store(to_k, c, mask=is_k)
    tl.store(to_k + half, s, mask=is_k)
    tl.store(to_v, a, mask=is_v)
    tl.store(to_v + half, b, mask=is_v)


def rope_store_kv(qkv: Tensor, turns: tuple[Tensor, Tensor], slots: Tensor, k_cache: Tensor, v_cache: Tensor) -> Tensor:
    """Turn, store, and return the queries.

    Args:
        qkv: [n, (heads + 2 kv_heads) * d], float32, float16 or bfloat16: queries, keys, values; rows may be strided.
        turns: cos and sin of `rope_tables` at the rows' positions, [n, 1, d / 2] each, dtype of `qkv`.
        slots: [n] int64, block * block_size + offset, all different but for rows that nobody reads.
        k_cache, v_cache: [n_blocks, block_size, kv_heads, d], contiguous, dtype of `qkv`; changed in place.

    Returns:
        [n, heads, d], contiguous, dtype of `qkv`.

    Raises:
        ValueError: A shape, dtype or stride is not as above.

    Cost: reads and writes n (heads + 2 kv_heads) d elements once.
    """
    heads = _check(qkv, turns, slots, k_cache, v_cache)
    if not on_triton(qkv):
        return rope_store_kv_ref(qkv, turns, slots, k_cache, v_cache)
    n, (kv_heads, d) = qkv.shape[0], k_cache.shape[2:]
    q = torch.empty(n, heads, d, dtype=qkv.dtype, device=qkv.device)
    if n > 0:
        rope_store_kv_kernel[(n, triton.cdiv(heads + 2 * kv_heads, _HEADS))](
            qkv, *turns, slots, q, k_cache, v_cache, qkv.stride(0), heads, kv_heads, d // 2,
            HEADS=_HEADS, HALF=triton.next_power_of_2(d // 2),
        )  # fmt: skip
    return q


def _check(qkv: Tensor, turns: tuple[Tensor, Tensor], slots: Tensor, k_cache: Tensor, v_cache: Tensor) -> int:
    """Returns the number of query heads."""
    want_shape("qkv", qkv, None, None)
    want_dtype("qkv", qkv, *FLOATS)
    want_dense("qkv", qkv, 1)
    want_shape("k_cache", k_cache, None, None, None, None)
    want_shape("v_cache", v_cache, *k_cache.shape)
    (n, width), (kv_heads, d) = qkv.shape, k_cache.shape[2:]
    heads = width // d - 2 * kv_heads
    if d % 2 or width % d or heads < 1:
        raise ValueError(f"qkv must be [n, (heads + 2 * {kv_heads}) * {d}] with even d, got {list(qkv.shape)}")
    for name, cache in (("k_cache", k_cache), ("v_cache", v_cache)):
        want_dtype(name, cache, qkv.dtype)
        want_dense(name, cache, 4)
    for name, turn in zip(("cos", "sin"), turns, strict=True):
        want_shape(name, turn, n, 1, d // 2)
        want_dtype(name, turn, qkv.dtype)
        want_dense(name, turn, 3)
    want_shape("slots", slots, n)
    want_dtype("slots", slots, torch.int64)
    want_dense("slots", slots, 1)
    return heads
