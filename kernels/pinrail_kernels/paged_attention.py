"""Causal attention over a paged KV cache, for a ragged batch of query rows with grouped query heads.

    out_i = softmax(c tanh(s q_i K^T / c)) V,  K and V being the slots of positions p of i's sequence
    with  position(i) - window < p <= position(i)

s is 1 / sqrt(d) unless the model says otherwise. Without a soft cap c the scores are s q_i K^T; without a window the
positions start at 0. Query head h reads KV head h // (heads / kv_heads). Blocks need not be contiguous; a table lists a
sequence's.

`paged_attention_ref` is the definition. `paged_attention` takes the kernels of `paged_attention_triton`, or torch's
operations, which are below. Each wants the batch arranged once a step, for all layers: `plan_attention`.

Source: Vaswani et al. 2017, https://arxiv.org/abs/1706.03762, equation 1; grouped heads: Ainslie et al. 2023,
https://arxiv.org/abs/2305.13245; paging: Kwon et al. 2023, https://arxiv.org/abs/2309.06180, section 4; window: Jiang
et al. 2023, https://arxiv.org/abs/2310.06825, section 2 (counted as in transformers: the row's own position is one of
them); soft cap: Gemma Team 2024, https://arxiv.org/abs/2408.00118, section 2.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from .checks import FLOATS, want_dense, want_dtype, want_shape
from .dispatch import on_triton
from .paged_attention_triton import TritonPlan, attend, plan_triton


@dataclass(frozen=True, slots=True)
class Queries:
    """Consecutive rows of `q` that belong to one sequence."""

    row: int  # the first of them
    start: int  # position of the first of them
    count: int  # rows, at least 1
    line: int  # of the block tables: which blocks hold the sequence, up to position start + count - 1 at least

    @property
    def context(self) -> int:
        """Tokens before the last row's position, and that one."""
        return self.start + self.count

    def blocks(self, block_size: int) -> int:
        """Blocks that the context fills, the last one perhaps in part."""
        return -(-self.context // block_size)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """How a layer's queries look at keys."""

    window: int | None = None  # tokens seen back, the row's own included, at least 1; None: all
    soft_cap: float | None = None  # scores stay within plus and minus this; above 0
    scale: float | None = None  # None: 1 / sqrt(d)

    def __post_init__(self) -> None:
        if self.window is not None and self.window < 1:
            raise ValueError(f"window must be 1 or more tokens, got {self.window}")
        if self.soft_cap is not None and self.soft_cap <= 0:
            raise ValueError(f"soft_cap must be above 0, got {self.soft_cap}")

    def scale_for(self, d: int) -> float:
        return 1 / d**0.5 if self.scale is None else self.scale

    def first(self, position: int) -> int:
        """The lowest position that a row sees."""
        return 0 if self.window is None else max(0, position + 1 - self.window)


CAUSAL = Rule()


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


@dataclass(frozen=True, slots=True)
class TorchPlan:
    """A batch, arranged for torch's operations."""

    extents: tuple[Decodes | Prefill, ...]
    rule: Rule


Plan = TorchPlan | TritonPlan


def paged_attention_ref(
    q: Tensor, caches: tuple[Tensor, Tensor], sequences: Sequence[Queries], tables: Tensor, rule: Rule = CAUSAL
) -> Tensor:
    """The definition, in float32. Shapes as in `paged_attention`; `sequences` cover every row of `q`.

    Args:
        tables: [lines, m] int64: block numbers.
    """
    group, block_size = q.shape[1] // caches[0].shape[2], caches[0].shape[1]
    out = torch.empty_like(q)
    for s in sequences:
        table = tables[s.line, : s.blocks(block_size)]
        k, v = (_context(cache, table, s.context).float() for cache in caches)
        for i in range(s.count):
            position = s.start + i
            seen = slice(rule.first(position), position + 1)
            keys, values = (x[seen].repeat_interleave(group, dim=1) for x in (k, v))  # [seen, heads, d]
            scores = torch.einsum("hd,shd->hs", q[s.row + i].float(), keys) * rule.scale_for(q.shape[-1])
            weights = _capped(scores, rule).softmax(-1)
            out[s.row + i] = torch.einsum("hs,shd->hd", weights, values).to(q.dtype)
    return out


def plan_attention(
    sequences: Sequence[Queries], tables: Tensor, block_size: int, dtype: torch.dtype, rule: Rule = CAUSAL
) -> Plan:
    """Arrange a batch once per step, for `paged_attention` in every layer of this rule.

    For torch's operations, single rows whose block counts lie between the same powers of two are one group, so that
    padding less than doubles the keys that are read. Longer runs of rows stand alone.

    Args:
        tables: [lines, m] int64, on the device; what lies behind a sequence's own blocks is not looked at.

    Cost: for Triton a few numbers; for torch masks of the padded contexts, and of count x context for a chunk that
    does not start its sequence.
    """
    if on_triton(tables):
        return plan_triton(sequences, tables, rule)
    groups: dict[int, list[Queries]] = {}
    extents: list[Decodes | Prefill] = []
    for s in sequences:
        if s.count == 1:
            groups.setdefault(s.blocks(block_size).bit_length(), []).append(s)
        else:
            extents.append(_prefill(s, tables, block_size, dtype, rule))
    decodes = (_decodes(group, tables, block_size, dtype, rule) for group in groups.values())
    return TorchPlan((*decodes, *extents), rule)


def paged_attention(q: Tensor, k_cache: Tensor, v_cache: Tensor, plan: Plan) -> Tensor:
    """Attend from every row of `q`; its own keys and values are in the cache already.

    Args:
        q: [n, heads, d], float32, float16 or bfloat16, contiguous; kv_heads divides heads, d is even.
        k_cache, v_cache: [n_blocks, block_size, kv_heads, d], contiguous, dtype of `q`. For torch's operations every
            element in a text's own blocks must be finite, for masked ones are multiplied by zero; what other blocks
            hold does not matter. Kernels read nothing behind a context.
        plan: Of `plan_attention`; covers every row once.

    Returns:
        [n, heads, d], dtype of `q`.

    Raises:
        ValueError: A shape, dtype or stride is not as above.

    Cost: kernels read 2 * context * kv_heads * d elements per sequence, a chunk of more than 64 rows x group again for
    every 64. Torch's operations copy each context out of the cache besides, padded within a group of decodes.
    """
    _check(q, k_cache, v_cache)
    if isinstance(plan, TritonPlan):
        return attend(q, k_cache, v_cache, plan)
    out = torch.empty_like(q)
    for extent in plan.extents:
        if isinstance(extent, Decodes):
            out[extent.rows] = _attend_decodes(q[extent.rows], k_cache, v_cache, extent, plan.rule)
        else:
            out[extent.rows] = _attend_prefill(q[extent.rows], k_cache, v_cache, extent, plan.rule)
    return out


def _check(q: Tensor, k_cache: Tensor, v_cache: Tensor) -> None:
    want_shape("q", q, None, None, None)
    want_dtype("q", q, *FLOATS)
    want_dense("q", q, 3)
    want_shape("k_cache", k_cache, None, None, None, q.shape[2])
    want_shape("v_cache", v_cache, *k_cache.shape)
    if q.shape[1] % k_cache.shape[2]:
        raise ValueError(f"heads must be a multiple of kv_heads, {k_cache.shape[2]}, got {q.shape[1]}")
    for name, cache in (("k_cache", k_cache), ("v_cache", v_cache)):
        want_dtype(name, cache, q.dtype)
        want_dense(name, cache, 4)


def _attend_decodes(q: Tensor, k_cache: Tensor, v_cache: Tensor, extent: Decodes, rule: Rule) -> Tensor:
    """The query heads of one KV head become its query rows: [b, kv_heads, heads / kv_heads, d]."""
    b, heads, d = q.shape
    m, block_size, kv_heads = extent.tables.shape[1], *k_cache.shape[1:3]
    flat = extent.tables.view(-1)
    k, v = (c.index_select(0, flat).view(b, m * block_size, kv_heads, d).transpose(1, 2) for c in (k_cache, v_cache))
    folded = q.view(b, kv_heads, heads // kv_heads, d)
    mask = extent.mask.expand(-1, -1, heads // kv_heads, -1)
    return _softmax_of(folded, k, v, mask, rule).reshape(b, heads, d)


def _attend_prefill(q: Tensor, k_cache: Tensor, v_cache: Tensor, extent: Prefill, rule: Rule) -> Tensor:
    k, v = (_context(cache, extent.table, extent.context).transpose(0, 1)[None] for cache in (k_cache, v_cache))
    return _softmax_of(q.transpose(0, 1)[None], k, v, extent.mask, rule)[0].transpose(0, 1)


def _softmax_of(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, rule: Rule) -> Tensor:
    """Args: q: [b, heads, n, d]; k, v: [b, kv_heads, m, d]; mask: None is causal, and then n is m."""
    if rule.soft_cap is None:
        return F.scaled_dot_product_attention(
            q, k, v, mask, is_causal=mask is None, scale=rule.scale_for(q.shape[-1]), enable_gqa=True
        )
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v))
    scores = _capped((q @ k.transpose(-1, -2)).float() * rule.scale_for(q.shape[-1]), rule)
    unseen = torch.full_like(scores[0, 0], float("-inf")).triu_(1) if mask is None else mask
    return (scores + unseen).softmax(-1).to(v.dtype) @ v


def _capped(scores: Tensor, rule: Rule) -> Tensor:
    return scores if rule.soft_cap is None else rule.soft_cap * (scores / rule.soft_cap).tanh()


def _context(cache: Tensor, table: Tensor, tokens: int) -> Tensor:
    """The first `tokens` slots of a block table: [tokens, kv_heads, d]."""
    return cache.index_select(0, table).flatten(0, 1)[:tokens]


def _decodes(group: Sequence[Queries], tables: Tensor, block_size: int, dtype: torch.dtype, rule: Rule) -> Decodes:
    device = tables.device
    width = max(s.blocks(block_size) for s in group)
    numbers = [[s.line, s.context, rule.first(s.start), s.row] for s in group]
    lines, contexts, firsts, rows = torch.tensor(numbers, device=device).unbind(1)
    own = torch.arange(width, device=device) * block_size < contexts[:, None]
    padded = tables[lines, :width]
    padded = padded.where(own, padded[:, :1])
    positions = torch.arange(width * block_size, device=device)
    unseen = (positions >= contexts[:, None]) | (positions < firsts[:, None])
    mask = torch.zeros(unseen.shape, dtype=dtype, device=device).masked_fill_(unseen, float("-inf"))
    return Decodes(rows, padded, mask[:, None, None, :])


def _prefill(s: Queries, tables: Tensor, block_size: int, dtype: torch.dtype, rule: Rule) -> Prefill:
    rows, table = slice(s.row, s.row + s.count), tables[s.line, : s.blocks(block_size)]
    if s.start == 0 and rule.first(s.count - 1) == 0:
        return Prefill(rows, table, s.context, None)
    shape, device = (s.count, s.context), tables.device
    mask = torch.full(shape, float("-inf"), dtype=dtype, device=device).triu_(s.start + 1)
    if rule.window is not None:
        mask += torch.full(shape, float("-inf"), dtype=dtype, device=device).tril_(s.start - rule.window)
    return Prefill(rows, table, s.context, mask)
