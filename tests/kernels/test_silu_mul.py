"""Against the formula in float64."""

import pytest
import torch

from pinrail_kernels.silu_mul import silu_mul


@pytest.mark.parametrize(("n", "f"), [(1, 1), (4, 33)])
def test_matches_the_formula(n: int, f: int) -> None:
    gate, up = torch.randn(n, f), torch.randn(n, f)
    exact = gate.double() / (1 + (-gate.double()).exp()) * up.double()
    torch.testing.assert_close(silu_mul(torch.cat((gate, up), 1)).double(), exact, atol=1e-6, rtol=1e-5)
