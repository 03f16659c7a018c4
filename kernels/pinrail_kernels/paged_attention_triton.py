# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""The kernels of paged attention: blocks are read where they lie, keys once for all query heads that share them.

    prefill   a program per 64 rows x heads of one chunk and KV head; keys from the first to the last that a row sees
    decode    a program per single row, KV head and some of its splits of 256 tokens; a second kernel merges the splits

Softmax is taken online, tile by tile from low positions to high ones, in float32. Where tiles and splits begin depends
on positions alone, and a tile that a row does not see changes none of its bits: so what else is in the batch, or how
long the chunk is, cannot change a row's result. (A row that comes alone takes the other kernel, whose products have
another shape: it agrees within tolerance.) Nothing behind a context is read, so it may hold anything, NaN too.

Sources: Dao 2023, https://arxiv.org/abs/2307.08691, algorithm 1 (online softmax by tiles); Dao et al. 2023,
https://crfm.stanford.edu/2023/10/12/flashdecoding.html (splits and their merge, here of constant length).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .dispatch import tl, triton

if TYPE_CHECKING:
    from .paged_attention import Queries, Rule

SPLIT = 256  # tokens of a decode's split: constant, or a row's sums would depend on what is beside it
_LOG2E = 1.4426950408889634
_NO_WINDOW = 2**31 - 1  # tokens
_PROGRAMS = 1024  # of a decode, about: a few for each multiprocessor of a large device


@dataclass(frozen=True, slots=True)
class TritonPlan:
    """A batch, as the kernels read it; built once a step."""

    tables: Tensor  # [lines, m] int64: block numbers
    decodes: Tensor  # [b, 3] int32: row of q, tokens that it sees, line
    prefills: Tensor  # [p, 4] int32: first row of q, its position, rows, line
    longest: int  # tokens that a decode sees, at most
    widest: int  # rows of a prefill, at most
    rule: "Rule"


def plan_triton(sequences: "Sequence[Queries]", tables: Tensor, rule: "Rule") -> TritonPlan:
    """Single rows are decodes, longer runs prefills; one copy to the device for each, which is not waited for."""
    decodes = [(s.row, s.context, s.line) for s in sequences if s.count == 1]
    prefills = [(s.row, s.start, s.count, s.line) for s in sequences if s.count > 1]
    return TritonPlan(
        tables,
        _staged(decodes, 3, tables.device),
        _staged(prefills, 4, tables.device),
        longest=max((context for _, context, _ in decodes), default=0),
        widest=max((count for _, _, count, _ in prefills), default=0),
        rule=rule,
    )


def plan_decodes(lines: Tensor, contexts: Tensor, tables: Tensor, longest: int, rule: "Rule") -> TritonPlan:
    """The same for a batch of decodes alone, of numbers on the device, so that a graph can hold it.

    Args:
        lines: [b] int64, of `tables`; row i of q belongs to the i-th.
        contexts: [b] int64, tokens, `longest` at most.
    """
    rows = torch.arange(lines.shape[0], device=lines.device)
    decodes = torch.stack((rows, contexts, lines), 1).int()
    return TritonPlan(tables, decodes, decodes.new_empty(0, 4), longest, 0, rule)


@triton.jit
def _attend_tile(
    q, best, total, acc, k_ptr, v_ptr, table_ptr, token, context, sees, slot_stride, first_dim, d, inner, outer,
    BLOCK: tl.constexpr, DIM: tl.constexpr, CAPPED: tl.constexpr,
):  # fmt: skip
    """Take one tile of keys into a running softmax.

    q [m, DIM]; best, total [m] float32: the highest score, in base 2, and the weights' sum; acc [m, DIM] float32: the
    weighted values; token [n]: positions of the tile; sees [m, n]. Scores are inner * q k, or outer * tanh of that.
    """
    held = token < context
    block = tl.load(table_ptr + token // BLOCK, mask=held, other=0)
    dim = tl.arange(0, DIM)
    place = (block * BLOCK + token % BLOCK)[:, None] * slot_stride + (first_dim + dim)[None, :]
    inside = held[:, None] & (dim < d)[None, :]
    k = tl.load(k_ptr + place, mask=inside, other=0.0)
    scores = tl.dot(q, tl.trans(k), input_precision="ieee") * inner
    if CAPPED:
        fall = tl.exp2(tl.abs(scores) * -2.8853900817779268)  # exp(-2 |x|), which cannot overflow
        tanh = (1.0 - fall) / (1.0 + fall)
        scores = outer * tl.where(scores < 0.0, -tanh, tanh)
    scores = tl.where(sees, scores, float("-inf"))
    higher = tl.maximum(best, tl.max(scores, 1))
    base = tl.where(higher == float("-inf"), 0.0, higher)  # a row that has seen nothing yet: 0 all the way, not NaN
    weights = tl.exp2(scores - base[:, None])
    fade = tl.exp2(best - base)
    v = tl.load(v_ptr + place, mask=inside, other=0.0)
    acc = acc * fade[:, None] + tl.dot(weights.to(v.dtype), v, input_precision="ieee")
    return higher, total * fade + tl.sum(weights, 1), acc


@triton.jit
def prefill_kernel(
    q_ptr, k_ptr, v_ptr, out_ptr, tables_ptr, prefills_ptr, q_stride, tables_stride, slot_stride, d, window,
    inner, outer, GROUP: tl.constexpr, GROUP_PAD: tl.constexpr, BLOCK: tl.constexpr, DIM: tl.constexpr,
    ROWS: tl.constexpr, TOKENS: tl.constexpr, CAPPED: tl.constexpr,
):  # fmt: skip
    kv_head = tl.program_id(1)
    numbers = prefills_ptr + tl.program_id(2) * 4
    row, start, count, line = tl.load(numbers), tl.load(numbers + 1), tl.load(numbers + 2), tl.load(numbers + 3)
    first = tl.program_id(0) * ROWS  # row of the chunk
    if first < count:
        i = tl.arange(0, ROWS * GROUP_PAD)
        own, head = first + i // GROUP_PAD, i % GROUP_PAD
        dim = tl.arange(0, DIM)
        there = (own < count) & (head < GROUP)
        place = (row + own).to(tl.int64)[:, None] * q_stride + ((kv_head * GROUP + head) * d)[:, None] + dim[None, :]
        inside = there[:, None] & (dim < d)[None, :]
        q = tl.load(q_ptr + place, mask=inside, other=0.0)
        position = start + tl.minimum(own, count - 1)  # rows that are none see what the last one does
        context = tl.minimum(start + first + ROWS, start + count)  # what the last row of the tile sees
        lowest = tl.maximum(start + first - (window - 1), 0) // TOKENS * TOKENS
        best = tl.full([ROWS * GROUP_PAD], float("-inf"), tl.float32)
        total = tl.zeros([ROWS * GROUP_PAD], tl.float32)
        acc = tl.zeros([ROWS * GROUP_PAD, DIM], tl.float32)
        for at in range(lowest, context, TOKENS):
            token = at + tl.arange(0, TOKENS)
            sees = (token[None, :] <= position[:, None]) & (token[None, :] > position[:, None] - window)
            best, total, acc = _attend_tile(
                q, best, total, acc, k_ptr, v_ptr, tables_ptr + line * tables_stride, token, context, sees,
                slot_stride, kv_head * d, d, inner, outer, BLOCK, DIM, CAPPED,
            )  # fmt: skip
        tl.store(out_ptr + place, (acc / total[:, None]).to(q.dtype), mask=inside)


@triton.jit
def decode_kernel(
    q_ptr, k_ptr, v_ptr, part_ptr, peak_ptr, tables_ptr, decodes_ptr, q_stride, tables_stride, slot_stride, d, window,
    splits, inner, outer, GROUP: tl.constexpr, GROUP_PAD: tl.constexpr, BLOCK: tl.constexpr, DIM: tl.constexpr,
    SPLIT: tl.constexpr, TOKENS: tl.constexpr, CAPPED: tl.constexpr,
):  # fmt: skip
    i, kv_head = tl.program_id(0), tl.program_id(1)
    numbers = decodes_ptr + i * 3
    row, context, line = tl.load(numbers), tl.load(numbers + 1), tl.load(numbers + 2)
    head, dim = tl.arange(0, GROUP_PAD), tl.arange(0, DIM)
    inside = (head < GROUP)[:, None] & (dim < d)[None, :]
    place = ((kv_head * GROUP + head) * d)[:, None] + dim[None, :]
    q = tl.load(q_ptr + row.to(tl.int64) * q_stride + place, mask=inside, other=0.0)
    lowest = tl.maximum(context - window, 0)  # position of the first key that is seen
    for split in range(lowest // SPLIT + tl.program_id(2), tl.cdiv(context, SPLIT), tl.num_programs(2)):
        best = tl.full([GROUP_PAD], float("-inf"), tl.float32)
        total = tl.zeros([GROUP_PAD], tl.float32)
        acc = tl.zeros([GROUP_PAD, DIM], tl.float32)
        for at in range(split * SPLIT, tl.minimum(split * SPLIT + SPLIT, context), TOKENS):
            token = at + tl.arange(0, TOKENS)
            sees = ((token >= lowest) & (token < context))[None, :]
            best, total, acc = _attend_tile(
                q, best, total, acc, k_ptr, v_ptr, tables_ptr + line * tables_stride, token, context, sees,
                slot_stride, kv_head * d, d, inner, outer, BLOCK, DIM, CAPPED,
            )  # fmt: skip
        part = (i.to(tl.int64) * tl.num_programs(1) + kv_head) * GROUP * splits + head * splits + split
        tl.store(part_ptr + part[:, None] * d + dim[None, :], acc, mask=inside)
        tl.store(peak_ptr + part * 2, best, mask=head < GROUP)
        tl.store(peak_ptr + part * 2 + 1, total, mask=head < GROUP)


@triton.jit
def merge_kernel(
    part_ptr, peak_ptr, out_ptr, decodes_ptr, out_stride, d, window, splits, SPLIT: tl.constexpr, DIM: tl.constexpr
):
    # A program per row and query head: the splits one after another, in the order of positions.
    i, head = tl.program_id(0), tl.program_id(1)
    row, context = tl.load(decodes_ptr + i * 3), tl.load(decodes_ptr + i * 3 + 1)
    first = (i.to(tl.int64) * tl.num_programs(1) + head) * splits
    dim = tl.arange(0, DIM)
    acc = tl.zeros([DIM], tl.float32)
    best = tl.full([], float("-inf"), tl.float32)
    total = tl.full([], 0.0, tl.float32)
    for split in range(tl.maximum(context - window, 0) // SPLIT, tl.cdiv(context, SPLIT)):
        peak = tl.load(peak_ptr + (first + split) * 2)
        higher = tl.maximum(best, peak)
        fade, share = tl.exp2(best - higher), tl.exp2(peak - higher)
        part = tl.load(part_ptr + (first + split) * d + dim, mask=dim < d, other=0.0)
        acc = acc * fade + part * share
        total = total * fade + tl.load(peak_ptr + (first + split) * 2 + 1) * share
        best = higher
    out = (acc / total).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + row.to(tl.int64) * out_stride + head * d + dim, out, mask=dim < d)


def attend(q: Tensor, k_cache: Tensor, v_cache: Tensor, plan: TritonPlan) -> Tensor:
    """`paged_attention`, whose arguments have been checked."""
    out = torch.empty_like(q)
    if plan.prefills.shape[0]:
        _attend_prefills(q, k_cache, v_cache, plan, out)
    if plan.decodes.shape[0]:
        _attend_decodes(q, k_cache, v_cache, plan, out)
    return out


def _attend_prefills(q: Tensor, k_cache: Tensor, v_cache: Tensor, plan: TritonPlan, out: Tensor) -> None:
    sizes = prefill_sizes(q, k_cache)
    grid = (triton.cdiv(plan.widest, sizes["ROWS"]), k_cache.shape[2], plan.prefills.shape[0])
    prefill_kernel[grid](
        q, k_cache, v_cache, out, plan.tables, plan.prefills, *_strides(q, k_cache, plan), _window(plan),
        *factors(plan.rule, q.shape[2]), CAPPED=plan.rule.soft_cap is not None, **sizes,
    )  # fmt: skip


def _attend_decodes(q: Tensor, k_cache: Tensor, v_cache: Tensor, plan: TritonPlan, out: Tensor) -> None:
    (_, heads, d), kv_heads, b = q.shape, k_cache.shape[2], plan.decodes.shape[0]
    splits = triton.cdiv(plan.longest, SPLIT)
    parts = torch.empty(b, heads, splits, d, dtype=torch.float32, device=q.device)
    peaks = torch.empty(b, heads, splits, 2, dtype=torch.float32, device=q.device)
    sizes = decode_sizes(q, k_cache)
    grid = (b, kv_heads, min(splits, triton.cdiv(_PROGRAMS, b * kv_heads)))
    decode_kernel[grid](
        q, k_cache, v_cache, parts, peaks, plan.tables, plan.decodes, *_strides(q, k_cache, plan), _window(plan),
        splits, *factors(plan.rule, d), CAPPED=plan.rule.soft_cap is not None, **sizes,
    )  # fmt: skip
    merge_kernel[(b, heads)](
        parts, peaks, out, plan.decodes, out.stride(0), d, _window(plan), splits, SPLIT=SPLIT, DIM=sizes["DIM"]
    )


def prefill_sizes(q: Tensor, k_cache: Tensor) -> dict[str, Any]:
    """What the kernel is compiled for: 64 rows of a tile, or those of one row's group where they are more."""
    sizes = _sizes(q, k_cache)
    return sizes | {"ROWS": max(1, 64 // sizes["GROUP_PAD"])}


def decode_sizes(q: Tensor, k_cache: Tensor) -> dict[str, Any]:
    """What the kernel is compiled for: the heads of a group fill the 16 rows that a tensor core multiplies at least."""
    sizes = _sizes(q, k_cache)
    return sizes | {"GROUP_PAD": max(16, sizes["GROUP_PAD"]), "SPLIT": SPLIT}


def _sizes(q: Tensor, k_cache: Tensor) -> dict[str, Any]:
    group = q.shape[1] // k_cache.shape[2]
    wide = q.shape[2] * q.element_size() > 256  # bytes of a head: shared memory holds fewer of them
    return {
        "GROUP": group,
        "GROUP_PAD": triton.next_power_of_2(group),
        "BLOCK": k_cache.shape[1],
        "DIM": max(16, triton.next_power_of_2(q.shape[2])),
        "TOKENS": 32 if wide else 64,
        "num_stages": 2,
    }


def factors(rule: "Rule", d: int) -> tuple[float, float]:
    """`inner` and `outer` of the kernels, such that scores come out in base 2."""
    scale = rule.scale_for(d)
    if rule.soft_cap is None:
        return scale * _LOG2E, 1.0
    return scale / rule.soft_cap, rule.soft_cap * _LOG2E


def _strides(q: Tensor, k_cache: Tensor, plan: TritonPlan) -> tuple[int, int, int, int]:
    """Of a row of q, a line of the tables and a slot of the caches; then d. All in elements."""
    return q.stride(0), plan.tables.stride(0), k_cache.stride(1), q.shape[2]


def _window(plan: TritonPlan) -> int:
    return _NO_WINDOW if plan.rule.window is None else plan.rule.window


def _staged(numbers: Sequence[tuple[int, ...]], width: int, device: torch.device) -> Tensor:
    tensor = torch.tensor(numbers, dtype=torch.int32, device="cpu").view(-1, width)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor
