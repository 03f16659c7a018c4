"""The CPU path against the definition, and the definition against torch's attention without pages."""

import random

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from pinrail_kernels.paged_attention import Queries, paged_attention, paged_attention_ref, plan_extents

BLOCK, DIM, BLOCKS = 4, 16, 64
NOBODYS = 63
HEADS = [(1, 1), (4, 2), (9, 3), (7, 1)]  # query heads, KV heads
# float32 differs by summation order; bfloat16 by the rounding of weights and result
DTYPES = [(torch.float32, 1e-5), (torch.bfloat16, 3e-2)]
RAGGED = {  # (start, count) of each sequence
    "one decode": [(0, 1)],
    "decodes of unlike lengths": [(0, 1), (3, 1), (4, 1), (30, 1), (62, 1)],
    "a whole prompt": [(0, 9)],
    "a chunk": [(5, 7)],
    "all at once": [(17, 1), (0, 6), (8, 8), (2, 1), (40, 3)],
}


def ragged(shape: list[tuple[int, int]]) -> tuple[list[Queries], Tensor]:
    """Sequences and their block tables; behind its own blocks, each table names those of no one."""
    free = random.Random(0).sample(range(NOBODYS), NOBODYS)
    tables = torch.full((len(shape), BLOCKS), NOBODYS)
    sequences, row = [], 0
    for line, (start, count) in enumerate(shape):
        sequences.append(Queries(row, start, count, line))
        for i in range(sequences[-1].blocks(BLOCK)):
            tables[line, i] = free.pop()
        row += count
    return sequences, tables


def own(sequences: list[Queries], tables: Tensor) -> set[int]:
    return {int(b) for s in sequences for b in tables[s.line, : s.blocks(BLOCK)]}


def tensors(rows: int, heads: int, kv_heads: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    q = torch.randn(rows, heads, DIM).to(dtype)
    k, v = (torch.randn(BLOCKS, BLOCK, kv_heads, DIM).to(dtype) for _ in range(2))
    return q, k, v


@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES, ids=str)
@pytest.mark.parametrize("shape", RAGGED.values(), ids=RAGGED.keys())
@pytest.mark.parametrize(("heads", "kv_heads"), HEADS)
def test_matches_the_definition(
    heads: int, kv_heads: int, shape: list[tuple[int, int]], dtype: torch.dtype, tolerance: float
) -> None:
    sequences, tables = ragged(shape)
    q, k, v = tensors(sum(s.count for s in sequences), heads, kv_heads, dtype)
    extents = plan_extents(sequences, tables, BLOCK, dtype)
    out = paged_attention(q, k, v, extents)
    torch.testing.assert_close(out, paged_attention_ref(q, k, v, sequences, tables), atol=tolerance, rtol=tolerance)


def test_the_definition_is_causal_attention() -> None:
    (sequence,), tables = ragged([(0, 11)])
    q, k_cache, v_cache = tensors(11, 6, 2, torch.float32)
    k, v = (c[tables[0, :3]].flatten(0, 1)[:11].transpose(0, 1) for c in (k_cache, v_cache))
    wanted = F.scaled_dot_product_attention(q.transpose(0, 1), k, v, is_causal=True, enable_gqa=True)
    out = paged_attention_ref(q, k_cache, v_cache, [sequence], tables)
    torch.testing.assert_close(out, wanted.transpose(0, 1), atol=1e-5, rtol=1e-5)


def test_a_short_text_is_not_padded_to_a_long_one() -> None:
    extents = plan_extents(*ragged([(3, 1), (2, 1), (62, 1)]), BLOCK, torch.float32)
    assert len(extents) == 2


def test_what_lies_behind_a_context_does_not_matter() -> None:
    sequences, tables = ragged([(5, 1), (9, 3)])
    q, k, v = tensors(4, 4, 2, torch.float32)
    extents = plan_extents(sequences, tables, BLOCK, torch.float32)
    before = paged_attention(q, k, v, extents)
    seen = {int(tables[s.line, p // BLOCK]) * BLOCK + p % BLOCK for s in sequences for p in range(s.context)}
    for slot in set(range(BLOCKS * BLOCK)) - seen:
        k.view(-1, 2, DIM)[slot] = v.view(-1, 2, DIM)[slot] = 1e4
    assert torch.equal(paged_attention(q, k, v, extents), before)


def test_what_blocks_of_others_hold_does_not_matter() -> None:
    """Texts of unlike lengths are padded to one, but never with a block that another may have filled with NaN."""
    sequences, tables = ragged([(4, 1), (9, 1), (9, 3)])
    q, k, v = tensors(5, 4, 2, torch.float32)
    extents = plan_extents(sequences, tables, BLOCK, torch.float32)
    before = paged_attention(q, k, v, extents)
    others = list(set(range(BLOCKS)) - own(sequences, tables))
    k[others] = v[others] = float("nan")
    assert torch.equal(paged_attention(q, k, v, extents), before)
