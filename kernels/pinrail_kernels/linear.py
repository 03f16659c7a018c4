# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""A layer's matrix product, with the matrix in its own dtype or in 8 or 4 bits:  y = x W^T

`linear_ref` is the definition. Sums are float32, over the columns from first to last, in steps of 64, by one program:
no other order occurs, whatever the number of rows. There are two sizes of tile, for few rows and for many; both take
the same steps and both are of the kind that Hopper multiplies 64 rows at a time, so a row should have the same bits in
either. `bench` looks whether that is so on a device; in the interpreter it is.

8-bit weights are whole numbers, exact in any dtype here: their products are summed, then scaled. 4-bit ones are scaled
in registers and rounded to the dtype of x.

Source of the formats: `quantize`.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .checks import FLOATS, want_dense, want_dtype, want_shape
from .dispatch import on_triton, tl, triton
from .quantize import Int4Weight, Int8Weight, dequantize

Weight = Tensor | Int8Weight | Int4Weight

_FEW = 64  # rows: a decode's, bound by the reading of weights, so that more programs are better than larger ones
_STEP = 64  # columns


def linear_ref(x: Tensor, w: Weight) -> Tensor:
    """The definition, in float32. Shapes as in `linear`."""
    matrix = w.float() if isinstance(w, Tensor) else dequantize(w)
    return (x.float() @ matrix.T).to(x.dtype)


@triton.jit
def linear_kernel(
    x_ptr, w_ptr, scales_ptr, y_ptr, n, out, width, x_stride, BITS: tl.constexpr, GROUP: tl.constexpr,
    ROWS: tl.constexpr, COLS: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    # Neighbouring programs have different rows and the same part of W, which the cache then holds.
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    col = tl.program_id(1) * COLS + tl.arange(0, COLS)
    x_row = x_ptr + row.to(tl.int64)[:, None] * x_stride
    has_row, has_col = (row < n)[:, None], (col < out)[None, :]
    w_col = col.to(tl.int64)[None, :]  # out * width may pass 2**31
    acc = tl.zeros([ROWS, COLS], tl.float32)
    for at in range(0, width, STEP):
        if BITS == 4:
            byte = at // 2 + tl.arange(0, STEP // 2)
            low = byte // 16 * 32 + byte % 16  # the column in a byte's low half; the other is 16 further
            inside = has_col & (low < width)[:, None]
            packed = tl.load(w_ptr + w_col * (width // 2) + byte[:, None], mask=inside, other=0)
            steps = scales_ptr + w_col * (2 * width // GROUP) + (low // GROUP)[:, None]
            scale = tl.load(steps, mask=inside, other=0.0)
            least = tl.load(steps + width // GROUP, mask=inside, other=0.0)
            x = tl.load(x_row + low[None, :], mask=has_row & (low < width)[None, :], other=0.0)
            w = ((packed & 15).to(tl.float32) * scale + least).to(x.dtype)
            acc += tl.dot(x, w, input_precision="ieee")
            x = tl.load(x_row + low[None, :] + 16, mask=has_row & (low < width)[None, :], other=0.0)
            w = ((packed >> 4).to(tl.float32) * scale + least).to(x.dtype)
            acc += tl.dot(x, w, input_precision="ieee")
        else:
            k = at + tl.arange(0, STEP)
            x = tl.load(x_row + k[None, :], mask=has_row & (k < width)[None, :], other=0.0)
            w = tl.load(w_ptr + w_col * width + k[:, None], mask=has_col & (k < width)[:, None], other=0)
            acc += tl.dot(x, w.to(x.dtype), input_precision="ieee")
    if BITS == 8:
        acc *= tl.load(scales_ptr + col, mask=col < out, other=0.0)[None, :]
    y = y_ptr + row.to(tl.int64)[:, None] * out + col[None, :]
    tl.store(y, acc.to(y_ptr.dtype.element_ty), mask=has_row & has_col)


def linear(x: Tensor, w: Weight) -> Tensor:
    """Multiply each row of `x` with every row of W.

    Args:
        x: [n, in], float32, float16 or bfloat16; rows may be strided.
        w: [out, in], contiguous, dtype of `x`; or 8 or 4 bits of `quantize`.

    Returns:
        [n, out], contiguous, dtype of `x`.

    Raises:
        ValueError: A shape, dtype or stride is not as above.

    Cost: 2 n in out operations; reads W once for every 64 rows, or for every 128 where there are more than 64.
    """
    _check(x, w)
    if not on_triton(x):
        return F.linear(x, w) if isinstance(w, Tensor) else linear_ref(x, w)
    (n, width), out = x.shape, w.shape[0]
    y = torch.empty(n, out, dtype=x.dtype, device=x.device)
    if n > 0:
        sizes = tile_sizes(n, x.dtype)
        grid = triton.cdiv(n, sizes["ROWS"]), triton.cdiv(out, sizes["COLS"])
        linear_kernel[grid](x, *_parts(w), y, n, out, width, x.stride(0), **_format(w), **sizes)
    return y


def tile_sizes(n: int, dtype: torch.dtype) -> dict[str, Any]:
    """What the kernel is compiled for, by the number of rows; float32 is not for tensor cores: small tiles."""
    if n <= _FEW or dtype == torch.float32:
        return {"ROWS": 64, "COLS": 32, "STEP": _STEP, "num_warps": 4, "num_stages": 4}
    return {"ROWS": 128, "COLS": 128, "STEP": _STEP, "num_warps": 8, "num_stages": 3}


def _parts(w: Weight) -> tuple[Tensor, Tensor]:
    """Numbers, and scales or steps; a plain matrix has none, so it stands for them, unread."""
    if isinstance(w, Tensor):
        return w, w
    return (w.values, w.scales) if isinstance(w, Int8Weight) else (w.packed, w.steps)


def _format(w: Weight) -> dict[str, int]:
    if isinstance(w, Int4Weight):
        return {"BITS": 4, "GROUP": w.group}
    return {"BITS": 8 if isinstance(w, Int8Weight) else 16, "GROUP": 1}


def _check(x: Tensor, w: Weight) -> None:
    want_shape("x", x, None, None)
    want_dtype("x", x, *FLOATS)
    want_dense("x", x, 1)
    if len(w.shape) != 2 or w.shape[1] != x.shape[1]:
        raise ValueError(f"w must be [any, {x.shape[1]}] to match x {list(x.shape)}, got {list(w.shape)}")
    if isinstance(w, Tensor):
        want_dtype("w", w, x.dtype)
    for name, part in zip(("w", "scales"), _parts(w), strict=True):
        want_dense(name, part, part.dim())
