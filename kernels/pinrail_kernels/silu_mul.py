"""The gate of a SwiGLU layer:  y = silu(gate) * up,  silu(x) = x / (1 + exp(-x))

Source: Shazeer 2020, https://arxiv.org/abs/2002.05202, equation 6 (the product inside FFN_SwiGLU).
"""

import torch.nn.functional as F
from torch import Tensor


def silu_mul(gate_up: Tensor) -> Tensor:
    """Args: gate_up: [n, 2 f], the gate's columns first. Returns: [n, f], same dtype; silu is rounded to it.

    Cost: reads 2 n f, writes 2 n f elements.
    """
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up
