"""The free list, and that every block is in exactly one place after any history."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pinrail_engine.core.kv_blocks import KvBlocks


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 0), (1, 1), (16, 1), (17, 2), (32, 2)])
def test_a_started_block_counts_whole(tokens: int, blocks: int) -> None:
    assert KvBlocks(8, 16).blocks_for(tokens) == blocks


def test_a_table_that_does_not_fit_stays_as_it_was() -> None:
    kv = KvBlocks(3, 4)
    table: list[int] = []
    assert kv.grow(table, 8)
    assert not kv.grow(table, 20)
    assert (len(table), kv.free, kv.live) == (2, 1, 2)


def test_growing_inside_the_last_block_takes_none() -> None:
    kv = KvBlocks(3, 4)
    table: list[int] = []
    kv.grow(table, 1)
    assert kv.grow(table, 4)
    assert len(table) == 1


def test_a_table_is_found_out_when_it_shares_a_block() -> None:
    kv = KvBlocks(3, 4)
    table: list[int] = []
    kv.grow(table, 5)
    with pytest.raises(AssertionError, match="not 3 distinct"):
        kv.check([table, table])


@pytest.mark.parametrize(("total", "size"), [(0, 16), (4, 0)])
def test_an_empty_cache_is_refused(total: int, size: int) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        KvBlocks(total, size)


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 40)), max_size=60))
def test_every_block_is_free_or_in_one_table(history: list[tuple[int, int]]) -> None:
    """0 tokens stands for a release."""
    kv = KvBlocks(12, 4)
    tables: list[list[int]] = [[], [], [], []]
    for who, tokens in history:
        if tokens == 0:
            kv.release(tables[who])
        else:
            kv.grow(tables[who], tokens)
        kv.check(tables)
