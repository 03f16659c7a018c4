"""What is said of pods that fetch their model: tenths that never fall, and one sentence for all of them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from operator_builders import manifest, observed, pod

from pinrail_operator.fetching import advanced, fetching_pods, progress

A, B = pod("a", is_fetching=True), pod("b", is_fetching=True)


@given(st.lists(st.one_of(st.none(), st.floats(0, 1)), min_size=1, max_size=50))
def test_a_fetch_is_told_of_at_most_ten_times_more_and_never_goes_back(shares: list[float | None]) -> None:
    known: dict[str, int] = {}
    told = []
    for share in shares:
        known = advanced(known, {} if share is None else {"a": share}, (A,))
        told.append(known.get("a", -1))
    assert told == sorted(told)
    assert len(set(told)) <= 12
    assert max(told) == max([int(s * 10) for s in shares if s is not None], default=-1)


def test_who_does_not_fetch_is_not_told_of() -> None:
    assert advanced({"a": 4, "gone": 9}, {"a": 0.5, "other": 1.0}, (A, B)) == {"a": 5}


def test_pods_of_the_wanted_revision_that_fetch_are_found() -> None:
    seen = observed(pods=(B, A, pod("c"), pod("d", revision="old", is_fetching=True)))
    assert [p.name for p in fetching_pods(seen, A.revision)] == ["a", "b"]
    assert fetching_pods(seen, "") == ()


@pytest.mark.parametrize(
    ("pods", "tenths", "said"),
    [
        ((), {}, ""),
        ((A,), {}, "pod a is fetching or checking its model"),
        ((A,), {"a": 0}, "pod a is fetching its model: 0 % of 271 MB"),
        ((A,), {"a": 10}, "pod a is fetching its model: 100 % of 271 MB"),
        ((A, B), {}, "2 pods are fetching or checking the model"),
        ((A, B), {"a": 7, "b": 4}, "2 pods are fetching the model: the slowest fetch has 40 % of 271 MB"),
        ((A, B), {"a": 7}, "2 pods are fetching or checking the model: the slowest fetch has 70 % of 271 MB"),
    ],
)
def test_one_sentence_for_all(pods: tuple[object, ...], tenths: dict[str, int], said: str) -> None:
    assert progress(pods, tenths, manifest()) == said  # type: ignore[arg-type]
