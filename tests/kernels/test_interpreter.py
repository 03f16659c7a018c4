"""The mends of Triton's interpreter: bfloat16 is rounded and widened as torch does it."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from pinrail_kernels.interpreter import rounded, widened


@given(st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=20))
def test_numbers_are_rounded_to_nearest_and_ties_to_even(numbers: list[float]) -> None:
    wanted = torch.tensor(numbers, dtype=torch.float32).bfloat16()
    bits = rounded(np.array(numbers, dtype=np.float32))
    assert bits.tolist() == wanted.view(torch.uint16).tolist()
    assert np.array_equal(widened(bits), wanted.float().numpy())


def test_a_tie_goes_to_the_even_neighbour() -> None:
    ties = np.array([1 + 2**-8, 1 + 3 * 2**-8], dtype=np.float32)  # half-way between bfloat16's steps of 2**-7
    assert widened(rounded(ties)).tolist() == [1.0, 1 + 2**-6]


def test_nan_stays_nan() -> None:
    assert np.isnan(widened(rounded(np.array([np.nan], dtype=np.float32)))).all()
