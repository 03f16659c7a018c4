# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Logits to token ids, for rows that nothing is cut from: the likeliest one, or a draw at a temperature.

    t = 0:   the lowest id of the highest logit
    t > 0:   the first id, in vocabulary order, whose cumulative weight exceeds u times the sum of all
             with the weights  w = round(2^b exp((x - max x) / t)),  2^b times the vocabulary being below 2^53

Weights are whole numbers, so their sums are exact in any order: a row's token depends on nothing but its logits, t and
u. The definition in full, with cuts and penalties and where u comes from, is `run/sample.py` of the engine; `draw_ref`
is that of plain rows, in float64 and without rounding. Near a boundary the two may differ by a neighbour.

Three kernels, each with a program per row and span of 1,024 ids or per row: maxima of spans; sums of spans; the span
that the target falls into, and the place in it. Logits are read twice, in full, and the vocabulary is never sorted.
"""

import torch
from torch import Tensor

from .checks import want_dense, want_dtype, want_shape
from .dispatch import on_triton, tl, triton

SPAN = 1024  # ids whose weights are summed together


def unit(vocab: int) -> float:
    """The likeliest token's weight: the largest power of 2 with which a row's weights sum to less than 2**53."""
    return 2.0 ** (53 - vocab.bit_length())


def draw_ref(logits: Tensor, temperatures: Tensor, uniforms: Tensor) -> Tensor:
    """Shapes as in `draw`."""
    x = logits.double()
    greedy = torch.stack([row.eq(row.max()).int().argmax() for row in x])
    weights = ((x - x.amax(-1, keepdim=True)) / temperatures[:, None]).exp()
    cumulative = weights.cumsum(-1)
    drawn = torch.searchsorted(cumulative, cumulative[:, -1:] * uniforms[:, None], right=True).squeeze(1)
    tokens = torch.where(temperatures > 0, drawn, greedy)
    return torch.where(x.amax(-1).isfinite(), tokens, -1)


@triton.jit
def peaks_kernel(logits_ptr, peaks_ptr, stride, vocab, spans, SPAN: tl.constexpr):
    """Of each span the maximum, NaN where there is one."""
    row, span = tl.program_id(0).to(tl.int64), tl.program_id(1)
    token = span * SPAN + tl.arange(0, SPAN)
    x = tl.load(logits_ptr + row * stride + token, mask=token < vocab, other=float("-inf"))
    broken = tl.max((x != x).to(tl.int32), 0)
    peak = tl.max(tl.where(x != x, float("-inf"), x), 0)
    tl.store(peaks_ptr + row * spans + span, tl.where(broken > 0, float("nan"), peak))


@triton.jit
def _peak(peaks_ptr, row, spans, SPANS: tl.constexpr):
    """A row's maximum, the lowest span that has it, and whether it is a number; the maximum is 0 where it is none."""
    span = tl.arange(0, SPANS)
    peaks = tl.load(peaks_ptr + row * spans + span, mask=span < spans, other=float("-inf"))
    broken = tl.max((peaks != peaks).to(tl.int32), 0)
    peaks = tl.where(peaks != peaks, float("-inf"), peaks)
    peak = tl.max(peaks, 0)
    finite = (broken == 0) & (peak > float("-inf")) & (peak < float("inf"))
    return tl.where(finite, peak, 0.0), tl.argmax(peaks, 0), finite


@triton.jit
def _weights(logits_ptr, peak, temperature, token, vocab, unit):
    """Whole numbers: rounded to nearest, ties to even."""
    x = tl.load(logits_ptr + token, mask=token < vocab, other=float("-inf"))
    exact = tl.exp((x - peak) / temperature) * unit
    down = tl.floor(exact)
    rest = exact - down
    half = down * 0.5
    odd = half != tl.floor(half)
    return (down + ((rest > 0.5) | ((rest == 0.5) & odd)).to(tl.float32)).to(tl.int64)


@triton.jit
def sums_kernel(
    logits_ptr, peaks_ptr, temperatures_ptr, sums_ptr, stride, vocab, spans, unit, SPAN: tl.constexpr,
    SPANS: tl.constexpr,
):  # fmt: skip
    row, span = tl.program_id(0).to(tl.int64), tl.program_id(1)
    temperature = tl.load(temperatures_ptr + row)
    peak, _, finite = _peak(peaks_ptr, row, spans, SPANS)
    if finite & (temperature > 0):
        token = span * SPAN + tl.arange(0, SPAN)
        weights = _weights(logits_ptr + row * stride, peak, temperature, token, vocab, unit)
        tl.store(sums_ptr + row * spans + span, tl.sum(weights, 0))


@triton.jit
def choose_kernel(
    logits_ptr, peaks_ptr, temperatures_ptr, uniforms_ptr, sums_ptr, tokens_ptr, stride, vocab, spans, unit,
    SPAN: tl.constexpr, SPANS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    temperature = tl.load(temperatures_ptr + row)
    peak, span, finite = _peak(peaks_ptr, row, spans, SPANS)
    place = tl.arange(0, SPAN)
    chosen = tl.full([], -1, tl.int64)
    if finite & (temperature > 0):
        every = tl.arange(0, SPANS)
        sums = tl.load(sums_ptr + row * spans + every, mask=every < spans, other=0)
        cumulative = tl.cumsum(sums, 0)
        whole = tl.sum(sums, 0).to(tl.float64)
        target = tl.floor(whole * tl.load(uniforms_ptr + row)).to(tl.int64)  # below the sum, for u is below 1
        span = tl.sum((cumulative <= target).to(tl.int32), 0)
        before = tl.sum(tl.where(every < span, sums, 0), 0)
        weights = _weights(logits_ptr + row * stride, peak, temperature, span * SPAN + place, vocab, unit)
        inside = tl.sum((tl.cumsum(weights, 0) <= target - before).to(tl.int32), 0)
        chosen = (span * SPAN + inside).to(tl.int64)
    elif finite:
        token = span * SPAN + place
        x = tl.load(logits_ptr + row * stride + token, mask=token < vocab, other=float("-inf"))
        chosen = (span * SPAN + tl.argmax(x, 0)).to(tl.int64)
    tl.store(tokens_ptr + row, chosen)


def draw(logits: Tensor, temperatures: Tensor, uniforms: Tensor) -> Tensor:
    """One token id per row; nothing is read back from the device.

    Args:
        logits: [s, vocab] float32; rows may be strided; not changed.
        temperatures: [s] float32; 0 is greedy, else 1e-30 at least.
        uniforms: [s] float64 in [0, 1); not looked at where greedy.

    Returns:
        [s] int64; -1 for a row that has no finite maximum: a NaN, or nothing above -inf.

    Raises:
        ValueError: A shape, dtype or stride is not as above.

    Cost: reads 2 s vocab elements, bound by memory bandwidth.
    """
    want_shape("logits", logits, None, None)
    want_dtype("logits", logits, torch.float32)
    want_dense("logits", logits, 1)
    for name, column, dtype in (("temperatures", temperatures, torch.float32), ("uniforms", uniforms, torch.float64)):
        want_shape(name, column, logits.shape[0])
        want_dtype(name, column, dtype)
        want_dense(name, column, 1)
    if not on_triton(logits):
        return draw_ref(logits, temperatures, uniforms)
    return _launch(logits, temperatures, uniforms)


def _launch(logits: Tensor, temperatures: Tensor, uniforms: Tensor) -> Tensor:
    s, vocab = logits.shape
    spans = triton.cdiv(vocab, SPAN)
    tokens = torch.empty(s, dtype=torch.int64, device=logits.device)
    peaks = torch.empty(s, spans, dtype=torch.float32, device=logits.device)
    sums = torch.empty(s, spans, dtype=torch.int64, device=logits.device)
    sizes = {"SPAN": SPAN, "SPANS": triton.next_power_of_2(spans)}
    if s > 0:
        shape = logits.stride(0), vocab, spans
        peaks_kernel[(s, spans)](logits, peaks, *shape, SPAN=SPAN)
        sums_kernel[(s, spans)](logits, peaks, temperatures, sums, *shape, unit(vocab), **sizes)
        choose_kernel[(s,)](logits, peaks, temperatures, uniforms, sums, tokens, *shape, unit(vocab), **sizes)
    return tokens
