"""A plan of plain numbers becomes tensors."""

from itertools import accumulate

import torch

from pinrail_kernels.paged_attention import Queries, plan_extents

from ..core.plan import StepPlan
from ..model.decoder import Batch
from .table import Table


def build_batch(plan: StepPlan, table: Table, dtype: torch.dtype) -> Batch:
    """Lay the rows of a plan end to end; tokens and blocks come out of the table.

    Args:
        table: After `apply` of the same plan.
        dtype: Compute type, of the attention masks.

    Returns:
        With n = `plan.tokens`: token_ids, positions, slots [n]; extents that cover rows 0 … n - 1; fresh: the last
        block of each request that is begun here, for it is read to its end before it is full.
    """
    n, size, device = plan.tokens, table.block_size, table.device
    ends = list(accumulate(row.length for row in plan.rows))  # one past each request's last row of the batch
    numbers = [(row.slot, row.start - end + row.length, row.length) for row, end in zip(plan.rows, ends, strict=True)]
    lines, offsets, lengths = torch.tensor(numbers, device=device).unbind(1)
    lines, offsets = (torch.repeat_interleave(x, lengths, output_size=n) for x in (lines, offsets))
    positions = torch.arange(n, device=device) + offsets
    fresh = [(row.slot, last) for row in plan.rows if row.start <= (last := (row.end - 1) // size) * size]
    sequences = [
        Queries(end - row.length, row.start, row.length, row.slot) for row, end in zip(plan.rows, ends, strict=True)
    ]
    return Batch(
        token_ids=table.tokens[lines, positions],
        positions=positions,
        slots=table.blocks[lines, positions // size] * size + positions % size,
        fresh=table.blocks[tuple(torch.tensor(fresh, dtype=torch.int64, device=device).view(-1, 2).unbind(1))],
        extents=plan_extents(sequences, table.blocks, size, dtype),
    )
