"""Live, cached and free blocks: what is found, what is given away first, and that the books balance."""

import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pinrail_engine.core.kv_blocks import KvBlocks


def named(*numbers: int) -> list[bytes]:
    return [bytes([n]) for n in numbers]


def hold(kv: KvBlocks, names: Sequence[bytes]) -> list[int]:
    """A table of one block per name, whose content is complete."""
    table: list[int] = []
    assert kv.grow(table, len(names) * kv.block_size)
    for block, name, parent in zip(table, names, [b"root", *names], strict=False):
        kv.publish(block, name, parent)
    return table


def states(kv: KvBlocks) -> tuple[int, int, int]:
    return kv.live, kv.cached, kv.free


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 0), (1, 1), (16, 1), (17, 2), (32, 2)])
def test_a_started_block_counts_whole(tokens: int, blocks: int) -> None:
    assert KvBlocks(8, 16).blocks_for(tokens) == blocks


@pytest.mark.parametrize(("total", "size"), [(0, 16), (4, 0)])
def test_an_empty_cache_is_refused(total: int, size: int) -> None:
    with pytest.raises(ValueError, match=f"got {total} blocks of {size} tokens, want at least 1"):
        KvBlocks(total, size)


def test_a_table_that_does_not_fit_stays_as_it_was() -> None:
    kv = KvBlocks(3, 4)
    table: list[int] = []
    assert kv.grow(table, 8)
    assert not kv.grow(table, 20)
    assert (len(table), *states(kv)) == (2, 2, 0, 1)


def test_growing_inside_the_last_block_takes_none() -> None:
    kv = KvBlocks(3, 4)
    table: list[int] = []
    kv.grow(table, 1)
    assert kv.grow(table, 4)
    assert len(table) == 1


def test_the_last_block_can_be_taken() -> None:
    kv = KvBlocks(3, 4)
    assert kv.grow([], 12)
    assert kv.available == 0


def test_a_block_is_live_then_cached_and_free_where_nobody_can_find_it() -> None:
    kv = KvBlocks(4, 4)
    table = hold(kv, named(1))
    kv.grow(table, 8)
    assert states(kv) == (2, 0, 2)
    kv.release(table)
    assert (table, *states(kv)) == ([], 0, 1, 3)


def test_the_longest_head_is_found() -> None:
    kv = KvBlocks(8, 4)
    table = hold(kv, named(1, 2, 4))
    assert kv.find(named(1, 2, 3, 4)) == table[:2]
    assert kv.find(named(3)) == []


def test_a_shared_block_is_held_until_both_have_given_it_up() -> None:
    kv = KvBlocks(4, 4)
    one = hold(kv, named(1, 2))
    other: list[int] = []
    kv.share(other, kv.find(named(1)))
    kv.release(one)
    assert states(kv) == (1, 1, 2)
    kv.release(other)
    assert states(kv) == (0, 2, 2)
    kv.check([one, other])


def test_sharing_a_cached_block_takes_it_from_those_available_and_sharing_a_live_one_does_not() -> None:
    kv = KvBlocks(4, 4)
    table = hold(kv, named(1, 2))
    found = kv.find(named(1, 2))
    assert kv.unheld(found) == 0
    kv.release(table)
    assert kv.unheld(found) == 2
    kv.share(table, found)
    assert states(kv) == (2, 0, 2)


def test_only_a_tables_beginning_is_shared() -> None:
    kv = KvBlocks(4, 4)
    table = hold(kv, named(1))
    with pytest.raises(AssertionError, match="beginning"):
        kv.share(table, [table[0]])


def test_free_blocks_are_used_before_cached_ones() -> None:
    kv = KvBlocks(4, 4)
    cached = hold(kv, named(1, 2))
    kv.release(cached)
    kv.grow([], 8)
    assert (len(kv.find(named(1, 2))), kv.evicted) == (2, 0)


def test_of_cached_blocks_the_longest_unused_goes_first_and_a_prefix_outlives_what_follows_it() -> None:
    kv = KvBlocks(4, 4)
    for name in (1, 3):
        kv.release(hold(kv, named(name, name + 1)))
    kv.release(_share(kv, named(1, 2)))  # used again, so that 3 and 4 are unused for longest
    lost = []
    for _ in range(4):
        kv.grow([], 4)
        lost.append(next(n for n in (4, 3, 2, 1) if n not in lost and not kv.find(named(n))))
    assert (lost, kv.evicted) == ([4, 3, 2, 1], 4)


def _share(kv: KvBlocks, names: Sequence[bytes]) -> list[int]:
    table: list[int] = []
    kv.share(table, kv.find(names))
    return table


def test_what_was_used_for_something_else_is_not_found() -> None:
    kv = KvBlocks(1, 4)
    kv.release(hold(kv, named(1)))
    kv.grow([], 4)
    assert kv.find(named(1)) == []


def test_of_two_with_the_same_content_the_first_stays_the_one_to_be_found() -> None:
    kv = KvBlocks(4, 4)
    one, other = hold(kv, named(1)), hold(kv, named(1))
    assert kv.find(named(1)) == one
    kv.release(other)
    assert states(kv) == (1, 0, 3), "the second is worth nothing"
    assert kv.find(named(1)) == one
    kv.check([one])


def test_a_block_keeps_its_first_name() -> None:
    kv = KvBlocks(4, 4)
    table = hold(kv, named(1))
    kv.publish(table[0], b"other", b"root")
    assert (kv.find([b"other"]), kv.find(named(1))) == ([], table)


def test_only_who_holds_a_block_can_publish_it() -> None:
    with pytest.raises(AssertionError, match="only who holds"):
        KvBlocks(4, 4).publish(0, b"x", b"root")


def test_what_is_cleared_is_not_found_and_what_is_live_stays_so() -> None:
    kv = KvBlocks(4, 4)
    kv.release(hold(kv, named(1)))
    table = hold(kv, named(2))
    kv.clear()
    assert (kv.find(named(1)), kv.find(named(2)), *states(kv)) == ([], [], 1, 0, 3)
    kv.check([table])
    kv.release(table)
    assert states(kv) == (0, 0, 4)


def test_a_table_is_found_out_when_it_holds_a_block_that_is_anothers() -> None:
    kv = KvBlocks(3, 4)
    table: list[int] = []
    kv.grow(table, 5)
    with pytest.raises(AssertionError, match="holders are not those of the tables"):
        kv.check([table, table])


def test_a_lost_block_is_found_out() -> None:
    kv = KvBlocks(3, 4)
    kv.grow([], 4)
    with pytest.raises(AssertionError, match="holders"):
        kv.check([])


@settings(max_examples=60, deadline=None)
@given(st.randoms(use_true_random=False))
def test_the_books_balance_after_any_history(dice: random.Random) -> None:
    """Tables share, grow, publish and go; a plain model says what is held, and what can be found is what was put in."""
    kv = KvBlocks(12, 1)
    tables: list[list[int]] = [[], [], [], []]
    content: dict[int, bytes] = {}  # what each block holds
    for step in range(60):
        table = dice.choice(tables)
        if not table and dice.random() < 0.5:
            kv.share(table, kv.find([bytes([n]) for n in range(dice.randint(0, 4))]))
        elif dice.random() < 0.6:
            before = len(table)
            if kv.grow(table, before + dice.randint(1, 3)):
                for i in range(before, len(table)):
                    content[table[i]] = bytes([i]) if dice.random() < 0.7 else b"private %d" % step
                    kv.publish(table[i], content[table[i]], b"")
        elif dice.random() < 0.95:
            kv.release(table)
        else:
            kv.clear()
        kv.check(tables)
        held = {block for its in tables for block in its}
        assert (kv.live, kv.cached + kv.free) == (len(held), 12 - len(held))
        assert all(content[block] == name for name in content.values() for block in kv.find([name]))
