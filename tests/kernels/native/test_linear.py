"""Packed matrices: what is packed, and what is multiplied, equals the definitions; a row knows nothing of its batch."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from pinrail_kernels.native import GATE, Kind, Native, NativeError
from pinrail_kernels.quantize import dequantize, quantize_int4, quantize_int8

F32 = NDArray[np.float32]

FORMS = [(Kind.F32, 0), (Kind.BF16, 0), (Kind.INT8, 0), (Kind.INT4, 32), (Kind.INT4, 128)]

# Sums are taken in float32 in another order than torch's; k is at most 640. Where pairs are multiplied in bfloat16
# (vdpbf16ps) each input is rounded to 8 bits first, a relative error of 2^-9 at most; in float16 to 11 bits, and 32
# products are added in them.
TOLERANCE = 2e-5
ROUNDED = {"avx512_bf16": 2.0**-8, "avx512_fp16": 2.0**-10}


def weights(n: int, k: int, seed: int = 0) -> F32:
    return np.random.default_rng(seed).normal(size=(n, k)).astype(np.float32)


def as_bf16(w: F32) -> NDArray[np.uint16]:
    return torch.from_numpy(w).bfloat16().view(torch.uint16).numpy()


def stands_for(w: F32, kind: Kind, group: int) -> F32:
    """The matrix that a packed one means, by the definitions."""
    t = torch.from_numpy(w)
    if kind is Kind.BF16:
        t = t.bfloat16().float()
    if kind is Kind.INT8:
        t = dequantize(quantize_int8(t))
    if kind is Kind.INT4:
        t = dequantize(quantize_int4(t, group))
    return t.numpy()


@pytest.mark.parametrize(("kind", "group"), FORMS)
@pytest.mark.parametrize("n", [1, 31, 32, 33, 100])
def test_a_packed_matrix_is_the_one_that_the_definition_gives(native: Native, kind: Kind, group: int, n: int) -> None:
    w = weights(n, 256)
    packed = native.pack(kind, w, group=group)
    # Of 4 bits, product and sum are one operation there, and two in torch: a unit in the last place.
    np.testing.assert_allclose(
        native.unpack(packed, 0, n), stands_for(w, kind, group), rtol=0, atol=5e-7 if kind is Kind.INT4 else 0
    )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_sources_of_every_type_are_read(native: Native, dtype: str) -> None:
    t = torch.from_numpy(weights(40, 64)).to(getattr(torch, dtype))
    t[0, :6] = torch.tensor([0.0, -0.0, 1e-7, 65504.0, -6e-8, 1.0])  # among them half-precision subnormals
    source = t.view(torch.uint16).numpy() if dtype == "bfloat16" else t.numpy()
    packed = native.pack(Kind.F32, source)
    np.testing.assert_array_equal(native.unpack(packed, 0, 40), t.float().numpy())


def test_several_matrices_become_one(native: Native) -> None:
    q, k, v = weights(40, 64, 1), weights(8, 64, 2), weights(8, 64, 3)
    packed = native.pack(Kind.F32, q, k, v)
    np.testing.assert_array_equal(native.unpack(packed, 0, 56), np.concatenate([q, k, v]))


def test_gate_and_up_lie_by_turns(native: Native) -> None:
    gate, up = weights(48, 64, 1), weights(48, 64, 2)
    packed = native.unpack(native.pack(Kind.F32, gate, up, by_turns=True), 0, 96)
    rows = packed.reshape(3, 2, GATE, 64)
    np.testing.assert_array_equal(rows[:, 0].reshape(48, 64), gate)
    np.testing.assert_array_equal(rows[:, 1].reshape(48, 64), up)


@given(
    m=st.integers(1, 300),
    n=st.integers(1, 130),
    k=st.integers(1, 5),
    form=st.sampled_from(FORMS),
    seed=st.integers(0, 9),
)
@settings(max_examples=60, deadline=None)
def test_it_multiplies_as_the_definition_does(
    native: Native, m: int, n: int, k: int, form: tuple[Kind, int], seed: int
) -> None:
    kind, group = form
    w, x = weights(n, 128 * k, seed), weights(m, 128 * k, seed + 100)
    got = native.linear(native.pack(kind, w, group=group), x)
    wanted = x.astype(np.float64) @ stands_for(w, kind, group).astype(np.float64).T
    rounded = ROUNDED.get(native.isa, 0.0) if kind is Kind.BF16 else 0.0
    bound = (TOLERANCE + rounded) * (np.abs(x) @ np.abs(stands_for(w, kind, group)).T) + 1e-6
    assert np.all(np.abs(got - wanted) <= bound)


@pytest.mark.parametrize(("kind", "group"), FORMS)
def test_a_row_is_the_same_alone_and_in_any_batch(native: Native, kind: Kind, group: int) -> None:
    x = weights(301, 256, 5)
    packed = native.pack(kind, weights(70, 256), group=group)
    whole = native.linear(packed, x)
    for first, last in [(0, 1), (3, 4), (300, 301), (10, 22), (5, 138), (100, 301)]:
        np.testing.assert_array_equal(native.linear(packed, x[first:last]), whole[first:last])


@pytest.mark.parametrize("k", [1, 7, 20])
def test_a_matrix_whose_inputs_do_not_fit_is_refused(native: Native, k: int) -> None:
    with pytest.raises(NativeError, match=f"inputs of a matrix is {k}, want a multiple of 8"):
        native.pack(Kind.BF16, as_bf16(weights(4, k)))


def test_groups_that_do_not_divide_the_inputs_are_refused(native: Native) -> None:
    with pytest.raises(NativeError, match="inputs of a matrix is 40, want groups of 32"):
        native.pack(Kind.INT4, weights(4, 40), group=32)


def test_a_row_and_weights_of_any_size_are_multiplied_to_the_same_relative_error(native: Native) -> None:
    """Also where float16 has no such numbers."""
    w, x = weights(40, 128), weights(5, 128, 8)
    plain = native.linear(native.pack(Kind.BF16, w), x)
    for of_weights, of_inputs in [(2.0**-60, 2.0**40), (2.0**20, 2.0**20), (2.0**-30, 2.0**-30)]:
        got = native.linear(native.pack(Kind.BF16, w * np.float32(of_weights)), x * np.float32(of_inputs))
        np.testing.assert_array_equal(got, plain * np.float32(of_weights) * np.float32(of_inputs))


@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf])
def test_a_row_that_is_broken_breaks_no_other(native: Native, broken: float) -> None:
    x = weights(14, 128, 9)
    whole = native.linear(packed := native.pack(Kind.BF16, weights(40, 128)), x)
    x[6, 3] = broken
    got = native.linear(packed, x)
    assert not np.isfinite(got[6]).any()
    np.testing.assert_array_equal(np.delete(got, 6, 0), np.delete(whole, 6, 0))


def test_a_not_a_number_stays_one(native: Native) -> None:
    w = weights(4, 64)
    w[1, 5] = np.nan
    packed = native.pack(Kind.BF16, w)
    out = native.linear(packed, weights(3, 64, 7))
    assert np.isnan(out[:, 1]).all()
    assert np.isfinite(out[:, [0, 2, 3]]).all()
