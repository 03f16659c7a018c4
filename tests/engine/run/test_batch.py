"""A plan laid out end to end, its tokens and blocks read from the table."""

import pytest
import torch

from pinrail_engine.core.plan import Begin, Grown, Row, StepPlan
from pinrail_engine.core.types import SamplingParams
from pinrail_engine.run.batch import build_batch
from pinrail_engine.run.table import Table
from pinrail_kernels.paged_attention import Decodes, Prefill, TorchPlan

CPU = torch.device("cpu")
PARAMS = SamplingParams(max_tokens=1)
DECODE = Row("a", 2, 5, 1, True)
FIRST_CHUNK = Row("b", 0, 0, 3, False)
LAST_CHUNK = Row("c", 1, 3, 2, True)


@pytest.fixture
def table() -> Table:
    table = Table(3, 12, 4, CPU)
    begins = (
        Begin("b", 0, [60, 61, 62, 63, 64, 65], 6, PARAMS),
        Begin("c", 1, [70, 71, 72, 73, 74], 5, PARAMS),
        Begin("a", 2, [0, 0, 0, 0, 0, 50], 2, PARAMS),
    )
    table.apply(StepPlan(1, (), begins, (Grown(0, 0, (4, 7)), Grown(1, 0, (0,)), Grown(2, 0, (9, 2)))))
    table.apply(StepPlan(2, (), (), (Grown(1, 1, (1,)),)))
    return table


def test_rows_lie_end_to_end(table: Table) -> None:
    batch = build_batch(StepPlan(3, (DECODE, FIRST_CHUNK, LAST_CHUNK)), table, torch.float32)
    assert batch.token_ids.tolist() == [50, 60, 61, 62, 73, 74]
    assert batch.positions.tolist() == [5, 0, 1, 2, 3, 4]
    assert batch.slots.tolist() == [2 * 4 + 1, 16, 17, 18, 3, 4]
    assert batch.fresh.tolist() == [4, 1]  # the decode goes on in a block that it holds
    assert isinstance(batch.attention, TorchPlan)
    decodes, *chunks = batch.attention.extents
    assert isinstance(decodes, Decodes)
    assert decodes.tables.tolist() == [[9, 2]]
    assert [(c.rows, c.context, c.table.tolist()) for c in chunks if isinstance(c, Prefill)] == [
        (slice(1, 4), 3, [4]),  # its second block is taken, but nothing is in it
        (slice(4, 6), 5, [0, 1]),
    ]


def test_what_a_step_sampled_is_the_next_one_s_input(table: Table) -> None:
    table.put([DECODE, LAST_CHUNK], torch.tensor([51, 75]))
    following = StepPlan(4, (Row("a", 2, 6, 1, True), Row("c", 1, 5, 1, True)))
    assert build_batch(following, table, torch.float32).token_ids.tolist() == [51, 75]
    assert table.draw(following.rows[0]).tokens.tolist() == [0, 0, 0, 0, 0, 50, 51]
    assert table.draw(following.rows[0]).prompt_len == 2


def test_a_token_that_is_none_does_not_break_the_next_step(table: Table) -> None:
    table.put([DECODE], torch.tensor([-1]))
    assert build_batch(StepPlan(4, (Row("a", 2, 6, 1, True),)), table, torch.float32).token_ids.tolist() == [0]


def test_a_request_that_begins_finds_nothing_of_the_one_before(table: Table) -> None:
    greedy = SamplingParams(max_tokens=3, temperature=0)
    table.apply(StepPlan(3, (), (Begin("d", 2, [80, 81], 2, greedy),), (Grown(2, 0, (5,)),)))
    batch = build_batch(StepPlan(3, (Row("d", 2, 0, 2, True),)), table, torch.float32)
    assert (batch.token_ids.tolist(), batch.slots.tolist()) == ([80, 81], [20, 21])
    assert table.draw(Row("d", 2, 0, 2, True)).params is greedy
