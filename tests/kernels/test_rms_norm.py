"""Against the formula, and against the rounding that Llama checkpoints were trained with."""

import pytest
import torch

from pinrail_kernels.rms_norm import rms_norm


@pytest.mark.parametrize(("n", "d"), [(1, 1), (3, 127), (5, 128)])
def test_matches_the_formula(n: int, d: int) -> None:
    x, w = torch.randn(n, d), torch.randn(d)
    exact = x.double() / (x.double().square().mean(-1, keepdim=True) + 1e-5).sqrt() * w.double()
    torch.testing.assert_close(rms_norm(x, w, 1e-5).double(), exact, atol=1e-5, rtol=1e-5)  # float32 sums


def test_the_quotient_is_rounded_before_the_weight_is_applied() -> None:
    x, w = torch.randn(64, 96).bfloat16(), torch.randn(96).bfloat16()
    xf = x.float()
    quotient = (xf * torch.rsqrt(xf.square().mean(-1, keepdim=True) + 1e-5)).bfloat16()
    assert torch.equal(rms_norm(x, w, 1e-5), w * quotient)
