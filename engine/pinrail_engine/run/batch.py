"""A plan of plain numbers becomes tensors."""

from itertools import accumulate

import torch

from pinrail_kernels.paged_attention import Queries, plan_extents

from ..core.plan import Row, StepPlan
from ..model.decoder import Batch


def build_batch(plan: StepPlan, block_size: int, dtype: torch.dtype, device: torch.device) -> Batch:
    """Lay the rows of a plan end to end.

    Args:
        block_size: Tokens in a KV block.
        dtype: Compute type, of the attention masks.

    Returns:
        With n = `plan.tokens` and s = `len(plan.sampled)`: token_ids, positions, slots [n]; sampled_rows [s]: the last
        row of each sampled request; extents that cover rows 0 … n - 1; fresh: the last block of each request that is
        begun here, for it is read to its end before it is full.
    """
    ends = list(accumulate(len(row.token_ids) for row in plan.rows))  # one past each request's last row of the batch
    sequences = [_queries(row, end, block_size) for row, end in zip(plan.rows, ends, strict=True)]
    places = [(row, position) for row in plan.rows for position in range(row.start, row.end)]
    slots = [row.blocks[p // block_size] * block_size + p % block_size for row, p in places]
    lasts = [(row, (row.end - 1) // block_size) for row in plan.rows]
    fresh = [row.blocks[last] for row, last in lasts if row.start <= last * block_size]
    sampled = [end - 1 for row, end in zip(plan.rows, ends, strict=True) if row.samples]
    return Batch(
        token_ids=torch.tensor([token for row in plan.rows for token in row.token_ids], device=device),
        positions=torch.tensor([position for _, position in places], device=device),
        slots=torch.tensor(slots, device=device),
        fresh=torch.tensor(fresh, dtype=torch.int64, device=device),
        extents=plan_extents(sequences, block_size, dtype, device),
        sampled_rows=torch.tensor(sampled, dtype=torch.int64, device=device),
    )


def _queries(row: Row, end: int, block_size: int) -> Queries:
    """Only the blocks that these rows can see: a prompt's later blocks are taken already, but empty."""
    count = len(row.token_ids)
    return Queries(end - count, row.start, count, row.blocks[: -(-row.end // block_size)])
