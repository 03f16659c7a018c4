# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""RMSNorm over the last dimension, alone or of a sum:

    y = w * (x / sqrt(mean(x^2) + eps))        rms_norm(x)
    s = residual + x,  y = rms_norm(s)         add_rms_norm(x, residual)

The `_ref`s are the definition and the path of torch; the kernel equals them bit for bit where the mean does.

Source: Zhang & Sennrich 2019, https://arxiv.org/abs/1910.07467, equation 4. The order of casts is that of Llama in
transformers: sum and quotient are rounded to the dtype of `x` before they go on. Other models differ in the last bit.
"""

import torch
from torch import Tensor

from .checks import FLOATS, want_dense, want_dtype, want_shape
from .dispatch import on_triton, tl, triton


def rms_norm_ref(x: Tensor, w: Tensor, eps: float) -> Tensor:
    """Shapes as in `rms_norm`. Cost: five passes over [n, d]."""
    xf = x.float()
    return w * (xf * torch.rsqrt(xf.square().mean(-1, keepdim=True) + eps)).to(x.dtype)


def add_rms_norm_ref(x: Tensor, residual: Tensor, w: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Shapes as in `add_rms_norm`."""
    total = residual + x
    return rms_norm_ref(total, w, eps), total


@triton.jit
def rms_norm_kernel(
    x_ptr, residual_ptr, w_ptr, y_ptr, sum_ptr, x_stride, residual_stride, d, eps,
    ADD: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    # One program a row: read once, reduced in registers, written once.
    row = tl.program_id(0).to(tl.int64)  # n * d may pass 2**31
    col = tl.arange(0, BLOCK)
    inside = col < d  # BLOCK is d rounded up to a power of two; what is masked adds 0 to the sum
    x = tl.load(x_ptr + row * x_stride + col, mask=inside, other=0.0)
    if ADD:
        residual = tl.load(residual_ptr + row * residual_stride + col, mask=inside, other=0.0)
        x = (residual.to(tl.float32) + x.to(tl.float32)).to(x.dtype)
        tl.store(sum_ptr + row * d + col, x, mask=inside)
    xf = x.to(tl.float32)
    inv_rms = tl.rsqrt(tl.sum(xf * xf, axis=0) / d + eps)
    w = tl.load(w_ptr + col, mask=inside, other=0.0).to(tl.float32)
    quotient = (xf * inv_rms).to(x.dtype).to(tl.float32)
    tl.store(y_ptr + row * d + col, (quotient * w).to(x.dtype), mask=inside)


def rms_norm(x: Tensor, w: Tensor, eps: float) -> Tensor:
    """Normalise each row of `x`.

    Args:
        x: [n, d], float32, float16 or bfloat16; rows may be strided.
        w: [d], dtype of `x`.
        eps: Added to the mean square; no unit.

    Returns:
        [n, d], contiguous, dtype of `x`. Sums are taken in float32 whatever the dtype.

    Raises:
        ValueError: A shape, dtype or stride is not as above.

    Cost: reads and writes n d elements once, bound by memory bandwidth.
    """
    _check(x, w)
    if not on_triton(x):
        return rms_norm_ref(x, w, eps)
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    _launch(x, x, w, eps, y, y)
    return y


def add_rms_norm(x: Tensor, residual: Tensor, w: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Add `x` to the residual stream, and normalise the sum.

    Args:
        x, residual: [n, d] each, and w, eps as in `rms_norm`; neither is changed.

    Returns:
        The normed sum and the sum, [n, d] each, dtype of `x`.

    Raises:
        ValueError: A shape, dtype or stride is not as above.

    Cost: reads and writes 2 n d elements once.
    """
    _check(x, w)
    want_shape("residual", residual, *x.shape)
    want_dtype("residual", residual, x.dtype)
    want_dense("residual", residual, 1)
    if not on_triton(x):
        return add_rms_norm_ref(x, residual, w, eps)
    y, total = (torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(2))
    _launch(x, residual, w, eps, y, total)
    return y, total


def _check(x: Tensor, w: Tensor) -> None:
    want_shape("x", x, None, None)
    want_dtype("x", x, *FLOATS)
    want_dense("x", x, 1)
    want_shape("w", w, x.shape[1])
    want_dtype("w", w, x.dtype)
    want_dense("w", w, 1)


def _launch(x: Tensor, residual: Tensor, w: Tensor, eps: float, y: Tensor, total: Tensor) -> None:
    """`total` is `y` itself where there is nothing to add."""
    n, d = x.shape
    block = triton.next_power_of_2(d)
    warps = min(max(block // 512, 1), 16)
    strides = x.stride(0), residual.stride(0)
    if n > 0:
        rms_norm_kernel[(n,)](
            x, residual, w, y, total, *strides, d, eps, ADD=total is not y, BLOCK=block, num_warps=warps
        )
