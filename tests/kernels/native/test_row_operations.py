"""Norm, gate and rotation equal their definitions in torch."""

import pytest
import torch

from pinrail_kernels.native import Native
from pinrail_kernels.rms_norm import rms_norm_ref
from pinrail_kernels.rope import rope, rope_tables
from pinrail_kernels.silu_mul import silu_mul_ref

SIZES = [1, 7, 8, 31, 64, 577]


def rows(n: int, d: int, scale: float = 1.0) -> torch.Tensor:
    return scale * torch.randn(n, d)


@pytest.mark.parametrize("d", SIZES)
def test_rms_norm(native: Native, d: int) -> None:
    x, w = rows(9, d), torch.randn(d)
    got = native.rms_norm(x.numpy(), w.numpy(), 1e-5)
    torch.testing.assert_close(torch.from_numpy(got), rms_norm_ref(x, w, 1e-5), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("d", SIZES)
@pytest.mark.parametrize("scale", [1.0, 50.0])  # e^-100 and e^100 among them
def test_silu_mul(native: Native, d: int, scale: float) -> None:
    x = rows(5, 2 * d, scale)
    got = native.silu_mul(x.numpy())
    torch.testing.assert_close(torch.from_numpy(got), silu_mul_ref(x), rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("d", [2, 16, 64, 80, 128])
def test_rope(native: Native, d: int) -> None:
    positions = torch.tensor([0, 1, 17, 2047, 8191])
    x = torch.randn(5, 3, d)
    cos, sin = rope_tables(positions, d, 1e5, torch.float32)
    got = x.numpy().copy()
    native.rope(got, positions.int().numpy(), 1e5)
    # Frequencies are powers in float32, which two libraries round differently; a position multiplies the difference.
    error = torch.from_numpy(got) - rope(x, cos, sin)
    assert torch.all(error.abs() <= 4 * (1e-6 + positions[:, None, None] * 2.0**-23))
