# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""The gate of a SwiGLU layer:  y = silu(gate) * up,  silu(x) = x / (1 + exp(-x))

`silu_mul_ref` is the definition and the path of torch.

Source: Shazeer 2020, https://arxiv.org/abs/2002.05202, equation 6 (the product inside FFN_SwiGLU).
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from .checks import FLOATS, want_dense, want_dtype, want_shape
from .dispatch import on_triton, tl, triton

_BLOCK = 1024  # columns of a program


def silu_mul_ref(gate_up: Tensor) -> Tensor:
    """Shapes as in `silu_mul`."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up


@triton.jit
def silu_mul_kernel(gate_up_ptr, y_ptr, stride, f, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    col = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = col < f
    gate = tl.load(gate_up_ptr + row * stride + col, mask=inside, other=0.0)
    up = tl.load(gate_up_ptr + row * stride + f + col, mask=inside, other=0.0)
    x = gate.to(tl.float32)
    silu = (x / (1.0 + tl.exp(-x))).to(gate.dtype)  # rounded, as torch does between two operations
    y = (silu.to(tl.float32) * up.to(tl.float32)).to(gate.dtype)
    tl.store(y_ptr + row * f + col, y, mask=inside)


def silu_mul(gate_up: Tensor) -> Tensor:
    """Gate the rows of a fused projection.

    Args:
        gate_up: [n, 2 f], float32, float16 or bfloat16, the gate's columns first; rows may be strided.

    Returns:
        [n, f], contiguous, same dtype; silu is rounded to it.

    Raises:
        ValueError: A shape, dtype or stride is not as above.

    Cost: reads 2 n f, writes n f elements.
    """
    want_shape("gate_up", gate_up, None, None)
    want_dtype("gate_up", gate_up, *FLOATS)
    want_dense("gate_up", gate_up, 1)
    n, width = gate_up.shape
    if width % 2:
        raise ValueError(f"gate_up must have an even number of columns, got {width}")
    if not on_triton(gate_up):
        return silu_mul_ref(gate_up)
    f = width // 2
    y = torch.empty(n, f, dtype=gate_up.dtype, device=gate_up.device)
    if n > 0:
        silu_mul_kernel[(n, triton.cdiv(f, _BLOCK))](gate_up, y, gate_up.stride(0), f, BLOCK=_BLOCK)
    return y
