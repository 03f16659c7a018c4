"""A plan of plain numbers becomes arrays for the CPU kernels."""

import numpy as np
from numpy.typing import NDArray

from pinrail_kernels.native import Array, Batch

from ..core.plan import StepPlan
from .native_table import NativeTable


def build_batch(plan: StepPlan, table: NativeTable, kv: Array) -> Batch:
    """Lay the rows of a plan end to end; tokens come out of the table, and blocks stay in it.

    Args:
        table: After `apply` of the same plan; not to be changed before the batch has been computed.
        kv: The cache, [layers, blocks, block_elements].
    """
    numbers = [(row.slot, row.start, row.length) for row in plan.rows]
    slots, starts, lengths = np.array(numbers, np.int32).T
    firsts = (lengths.cumsum() - lengths).astype(np.int32)  # each request's first row of the batch
    positions = np.arange(plan.tokens, dtype=np.int32) + np.repeat(starts - firsts, lengths)
    return Batch(
        tokens=table.tokens[np.repeat(slots, lengths), positions],
        positions=positions,
        sequences=np.stack([firsts, starts, lengths, slots], axis=1),
        tables=table.blocks,
        kv=kv,
    )


def last_rows(plan: StepPlan) -> NDArray[np.int32]:
    """Of the batch, [s]: those that a token is chosen after, in the order of `plan.sampled`."""
    ends = np.cumsum([row.length for row in plan.rows], dtype=np.int32)
    return ends[[row.samples for row in plan.rows]] - np.int32(1)
