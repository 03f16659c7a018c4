"""A plan of plain numbers becomes tensors."""

from itertools import accumulate

import torch
from torch import Tensor

from pinrail_kernels.dispatch import on_triton
from pinrail_kernels.paged_attention import CAUSAL, Queries, plan_attention
from pinrail_kernels.paged_attention_triton import plan_decodes

from ..core.plan import StepPlan
from ..model.decoder import Batch
from .penalties import on_device
from .table import Table


def build_batch(plan: StepPlan, table: Table, dtype: torch.dtype) -> Batch:
    """Lay the rows of a plan end to end; tokens and blocks come out of the table.

    Args:
        table: After `apply` of the same plan.
        dtype: Compute type, of the attention masks.

    Returns:
        With n = `plan.tokens`: token_ids, positions, slots [n]; attention that covers rows 0 … n - 1; fresh: the last
        block of each request that is begun here, where what reads it goes to its end before it is full: kernels do not.
    """
    n, size, device = plan.tokens, table.block_size, table.device
    ends = list(accumulate(row.length for row in plan.rows))  # one past each request's last row of the batch
    numbers = [(row.slot, row.start - end + row.length, row.length) for row, end in zip(plan.rows, ends, strict=True)]
    lines, offsets, lengths = on_device(numbers, torch.int64, device).unbind(1)
    lines, offsets = (torch.repeat_interleave(x, lengths, output_size=n) for x in (lines, offsets))
    positions = torch.arange(n, device=device) + offsets
    sequences = [
        Queries(end - row.length, row.start, row.length, row.slot) for row, end in zip(plan.rows, ends, strict=True)
    ]
    return Batch(
        token_ids=table.tokens[lines, positions],
        positions=positions,
        slots=_slots(table, lines, positions),
        fresh=_fresh(plan, table),
        attention=plan_attention(sequences, table.blocks, size, dtype),
    )


def build_decodes(lines: Tensor, positions: Tensor, table: Table) -> Batch:
    """Rows that are decodes all, of numbers on the device: nothing depends on the host's, so a graph can hold it.

    Args:
        lines: [n] int64, of the table.
        positions: [n] int64, below `max_model_len`.
    """
    longest = table.tokens.shape[1]
    return Batch(
        token_ids=table.tokens[lines, positions],
        positions=positions,
        slots=_slots(table, lines, positions),
        fresh=lines[:0],
        attention=plan_decodes(lines, positions + 1, table.blocks, longest, CAUSAL),
    )


def _slots(table: Table, lines: Tensor, positions: Tensor) -> Tensor:
    size = table.block_size
    return table.blocks[lines, positions // size] * size + positions % size


def _fresh(plan: StepPlan, table: Table) -> Tensor:
    size = table.block_size
    begun = [(row.slot, last) for row in plan.rows if row.start <= (last := (row.end - 1) // size) * size]
    if not begun or on_triton(table.blocks):
        return table.blocks.new_empty(0)
    return table.blocks[on_device(begun, torch.int64, table.device).unbind(1)]
