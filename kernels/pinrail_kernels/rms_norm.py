"""RMSNorm over the last dimension:  y = w * (x / sqrt(mean(x^2) + eps))

Source: Zhang & Sennrich 2019, https://arxiv.org/abs/1910.07467, equation 4. The order of casts is that of Llama in
transformers: the quotient is rounded to the dtype of `x` before it is multiplied by `w`. Other models differ in the
last bit.
"""

import torch
from torch import Tensor


def rms_norm(x: Tensor, w: Tensor, eps: float) -> Tensor:
    """Normalise each row of `x`.

    Args:
        x: [n, d], float32 or bfloat16.
        w: [d], dtype of `x`.
        eps: Added to the mean square; no unit.

    Returns:
        [n, d], dtype of `x`. Sums are taken in float32 whatever the dtype.

    Cost: five passes over [n, d], bound by memory bandwidth.
    """
    xf = x.float()
    return w * (xf * torch.rsqrt(xf.square().mean(-1, keepdim=True) + eps)).to(x.dtype)
