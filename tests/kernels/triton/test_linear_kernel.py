"""The matrix product in 32, 16, 8 and 4 bits; sums do not know how many rows there are."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from pinrail_kernels.linear import Weight, linear, linear_ref, tile_sizes
from pinrail_kernels.quantize import quantize_int4, quantize_int8

# float32: the order of sums; 16 bits: the result's rounding, and for 4-bit weights that of their scaled values
DTYPES = [(torch.float32, 1e-5), (torch.float16, 4e-3), (torch.bfloat16, 3e-2)]
FORMATS: dict[str, Callable[[Tensor, torch.dtype], Weight]] = {
    "plain": lambda w, dtype: w.to(dtype),
    "8 bits": lambda w, _: quantize_int8(w),
    "4 bits by 32": lambda w, _: quantize_int4(w, 32),
    "4 bits by 128": lambda w, _: quantize_int4(w, 128),
}


@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES, ids=str)
@pytest.mark.parametrize("make", FORMATS.values(), ids=FORMATS.keys())
@pytest.mark.parametrize(("n", "out", "width"), [(1, 1, 128), (3, 50, 384), (70, 130, 128)])
def test_matches_the_definition(
    n: int, out: int, width: int, make: Callable[[Tensor, torch.dtype], Weight], dtype: torch.dtype, tolerance: float
) -> None:
    x = torch.randn(n, 2 * width).to(dtype)[:, :width]  # rows lie apart
    w = make(torch.randn(out, width) / width**0.5, dtype)
    torch.testing.assert_close(linear(x, w), linear_ref(x, w), atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("width", [1, 33, 100])
def test_a_plain_matrix_may_have_any_width(width: int) -> None:
    x, w = torch.randn(3, width), torch.randn(5, width)
    torch.testing.assert_close(linear(x, w), linear_ref(x, w), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("make", FORMATS.values(), ids=FORMATS.keys())
def test_a_row_has_the_same_bits_alone_and_beside_others(make: Callable[[Tensor, torch.dtype], Weight]) -> None:
    """Alone it takes the small tile, beside 69 others the large one."""
    x, w = torch.randn(70, 256).bfloat16(), make(torch.randn(40, 256), torch.bfloat16)
    assert tile_sizes(1, x.dtype) != tile_sizes(70, x.dtype)
    together = linear(x, w)
    for i in (0, 15, 16, 63, 64, 69):
        assert torch.equal(together[i : i + 1], linear(x[i : i + 1], w))


def test_eight_bits_are_exact_until_the_scale() -> None:
    """Whole numbers and their sums: nothing but the last product rounds, so the two orders have the same bits."""
    x = torch.randint(-8, 9, (4, 256)).float()
    w = quantize_int8(torch.randn(30, 256))
    exact = (x.double() @ w.values.double().T).float() * w.scales
    assert torch.equal(linear(x, w), exact)
