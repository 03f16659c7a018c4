"""The kernels that take rows one by one: norms, the gate, rotation with its stores.

They round where their definitions round. So they equal them bit for bit in 16-bit dtypes, unless a float32 sum lies so
near a boundary that its order decides; none here does.
"""

import pytest
import torch
from torch import Tensor

from pinrail_kernels.rms_norm import add_rms_norm, add_rms_norm_ref, rms_norm, rms_norm_ref
from pinrail_kernels.rope import rope_tables
from pinrail_kernels.rope_store_kv import rope_store_kv, rope_store_kv_ref
from pinrail_kernels.silu_mul import silu_mul, silu_mul_ref

# float32: the order of sums, the quality of exp; float16 and bfloat16: one step of the last bit
DTYPES = [(torch.float32, 2e-6), (torch.float16, 1e-3), (torch.bfloat16, 8e-3)]
SHAPES = [(1, 1), (3, 127), (5, 128), (2, 2049)]  # one element, just off and on a power of two, large


def close(seen: Tensor, wanted: Tensor, tolerance: float) -> None:
    torch.testing.assert_close(seen, wanted, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES, ids=str)
@pytest.mark.parametrize(("n", "d"), SHAPES)
def test_norms_match_the_definition(n: int, d: int, dtype: torch.dtype, tolerance: float) -> None:
    x, residual = (torch.randn(n, 2 * d).to(dtype)[:, :d] for _ in range(2))  # rows lie apart
    w = torch.randn(d).to(dtype)
    close(rms_norm(x, w, 1e-5), rms_norm_ref(x, w, 1e-5), tolerance)
    (normed, total), (wanted, exact) = add_rms_norm(x, residual, w, 1e-5), add_rms_norm_ref(x, residual, w, 1e-5)
    close(normed, wanted, tolerance)
    assert torch.equal(total, exact)  # one rounding, in any dtype
    assert total.is_contiguous()


def test_the_sum_is_rounded_before_it_is_normed() -> None:
    x, residual, w = torch.randn(64, 96).bfloat16(), torch.randn(64, 96).bfloat16(), torch.ones(96).bfloat16()
    normed, total = add_rms_norm(x, residual, w, 1e-5)
    assert torch.equal(normed, rms_norm(total, w, 1e-5))


@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES, ids=str)
@pytest.mark.parametrize(("n", "f"), [(1, 1), (4, 33), (2, 1024), (2, 1500)])
def test_the_gate_matches_the_definition(n: int, f: int, dtype: torch.dtype, tolerance: float) -> None:
    gate_up = (torch.randn(n, 2 * f) * 3).to(dtype)
    close(silu_mul(gate_up), silu_mul_ref(gate_up), tolerance)


def test_a_gate_far_from_zero_opens_or_shuts() -> None:
    gate_up = torch.tensor([[80.0, -80.0, 2.0, 3.0]])
    close(silu_mul(gate_up), torch.tensor([[160.0, 0.0]]), 1e-6)


@pytest.mark.parametrize("dtype", [dtype for dtype, _ in DTYPES], ids=str)
@pytest.mark.parametrize(("heads", "kv_heads", "d"), [(1, 1, 2), (6, 2, 16), (9, 3, 80), (8, 1, 96), (4, 4, 64)])
def test_rotation_and_stores_are_those_of_the_definition(heads: int, kv_heads: int, d: int, dtype: torch.dtype) -> None:
    qkv = torch.randn(4, (heads + 2 * kv_heads) * d).to(dtype)
    turns = rope_tables(torch.tensor([0, 1, 63, 5000]), d, 10000.0, dtype)
    slots = torch.tensor([11, 0, 7, 5])
    ours, wanted = (torch.randn(2, 3, 4, kv_heads, d).to(dtype) for _ in range(2))
    wanted.copy_(ours)
    q = rope_store_kv(qkv, turns, slots, ours[0], ours[1])
    assert torch.equal(q, rope_store_kv_ref(qkv, turns, slots, wanted[0], wanted[1]))
    assert torch.equal(ours, wanted)  # the other slots are untouched


def test_a_row_has_the_same_bits_alone_and_beside_others() -> None:
    x, residual, w = torch.randn(5, 300).bfloat16(), torch.randn(5, 300).bfloat16(), torch.randn(300).bfloat16()
    assert torch.equal(add_rms_norm(x, residual, w, 1e-5)[0][3:4], add_rms_norm(x[3:4], residual[3:4], w, 1e-5)[0])
    assert torch.equal(silu_mul(x)[3:4], silu_mul(x[3:4]))
