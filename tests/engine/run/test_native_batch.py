"""A plan laid out end to end for the CPU kernels, its tokens and blocks read from the table."""

import numpy as np
import pytest

from pinrail_engine.core.plan import Begin, Grown, Row, StepPlan
from pinrail_engine.core.types import SamplingParams
from pinrail_engine.run.native_batch import build_batch, last_rows
from pinrail_engine.run.native_table import NativeTable
from pinrail_kernels.native import Batch

PARAMS = SamplingParams(max_tokens=1)
DECODE = Row("a", 2, 5, 1, True)
FIRST_CHUNK = Row("b", 0, 0, 3, False)
LAST_CHUNK = Row("c", 1, 3, 2, True)
KV = np.zeros((1, 10, 8), np.float32)


@pytest.fixture
def table() -> NativeTable:
    table = NativeTable(3, 12, 4)
    begins = (
        Begin("b", 0, [60, 61, 62, 63, 64, 65], 6, PARAMS),
        Begin("c", 1, [70, 71, 72, 73, 74], 4, PARAMS),
        Begin("a", 2, [0, 0, 0, 0, 0, 50], 2, PARAMS),
    )
    table.apply(StepPlan(1, (), begins, (Grown(0, 0, (4, 3)), Grown(1, 0, (0, 1)), Grown(2, 0, (9,)))))
    table.apply(StepPlan(2, (), (), (Grown(2, 1, (2,)),)))
    return table


def batch_of(table: NativeTable, *rows: Row) -> Batch:
    return build_batch(StepPlan(3, rows), table, KV)


def test_rows_lie_end_to_end(table: NativeTable) -> None:
    batch = batch_of(table, DECODE, FIRST_CHUNK, LAST_CHUNK)
    assert batch.tokens.tolist() == [50, 60, 61, 62, 73, 74]
    assert batch.positions.tolist() == [5, 0, 1, 2, 3, 4]
    assert batch.sequences.tolist() == [[0, 5, 1, 2], [1, 0, 3, 0], [4, 3, 2, 1]]
    assert batch.tables[[2, 0, 1], :2].tolist() == [[9, 2], [4, 3], [0, 1]]
    assert all(a.dtype == np.int32 and a.flags.c_contiguous for a in (batch.tokens, batch.positions, batch.sequences))


def test_tokens_are_chosen_after_the_last_row_of_those_that_sample() -> None:
    assert last_rows(StepPlan(3, (DECODE, FIRST_CHUNK, LAST_CHUNK))).tolist() == [0, 5]


def test_what_a_step_sampled_is_the_next_one_s_input(table: NativeTable) -> None:
    table.put([DECODE, LAST_CHUNK], np.array([51, 75]))
    following = (Row("a", 2, 6, 1, True), Row("c", 1, 5, 1, True))
    assert batch_of(table, *following).tokens.tolist() == [51, 75]
    assert table.draw(following[0]).tokens.tolist() == [0, 0, 0, 0, 0, 50, 51]
    assert table.draw(following[0]).prompt_len == 2


def test_a_token_that_is_none_does_not_break_the_next_step(table: NativeTable) -> None:
    table.put([DECODE], np.array([-1]))
    assert batch_of(table, Row("a", 2, 6, 1, True)).tokens.tolist() == [0]


def test_a_request_that_begins_finds_nothing_of_the_one_before(table: NativeTable) -> None:
    greedy = SamplingParams(max_tokens=3, temperature=0)
    table.apply(StepPlan(3, (), (Begin("d", 2, [80, 81], 2, greedy),), (Grown(2, 0, (5,)),)))
    batch = batch_of(table, Row("d", 2, 0, 2, True))
    assert (batch.tokens.tolist(), batch.tables[2, 0]) == ([80, 81], 5)
    assert table.draw(Row("d", 2, 0, 2, True)).params is greedy
