"""A reader that asks now and then knows what the cache holds; one that asks too late is told everything."""

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pinrail_engine.core.cache_log import CacheLog
from pinrail_engine.core.kv_blocks import KvBlocks
from pinrail_engine.core.types import CacheEvent, CacheEvents


@dataclass
class Router:
    """What a reader of the log believes."""

    last: int = 0
    content: dict[str, str] = field(default_factory=dict)  # block -> the one before it

    def read(self, events: CacheEvents) -> None:
        if not events.complete:
            self.content.clear()
        for event in events.events:
            if event.kind == "stored":
                assert event.block not in self.content, "stored once"
                self.content[event.block] = event.parent
            elif event.kind == "removed":
                del self.content[event.block]
            else:
                self.content.clear()
        self.last = events.last


def block(n: int) -> bytes:
    return n.to_bytes(4)


def test_events_are_numbered_from_one_and_told_in_order() -> None:
    log = CacheLog()
    log.stored(b"a", b"root")
    log.stored(b"b", b"a")
    log.removed(b"b")
    log.cleared()
    assert log.since(0) == CacheEvents(
        4,
        True,
        (
            CacheEvent(1, "stored", b"a".hex(), b"root".hex()),
            CacheEvent(2, "stored", b"b".hex(), b"a".hex()),
            CacheEvent(3, "removed", b"b".hex()),
            CacheEvent(4, "cleared"),
        ),
    )


@pytest.mark.parametrize(
    ("number", "complete", "numbers"),
    [
        pytest.param(10, True, [], id="the newest is known: nothing"),
        pytest.param(9, True, [10], id="one is missing"),
        pytest.param(6, True, [7, 8, 9, 10], id="all that are remembered"),
        pytest.param(5, False, [0] * 10, id="one is forgotten: the whole content"),
        pytest.param(0, False, [0] * 10, id="many are forgotten"),
        pytest.param(11, False, [0] * 10, id="a number beyond ours, as after a restart"),
        pytest.param(-1, False, [0] * 10, id="none of ours"),
    ],
)
def test_what_comes_after_a_number(number: int, complete: bool, numbers: list[int]) -> None:
    log = CacheLog(kept=4)
    for n in range(10):
        log.stored(block(n), b"")
    events = log.since(number)
    assert (events.last, events.complete, [e.number for e in events.events]) == (10, complete, numbers)


def test_an_empty_log_tells_nothing_and_whoever_comes_from_another_life_starts_anew() -> None:
    assert CacheLog().since(0) == CacheEvents(0, True, ())
    assert CacheLog().since(7) == CacheEvents(0, False, ())


def test_the_whole_content_names_what_came_before_each_block() -> None:
    log = CacheLog(kept=1)
    log.stored(b"a", b"root")
    log.stored(b"b", b"a")
    assert [(e.block, e.parent) for e in log.since(0).events] == [
        (b"a".hex(), b"root".hex()),
        (b"b".hex(), b"a".hex()),
    ]


@settings(max_examples=60, deadline=None)
@given(st.randoms(use_true_random=False), st.sampled_from([1, 5, 1_000]))
def test_a_router_that_replays_the_events_knows_the_content_at_any_time(dice: random.Random, kept: int) -> None:
    kv = KvBlocks(8, 1, log=CacheLog(kept))
    tables: list[list[int]] = [[], []]
    router, seldom = Router(), Router()
    for _ in range(80):
        table = dice.choice(tables)
        if dice.random() < 0.5 and kv.grow(table, len(table) + 1):
            kv.publish(table[-1], block(dice.randrange(20)), b"")
        elif dice.random() < 0.9:
            kv.release(table)
        else:
            kv.clear()
        for reader, often in ((router, 1.0), (seldom, 0.1)):
            if dice.random() < often:
                reader.read(kv.log.since(reader.last))
                assert set(reader.content) == {name.hex() for name in kv.log.content}
        assert all(bool(kv.find([block(n)])) == (block(n) in kv.log.content) for n in range(20))
