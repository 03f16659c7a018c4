"""A plan laid out end to end."""

import torch

from pinrail_engine.core.plan import Row, StepPlan
from pinrail_engine.core.types import SamplingParams
from pinrail_engine.run.batch import build_batch
from pinrail_kernels.paged_attention import Decodes, Prefill

PARAMS = SamplingParams(max_tokens=1)


def test_rows_lie_end_to_end() -> None:
    decode = Row("a", 5, (50,), (9, 2), True, PARAMS)
    first_chunk = Row("b", 0, (60, 61, 62), (4, 7), False, PARAMS)
    last_chunk = Row("c", 3, (73, 74), (0, 1), True, PARAMS)
    batch = build_batch(StepPlan((decode, first_chunk, last_chunk)), 4, torch.float32, torch.device("cpu"))
    assert batch.token_ids.tolist() == [50, 60, 61, 62, 73, 74]
    assert batch.positions.tolist() == [5, 0, 1, 2, 3, 4]
    assert batch.slots.tolist() == [2 * 4 + 1, 16, 17, 18, 3, 4]
    assert batch.sampled_rows.tolist() == [0, 5]
    assert batch.fresh.tolist() == [4, 1]  # the decode goes on in a block that it holds
    decodes, *chunks = batch.extents
    assert isinstance(decodes, Decodes)
    assert decodes.tables.tolist() == [[9, 2]]
    assert [(c.rows, c.context, c.table.tolist()) for c in chunks if isinstance(c, Prefill)] == [
        (slice(1, 4), 3, [4]),  # its second block is taken, but nothing is in it
        (slice(4, 6), 5, [0, 1]),
    ]
    assert batch.token_ids.dtype == batch.slots.dtype == torch.int64
