"""Rotary position embedding, half-split layout:  (a, b) -> (a cos - b sin, b cos + a sin)

`a` is the first half of a head and `b` the second; pair i turns by position * theta^(-2i/d).

Source: Su et al. 2021, https://arxiv.org/abs/2104.09864, equation 34, with the pairs laid out as in Llama of
transformers (`rotate_half`), which is how such checkpoints store their weights.
"""

import torch
from torch import Tensor


def rope_tables(positions: Tensor, head_dim: int, theta: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosine and sine of every angle, taken in float32 and then rounded to `dtype`.

    Args:
        positions: [n] int64, from 0.
        head_dim: d, even.
        theta: Base of the wave lengths; no unit.

    Returns:
        cos and sin, each [n, 1, d / 2], to be broadcast over heads.
    """
    exponents = torch.arange(0, head_dim, 2, device=positions.device).float() / head_dim
    angles = positions.float()[:, None, None] * (1.0 / theta**exponents)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn each head of each row to its position.

    Args:
        x: [n, heads, d]; may be strided.
        cos, sin: [n, 1, d / 2] of `rope_tables`, dtype of `x`.

    Returns:
        [n, heads, d], contiguous, dtype of `x`.

    Cost: six passes over half of `x`.
    """
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)
