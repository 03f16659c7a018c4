"""How long each operation takes at the shapes of an 8-billion-parameter Llama, and what share of the device that is.

Shares are of peaks measured here: a large copy, and a large bfloat16 product of cuBLAS. Bytes and operations are what
the operation must move and do, not what a kernel happens to; times are medians with a cold second-level cache.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from .dispatch import triton
from .draw import draw
from .linear import Weight, linear
from .paged_attention import Queries, paged_attention, plan_attention
from .quantize import quantize_int4, quantize_int8
from .rms_norm import add_rms_norm
from .rope import rope_tables
from .rope_store_kv import rope_store_kv
from .silu_mul import silu_mul

HIDDEN, INNER, HEADS, KV_HEADS, DIM, VOCAB = 4096, 14336, 32, 8, 128, 128_256
BLOCK = 16  # tokens
BF16 = torch.bfloat16


@dataclass(frozen=True, slots=True)
class Peaks:
    bandwidth: float  # bytes per second, read and written
    operations: float  # per second


@dataclass(frozen=True, slots=True)
class Work:
    name: str
    run: Callable[[], object]
    moved: float  # bytes
    operations: float
    beside: Callable[[], object] | None = None  # the same by torch, where it has one call for it


@dataclass(frozen=True, slots=True)
class Speed:
    name: str
    seconds: float
    bandwidth_share: float
    operations_share: float
    torch_seconds: float | None


def measure_peaks() -> Peaks:
    source = torch.empty(2**30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    a, b = (torch.randn(8192, 8192, dtype=BF16, device="cuda") for _ in range(2))
    copied = 2 * source.numel() / seconds(lambda: target.copy_(source))
    return Peaks(copied, 2 * 8192**3 / seconds(lambda: a @ b))


def seconds(run: Callable[[], object]) -> float:
    """The median of as many runs as fit 50 ms, after 10 ms of others."""
    return float(triton.testing.do_bench(run, warmup=10, rep=50, return_mode="median")) / 1000


def speeds(peaks: Peaks, *, quick: bool) -> Iterator[Speed]:
    torch.manual_seed(0)
    with torch.device("cuda"):
        for work in _works(quick):
            took = seconds(work.run)
            yield Speed(
                work.name,
                took,
                work.moved / took / peaks.bandwidth,
                work.operations / took / peaks.operations,
                seconds(work.beside) if work.beside else None,
            )


def _works(quick: bool) -> Iterator[Work]:
    rows = (1, 64, 2048) if quick else (1, 8, 32, 64, 128, 512, 2048, 8192)
    for n in rows:
        yield _norm(n)
        yield _gate(n)
        yield _rope(n)
    for n in rows:
        yield from _products(n, quick)
    for n in (1, 64) if quick else (1, 8, 64, 256):
        for context in (1024, 8192) if quick else (256, 1024, 8192, 32_768):
            if n * context <= 2**21:
                yield _attention(f"attention {n} decodes at {context}", [(context - 1, 1)] * n)
    yield _attention("attention of a prompt of 4096", [(0, 4096)])
    yield _attention("attention of a chunk of 512 after 7680", [(7680, 512)])
    yield _attention("attention of 32 decodes beside a chunk of 1024", [(0, 1024), *[(2047, 1)] * 32])
    for n in (1, 64):
        for temperature in (0.0, 1.0):
            yield _draw(n, temperature)


def _norm(n: int) -> Work:
    x, residual, w = (
        torch.randn(n, HIDDEN, dtype=BF16),
        torch.randn(n, HIDDEN, dtype=BF16),
        torch.ones(HIDDEN, dtype=BF16),
    )
    return Work(f"add_rms_norm {n} rows", lambda: add_rms_norm(x, residual, w, 1e-5), 8 * x.numel(), 5 * x.numel())


def _gate(n: int) -> Work:
    x = torch.randn(n, 2 * INNER, dtype=BF16)
    return Work(f"silu_mul {n} rows", lambda: silu_mul(x), 3 * x.numel(), 3 * x.numel())


def _rope(n: int) -> Work:
    qkv = torch.randn(n, (HEADS + 2 * KV_HEADS) * DIM, dtype=BF16)
    turns, slots = rope_tables(torch.arange(n), DIM, 5e5, BF16), torch.randperm(n)
    k, v = torch.empty(2, -(-n // BLOCK), BLOCK, KV_HEADS, DIM, dtype=BF16)
    return Work(
        f"rope_store_kv {n} rows", lambda: rope_store_kv(qkv, turns, slots, k, v), 4 * qkv.numel(), 3 * qkv.numel()
    )


def _products(n: int, quick: bool) -> Iterator[Work]:
    shapes = {
        "qkv": (6144, HIDDEN),
        "gate and up": (2 * INNER, HIDDEN),
        "down": (HIDDEN, INNER),
        "head": (VOCAB, HIDDEN),
    }
    for name, (out, width) in shapes.items():
        if name == "head" and n > 512:
            continue
        w = torch.randn(out, width, dtype=BF16) / width**0.5
        yield _product(f"linear {n} rows, {name}", n, w, w, 2.0)
        if not quick or name == "down":
            yield _product(f"linear {n} rows, {name}, 8 bits", n, w, quantize_int8(w), 1.0)
            yield _product(f"linear {n} rows, {name}, 4 bits", n, w, quantize_int4(w), 0.5 + 4 / 128)


def _product(name: str, n: int, plain: Tensor, w: Weight, size: float) -> Work:
    """Args: size: Bytes of one weight."""
    out, width = plain.shape
    x = torch.randn(n, width, dtype=BF16)
    moved = size * out * width + 2 * n * (out + width)
    return Work(name, lambda: linear(x, w), moved, 2 * n * out * width, lambda: F.linear(x, plain))


def _attention(name: str, chunks: list[tuple[int, int]]) -> Work:
    needed = [-(-(start + count) // BLOCK) for start, count in chunks]
    tables = torch.zeros(len(chunks), max(needed), dtype=torch.int64)
    blocks, taken, row, sequences = torch.randperm(sum(needed)), 0, 0, []
    for line, ((start, count), n) in enumerate(zip(chunks, needed, strict=True)):
        tables[line, :n] = blocks[taken : taken + n]
        sequences.append(Queries(row, start, count, line))
        taken, row = taken + n, row + count
    k, v = torch.randn(2, sum(needed), BLOCK, KV_HEADS, DIM, dtype=BF16)
    q = torch.randn(row, HEADS, DIM, dtype=BF16)
    plan = plan_attention(sequences, tables, BLOCK, BF16)
    read = sum(s.context for s in sequences) * 2 * KV_HEADS * DIM * 2
    pairs = sum(s.count * (2 * s.start + s.count + 1) // 2 for s in sequences)
    return Work(name, lambda: paged_attention(q, k, v, plan), read + 4 * q.numel(), 4 * pairs * HEADS * DIM)


def _draw(n: int, temperature: float) -> Work:
    logits, uniforms = torch.randn(n, VOCAB), torch.rand(n, dtype=torch.float64)
    temperatures = torch.full((n,), temperature)
    passes = 2 if temperature else 1
    name = f"draw {n} rows at temperature {temperature:g}"
    return Work(name, lambda: draw(logits, temperatures, uniforms), 4 * passes * logits.numel(), 8 * logits.numel())
