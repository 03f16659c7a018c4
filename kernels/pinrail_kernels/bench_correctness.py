"""Every operation against its definition over a grid of shapes, and a row's bits alone against its bits in a batch."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .draw import draw, draw_ref
from .linear import Weight, linear, linear_ref
from .paged_attention import CAUSAL, Queries, Rule, paged_attention, paged_attention_ref, plan_attention
from .quantize import quantize_int4, quantize_int8
from .rms_norm import add_rms_norm, add_rms_norm_ref
from .rope import rope_tables
from .rope_store_kv import rope_store_kv, rope_store_kv_ref
from .silu_mul import silu_mul, silu_mul_ref

# Relative to the largest number: float32 differs by the order of sums, the others by roundings to 11 and 8 bits.
TOLERANCES = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
BLOCK = 16  # tokens

Chunks = Sequence[tuple[int, int]]
"""Start and count of each sequence's rows."""


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    error: float  # the largest difference, in parts of the largest number wanted
    tolerance: float  # the same; 0: bit for bit

    @property
    def is_right(self) -> bool:
        return self.error <= self.tolerance  # False for NaN


@dataclass(frozen=True, slots=True)
class Grid:
    """How large the shapes are."""

    place: torch.device
    rows: Sequence[int]
    width: int  # of the residual stream
    chunks: Sequence[Chunks]
    heads: Sequence[tuple[int, int, int]]  # query heads, KV heads, their width
    dtypes: Sequence[torch.dtype]


def checks(place: torch.device, *, small: bool, quick: bool) -> Iterator[Check]:
    """Args: small: For the interpreter, which takes a thousand times as long; quick: bfloat16 alone, fewer heads."""
    torch.manual_seed(0)
    grid = _small(place) if small else _full(place, quick)
    for dtype in grid.dtypes:
        with torch.device(place):
            yield from _row_checks(grid, dtype)
            yield from _attention_checks(grid, dtype)
            yield from _linear_checks(grid, dtype)
    with torch.device(place):
        yield from _draw_checks(grid)


def _small(place: torch.device) -> Grid:
    chunks = [[(0, 1), (300, 1)], [(0, 9), (20, 5), (40, 1)]]
    return Grid(place, [3], 128, chunks, [(6, 2, 80)], [torch.bfloat16])


def _full(place: torch.device, quick: bool) -> Grid:
    chunks = [[(0, 1), (300, 1), (5000, 1)], [(0, 300), (900, 70), (40, 1), (0, 2)]]
    heads = [(32, 8, 128), (9, 3, 64), (8, 1, 256), (32, 32, 80), (14, 2, 64), (40, 8, 96)]
    dtypes = [torch.bfloat16, torch.float16, torch.float32]
    return Grid(place, [1, 64, 1000], 4096, chunks, heads[: 3 if quick else None], dtypes[: 1 if quick else None])


def compare(name: str, seen: Tensor, wanted: Tensor, tolerance: float) -> Check:
    largest = max(float(wanted.float().abs().max()), 1e-30)
    return Check(name, float((seen.float() - wanted.float()).abs().max()) / largest, tolerance)


def identical(name: str, seen: Tensor, wanted: Tensor) -> Check:
    return Check(f"{name}: bits alone and in a batch", float((seen != wanted).sum()), 0.0)


def _row_checks(grid: Grid, dtype: torch.dtype) -> Iterator[Check]:
    tolerance, d = TOLERANCES[dtype], grid.width
    for n in grid.rows:
        name = f"{n} x {d} {dtype}"
        x, residual, w = torch.randn(n, d).to(dtype), torch.randn(n, d).to(dtype), torch.randn(d).to(dtype)
        pairs = zip(add_rms_norm(x, residual, w, 1e-5), add_rms_norm_ref(x, residual, w, 1e-5), strict=True)
        for part, (seen, wanted) in zip(("normed", "sum"), pairs, strict=True):
            yield compare(f"add_rms_norm {part} {name}", seen, wanted, tolerance)
        yield compare(f"silu_mul {name}", silu_mul(x), silu_mul_ref(x), tolerance)
        for heads, kv_heads, dim in grid.heads:
            yield _rope_check(n, (heads, kv_heads, dim), dtype)


def _rope_check(n: int, shape: tuple[int, int, int], dtype: torch.dtype) -> Check:
    heads, kv_heads, d = shape
    qkv = torch.randn(n, (heads + 2 * kv_heads) * d).to(dtype)
    turns = rope_tables(torch.arange(n) * 7, d, 1e4, dtype)
    seen, wanted = (torch.zeros(2, -(-n // BLOCK) + 1, BLOCK, kv_heads, d, dtype=dtype) for _ in range(2))
    slots = torch.randperm(seen.shape[1] * BLOCK)[:n]
    q, q_wanted = rope_store_kv(qkv, turns, slots, *seen), rope_store_kv_ref(qkv, turns, slots, *wanted)
    flat = torch.cat((q.flatten(), seen.flatten())), torch.cat((q_wanted.flatten(), wanted.flatten()))
    return compare(f"rope_store_kv {n} rows, heads {shape} {dtype}", *flat, TOLERANCES[dtype])


def _attention_checks(grid: Grid, dtype: torch.dtype) -> Iterator[Check]:
    for heads in grid.heads:
        for chunks in grid.chunks:
            for rule in (CAUSAL, Rule(window=100), Rule(soft_cap=5.0)):
                yield from _attention_check(chunks, heads, rule, dtype)


def _attention_check(chunks: Chunks, heads: tuple[int, int, int], rule: Rule, dtype: torch.dtype) -> Iterator[Check]:
    name = f"paged_attention {list(chunks)}, heads {heads}, window {rule.window}, cap {rule.soft_cap} {dtype}"
    sequences, tables = _scattered(chunks)
    k, v = (torch.randn(int(tables.max()) + 1, BLOCK, heads[1], heads[2]).to(dtype) for _ in range(2))
    q = torch.randn(sum(count for _, count in chunks), heads[0], heads[2]).to(dtype)
    seen = paged_attention(q, k, v, plan_attention(sequences, tables, BLOCK, dtype, rule))
    yield compare(name, seen, paged_attention_ref(q, (k, v), sequences, tables, rule), TOLERANCES[dtype])
    alone = []
    for s in sequences:
        rows = q[s.row : s.row + s.count].contiguous()
        plan = plan_attention([Queries(0, s.start, s.count, s.line)], tables, BLOCK, dtype, rule)
        alone.append(paged_attention(rows, k, v, plan))
    yield identical(name, torch.cat(alone), seen)


def _scattered(chunks: Chunks) -> tuple[list[Queries], Tensor]:
    needed = [-(-(start + count) // BLOCK) for start, count in chunks]
    blocks = torch.randperm(sum(needed))
    tables = torch.zeros(len(chunks), max(needed), dtype=torch.int64)
    sequences, row, taken = [], 0, 0
    for line, ((start, count), n) in enumerate(zip(chunks, needed, strict=True)):
        sequences.append(Queries(row, start, count, line))
        tables[line, :n] = blocks[taken : taken + n]
        row, taken = row + count, taken + n
    return sequences, tables


_FORMATS: dict[str, Callable[[Tensor, torch.dtype], Weight]] = {
    "16 bits or more": lambda w, dtype: w.to(dtype),
    "8 bits": lambda w, _: quantize_int8(w),
    "4 bits": lambda w, _: quantize_int4(w, 128),
}


def _linear_checks(grid: Grid, dtype: torch.dtype) -> Iterator[Check]:
    out, width = 3 * grid.width // 2 + 5, grid.width
    w = torch.randn(out, width) / width**0.5
    for kind, make in _FORMATS.items():
        weight = make(w, dtype)
        for n in (*grid.rows, 70):  # 70: the large tile, whose bits should be those of the small one
            x = torch.randn(n, width).to(dtype)
            name = f"linear {n} rows, {width} -> {out} of {kind} {dtype}"
            seen = linear(x, weight)
            yield compare(name, seen, linear_ref(x, weight), TOLERANCES[dtype])
            yield identical(name, linear(x[n // 2 : n // 2 + 1], weight), seen[n // 2 : n // 2 + 1])


def _draw_checks(grid: Grid) -> Iterator[Check]:
    """A token may be its neighbour's where the random number lies within float32's error of their boundary."""
    vocab = 2_500 if len(grid.rows) == 1 else 151_936
    logits = torch.randn(64 if vocab > 2_500 else 8, vocab) * 2
    uniforms = torch.rand(logits.shape[0], dtype=torch.float64)
    for temperature in (0.0, 0.7, 1.5):
        temperatures = torch.full((logits.shape[0],), temperature)
        wrong = draw(logits, temperatures, uniforms) != draw_ref(logits, temperatures, uniforms)
        yield Check(
            f"draw {list(logits.shape)} at {temperature}", float(wrong.float().mean()), 0.02 if temperature else 0
        )
