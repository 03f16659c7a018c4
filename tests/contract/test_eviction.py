"""Which models go: the table in `evictions`' docstring, then what must hold for every cache."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinrail_contract.errors import CacheError
from pinrail_contract.eviction import Bounds, Cached, evictions


def model(name: str, size: int = 10, used: float = 0.0, *, missing: int = 0, in_use: bool = False) -> Cached:
    return Cached(name=name, size=size, missing=missing, last_used=used, is_in_use=in_use)


NEW = model("new", missing=10, in_use=True)
OLD, NEWER, BUSY = model("old", used=1), model("newer", used=2), model("busy", in_use=True)
HALF = model("half", used=3, missing=5)  # its pod died while it was fetched


@pytest.mark.parametrize(
    ("others", "size", "free", "removed"),
    [
        pytest.param([OLD, NEWER], 30, 10, [], id="all fit: none goes"),
        pytest.param([NEWER, OLD], 29, 10, ["old"], id="one byte too much: the oldest goes"),
        pytest.param([NEWER, OLD, BUSY], 29, 10, ["old", "newer"], id="as many as it takes"),
        pytest.param([NEWER, OLD], 99, 9, ["old"], id="the disk is smaller than the bound: its bytes count"),
        pytest.param([HALF, NEWER], 99, 14, ["newer"], id="what is yet to be written needs room too"),
        pytest.param([HALF], 99, 9, ["half"], id="removing a half one frees what it has, and what it lacks"),
    ],
)
def test_the_least_recently_used_go_until_the_model_fits(
    others: list[Cached], size: int, free: int, removed: list[str]
) -> None:
    assert [m.name for m in evictions(NEW, others, Bounds(size=size, free=free))] == removed


@pytest.mark.parametrize(
    ("others", "size", "free", "words"),
    [
        pytest.param([BUSY, OLD], 19, 99, "new: it takes 10 bytes beside 10 of 1 model in use, and spec.model.cache."
                     "maxSize is 19, want 20 or above", id="bound"),
        pytest.param([BUSY], 99, 9, "10 are yet to be written, and the disk has 9 left for them", id="disk"),
    ],
)  # fmt: skip
def test_what_cannot_fit_beside_those_in_use_is_refused_in_figures(
    others: list[Cached], size: int, free: int, words: str
) -> None:
    with pytest.raises(CacheError) as caught:
        evictions(NEW, others, Bounds(size=size, free=free))
    assert words in str(caught.value)


@st.composite
def models(draw: st.DrawFn) -> Cached:
    size = draw(st.integers(0, 20))
    missing = draw(st.integers(0, size))
    name = draw(st.uuids().map(str))
    return model(name, size, draw(st.integers(0, 5)), missing=missing, in_use=draw(st.booleans()))


@given(others=st.lists(models(), max_size=8), bound=st.integers(0, 120), free=st.integers(0, 120))
def test_what_goes_is_idle_oldest_first_and_no_more_than_it_takes(others: list[Cached], bound: int, free: int) -> None:
    def fits(gone: list[Cached]) -> bool:
        kept = [NEW, *(m for m in others if m not in gone)]
        freed = sum(m.size - m.missing for m in gone)
        return sum(m.size for m in kept) <= bound and sum(m.missing for m in kept) <= free + freed

    idle = sorted((m for m in others if not m.is_in_use), key=lambda m: (m.last_used, m.name))
    try:
        gone = list(evictions(NEW, others, Bounds(size=bound, free=free)))
    except CacheError:
        assert not fits(idle), "all that may go would have been enough"
        return
    assert gone == idle[: len(gone)]
    assert fits(gone)
    assert not gone or not fits(gone[:-1])
