"""Against complex rotation in float64, and the property that it is for."""

import pytest
import torch

from pinrail_kernels.rope import rope, rope_tables


@pytest.mark.parametrize("head_dim", [2, 16, 64])
def test_each_pair_turns_by_its_angle(head_dim: int) -> None:
    x, positions = torch.randn(5, 3, head_dim), torch.tensor([0, 1, 7, 63, 500])
    a, b = x.double().chunk(2, -1)
    rates = 10000.0 ** (-torch.arange(0, head_dim, 2).double() / head_dim)
    turned = torch.complex(a, b) * torch.exp(1j * positions.double()[:, None, None] * rates)
    out = rope(x, *rope_tables(positions, head_dim, 10000.0, torch.float32))
    # float32 angles: position 500 has an error of 3e-5 radians
    torch.testing.assert_close(out.double(), torch.cat((turned.real, turned.imag), -1), atol=2e-4, rtol=1e-4)


def test_scores_depend_on_the_distance_alone() -> None:
    q, k = torch.randn(1, 1, 64), torch.randn(1, 1, 64)

    def score(i: int, j: int) -> float:
        turned = (rope(x, *rope_tables(torch.tensor([p]), 64, 10000.0, torch.float32)) for x, p in ((q, i), (k, j)))
        a, b = turned
        return float((a * b).sum())

    assert score(3, 1) == pytest.approx(score(103, 101), abs=1e-3)
