"""What launchers refuse, and that the message has the argument, what was wanted and what was seen."""

from collections.abc import Callable

import pytest
import torch

from pinrail_kernels.draw import draw
from pinrail_kernels.linear import linear
from pinrail_kernels.paged_attention import CAUSAL, TorchPlan, paged_attention
from pinrail_kernels.quantize import quantize_int8
from pinrail_kernels.rms_norm import add_rms_norm, rms_norm
from pinrail_kernels.rope_store_kv import rope_store_kv
from pinrail_kernels.silu_mul import silu_mul

PLAN = TorchPlan((), CAUSAL)
CACHE = torch.zeros(2, 4, 2, 8)
TURN = torch.zeros(3, 1, 4)
SLOTS = torch.zeros(3, dtype=torch.int64)
ROWS = torch.zeros(3, 8)
HALF = ROWS.half()

REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "a shape": (lambda: rms_norm(ROWS, torch.zeros(7), 1e-5), "w must be [8], got [7]"),
    "a dtype": (lambda: rms_norm(ROWS, torch.zeros(8).half(), 1e-5), "w must be float32, got torch.float16"),
    "whole numbers": (
        lambda: silu_mul(ROWS.int()),
        "gate_up must be float32 or float16 or bfloat16, got torch.int32",
    ),
    "gaps in a row": (
        lambda: rms_norm(torch.zeros(3, 16)[:, ::2], torch.zeros(8), 1e-5),
        "x must be contiguous in its last 1 dimensions, got strides (16, 2)",
    ),
    "another residual": (
        lambda: add_rms_norm(ROWS, torch.zeros(2, 8), torch.zeros(8), 1e-5),
        "residual must be [3, 8], got [2, 8]",
    ),
    "half a gate": (lambda: silu_mul(torch.zeros(3, 7)), "gate_up must have an even number of columns, got 7"),
    "a projection without queries": (
        lambda: rope_store_kv(torch.zeros(3, 32), (TURN, TURN), SLOTS, CACHE, CACHE),
        "qkv must be [n, (heads + 2 * 2) * 8] with even d, got [3, 32]",
    ),
    "too few slots": (
        lambda: rope_store_kv(torch.zeros(3, 48), (TURN, TURN), SLOTS[:2], CACHE, CACHE),
        "slots must be [3], got [2]",
    ),
    "angles of other rows": (
        lambda: rope_store_kv(torch.zeros(3, 48), (TURN, TURN[:1]), SLOTS, CACHE, CACHE),
        "sin must be [3, 1, 4], got [1, 1, 4]",
    ),
    "heads that do not share evenly": (
        lambda: paged_attention(torch.zeros(1, 3, 8), CACHE, CACHE, PLAN),
        "heads must be a multiple of kv_heads, 2, got 3",
    ),
    "heads of another size": (
        lambda: paged_attention(torch.zeros(1, 4, 16), CACHE, CACHE, PLAN),
        "k_cache must be [any, any, any, 16], got [2, 4, 2, 8]",
    ),
    "a cache of another dtype": (
        lambda: paged_attention(torch.zeros(1, 4, 8), CACHE.half(), CACHE, PLAN),
        "k_cache must be float32, got torch.float16",
    ),
    "a matrix of another width": (
        lambda: linear(ROWS, torch.zeros(5, 9)),
        "w must be [any, 8] to match x [3, 8], got [5, 9]",
    ),
    "a quantised matrix of another width": (
        lambda: linear(ROWS, quantize_int8(torch.zeros(5, 9))),
        "w must be [any, 8] to match x [3, 8], got [5, 9]",
    ),
    "a matrix of another dtype": (
        lambda: linear(ROWS, torch.zeros(5, 8).half()),
        "w must be float32, got torch.float16",
    ),
    "logits of 16 bits": (
        lambda: draw(HALF, ROWS[:, 0], ROWS[:, 0].double()),
        "logits must be float32, got torch.float16",
    ),
    "numbers of 32 bits": (
        lambda: draw(ROWS, torch.zeros(3), torch.zeros(3)),
        "uniforms must be float64, got torch.float32",
    ),
}


@pytest.mark.parametrize(("call", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_what_a_kernel_would_misread_is_refused(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011  # the message is compared below
        call()
    assert str(caught.value) == message
