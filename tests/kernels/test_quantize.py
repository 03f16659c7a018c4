"""What 8 and 4 bits stand for, and how they are packed."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pinrail_kernels.linear import linear
from pinrail_kernels.quantize import dequantize, quantize_int4, quantize_int8


def test_eight_bits_are_a_row_s_scale_and_whole_numbers() -> None:
    w = quantize_int8(torch.tensor([[127.0, -127.0, 0.5, 1.5, 2.4], [0.0, 0.0, 0.0, 0.0, 0.0]]))
    assert w.values.tolist() == [[127, -127, 0, 2, 2], [0, 0, 0, 0, 0]]  # ties to even
    assert w.scales.tolist() == [1.0, 0.0]


def test_four_bits_lie_half_a_run_apart() -> None:
    row = torch.zeros(1, 64)
    row[0, 0], row[0, 16], row[0, 1], row[0, 33] = 8.0, -7.0, 2.5, 30.0
    w = quantize_int4(row, 32)
    assert w.steps.tolist() == [[[1.0, 2.0], [-7.0, 0.0]]]
    low, high = w.packed[0] & 15, w.packed[0] >> 4
    assert (low[0], high[0], low[1], high[1]) == (15, 0, 10, 7)  # 8, -7, 2.5 (its tie goes to the even 10) and 0
    assert low[17] == 15
    assert w.shape == (1, 64)


@given(st.integers(0, 99), st.sampled_from([32, 128]))
def test_what_comes_back_is_half_a_step_away_at_most(seed: int, group: int) -> None:
    matrix = torch.randn(3, 256, generator=torch.Generator().manual_seed(seed))
    by_row, by_group = quantize_int8(matrix), quantize_int4(matrix, group)
    assert ((dequantize(by_row) - matrix).abs() <= by_row.scales[:, None] * 0.5001).all()
    steps = by_group.steps[:, 0].repeat_interleave(group, dim=1)
    assert ((dequantize(by_group) - matrix).abs() <= steps * 0.501 + 1e-6).all()


@pytest.mark.parametrize("group", [16, 64, 128])
def test_a_group_that_does_not_fit_is_refused(group: int) -> None:
    message = f"group must be 32 or 128 and divide the 96 columns of w, got {group}"
    with pytest.raises(ValueError, match=message):
        quantize_int4(torch.zeros(2, 96), group)


def test_torch_s_path_multiplies_what_the_bits_stand_for() -> None:
    x, matrix = torch.randn(3, 64), torch.randn(5, 64)
    for w in (quantize_int8(matrix), quantize_int4(matrix, 32)):
        torch.testing.assert_close(linear(x, w), x @ dequantize(w).T)
    torch.testing.assert_close(linear(x, matrix), x @ matrix.T)
