"""Causal attention over a paged KV cache, for a ragged batch of query rows with grouped query heads.

    out_i = softmax(q_i K^T / sqrt(d)) V,  K and V being the slots of positions 0 ... position(i) of i's sequence

Query head h reads KV head h // (heads / kv_heads). Blocks need not be contiguous; a table lists a sequence's.

`paged_attention_ref` is the definition, `paged_attention` the path for CPUs; `tests/kernels` holds them together.

Source: Vaswani et al. 2017, https://arxiv.org/abs/1706.03762, equation 1; grouped heads: Ainslie et al. 2023,
https://arxiv.org/abs/2305.13245; paging: Kwon et al. 2023, https://arxiv.org/abs/2309.06180, section 4.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Queries:
    """Consecutive rows of `q` that belong to one sequence."""

    row: int  # the first of them
    start: int  # position of the first of them
    count: int  # rows, at least 1
    line: int  # of the block tables: which blocks hold the sequence, up to position start + count - 1 at least

    @property
    def context(self) -> int:
        """Tokens that the last row sees, itself included."""
        return self.start + self.count

    def blocks(self, block_size: int) -> int:
        """Blocks that the context fills, the last one perhaps in part."""
        return -(-self.context // block_size)


@dataclass(frozen=True, slots=True)
class Decodes:
    """Sequences with one query row each, and contexts of similar length."""

    rows: Tensor  # [b] int64
    tables: Tensor  # [b, m] int64, short ones padded with their own first block: a text reads no other's blocks
    mask: Tensor  # [b, 1, 1, m * block_size], dtype of q: 0 where a row may look, -inf elsewhere


@dataclass(frozen=True, slots=True)
class Prefill:
    """One sequence with any number of query rows."""

    rows: slice
    table: Tensor  # [m] int64
    context: int  # tokens
    mask: Tensor | None  # [count, context], dtype of q, 0 or -inf; None: rows are the whole context, so plainly causal


Extent = Decodes | Prefill


def paged_attention_ref(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, sequences: Sequence[Queries], tables: Tensor
) -> Tensor:
    """The definition, in float32. Shapes as in `paged_attention`; `sequences` cover every row of `q`.

    Args:
        tables: [lines, m] int64: block numbers.
    """
    group = q.shape[1] // k_cache.shape[2]
    out = torch.empty_like(q)
    for s in sequences:
        table = tables[s.line, : s.blocks(k_cache.shape[1])]
        k, v = (_context(cache, table, s.context).float() for cache in (k_cache, v_cache))
        for i in range(s.count):
            seen = s.start + i + 1
            keys, values = (x[:seen].repeat_interleave(group, dim=1) for x in (k, v))  # [seen, heads, d]
            scores = torch.einsum("hd,shd->hs", q[s.row + i].float(), keys) / q.shape[-1] ** 0.5
            out[s.row + i] = torch.einsum("hs,shd->hd", scores.softmax(-1), values).to(q.dtype)
    return out


def plan_extents(
    sequences: Sequence[Queries], tables: Tensor, block_size: int, dtype: torch.dtype
) -> tuple[Extent, ...]:
    """Arrange a batch once per step, for every layer's `paged_attention`.

    Single rows whose block counts lie between the same powers of two are one group, so that padding less than doubles
    the keys that are read. Longer runs of rows stand alone.

    Args:
        tables: [lines, m] int64, on the device; what lies behind a sequence's own blocks is not looked at.

    Cost: masks of the padded contexts, and of count x context for a chunk that does not start its sequence.
    """
    groups: dict[int, list[Queries]] = {}
    extents: list[Extent] = []
    for s in sequences:
        if s.count == 1:
            groups.setdefault(s.blocks(block_size).bit_length(), []).append(s)
        else:
            extents.append(_prefill(s, tables, block_size, dtype))
    return (*(_decodes(group, tables, block_size, dtype) for group in groups.values()), *extents)


def paged_attention(q: Tensor, k_cache: Tensor, v_cache: Tensor, extents: Sequence[Extent]) -> Tensor:
    """Attend from every row of `q`; its own keys and values are in the cache already.

    Args:
        q: [n, heads, d], float32 or bfloat16.
        k_cache, v_cache: [n_blocks, block_size, kv_heads, d], dtype of `q`. In a text's own blocks every element must
            be finite, for masked ones are multiplied by zero; what other blocks hold does not matter.
        extents: Of `plan_extents`; together they cover every row once.

    Returns:
        [n, heads, d], dtype of `q`.

    Cost: copies each context out of the cache (2 * context * kv_heads * d elements per sequence, padded within a
    group of decodes), which a kernel that reads blocks in place does not; then one fused attention call per extent.
    """
    out = torch.empty_like(q)
    for extent in extents:
        attend = _attend_decodes if isinstance(extent, Decodes) else _attend_prefill
        out[extent.rows] = attend(q[extent.rows], k_cache, v_cache, extent)  # type: ignore[arg-type]
    return out


def _attend_decodes(q: Tensor, k_cache: Tensor, v_cache: Tensor, extent: Decodes) -> Tensor:
    """The query heads of one KV head become its query rows: [b, kv_heads, heads / kv_heads, d]."""
    b, heads, d = q.shape
    m, block_size, kv_heads = extent.tables.shape[1], *k_cache.shape[1:3]
    flat = extent.tables.view(-1)
    k, v = (c.index_select(0, flat).view(b, m * block_size, kv_heads, d).transpose(1, 2) for c in (k_cache, v_cache))
    folded = q.view(b, kv_heads, heads // kv_heads, d)
    mask = extent.mask.expand(-1, -1, heads // kv_heads, -1)
    return F.scaled_dot_product_attention(folded, k, v, attn_mask=mask).reshape(b, heads, d)


def _attend_prefill(q: Tensor, k_cache: Tensor, v_cache: Tensor, extent: Prefill) -> Tensor:
    k, v = (_context(cache, extent.table, extent.context).transpose(0, 1)[None] for cache in (k_cache, v_cache))
    out = F.scaled_dot_product_attention(
        q.transpose(0, 1)[None], k, v, attn_mask=extent.mask, is_causal=extent.mask is None, enable_gqa=True
    )
    return out[0].transpose(0, 1)


def _context(cache: Tensor, table: Tensor, tokens: int) -> Tensor:
    """The first `tokens` slots of a block table: [tokens, kv_heads, d]."""
    return cache.index_select(0, table).flatten(0, 1)[:tokens]


def _decodes(group: Sequence[Queries], tables: Tensor, block_size: int, dtype: torch.dtype) -> Decodes:
    device = tables.device
    width = max(s.blocks(block_size) for s in group)
    lines, contexts, rows = torch.tensor([[s.line, s.context, s.row] for s in group], device=device).unbind(1)
    own = torch.arange(width, device=device) * block_size < contexts[:, None]
    padded = tables[lines, :width]
    padded = padded.where(own, padded[:, :1])
    unseen = torch.arange(width * block_size, device=device) >= contexts[:, None]
    mask = torch.zeros(unseen.shape, dtype=dtype, device=device).masked_fill_(unseen, float("-inf"))
    return Decodes(rows, padded, mask[:, None, None, :])


def _prefill(s: Queries, tables: Tensor, block_size: int, dtype: torch.dtype) -> Prefill:
    mask = None
    if s.start > 0:
        mask = torch.full((s.count, s.context), float("-inf"), dtype=dtype, device=tables.device).triu_(s.start + 1)
    return Prefill(slice(s.row, s.row + s.count), tables[s.line, : s.blocks(block_size)], s.context, mask)
