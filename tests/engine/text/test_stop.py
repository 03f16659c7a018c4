"""Stop strings: equal to the naive definition however the text is cut, and never more held back than needed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinrail_engine.text.stop import StopMatcher

LETTERS = st.text("ab", max_size=30)
STOPS = st.lists(st.text("ab", min_size=1, max_size=5), max_size=4)


def naive(text: str, stops: list[str], start: int = 0) -> tuple[str, str | None]:
    """The first match that ends after `start`."""
    for end in range(start + 1, len(text) + 1):
        whole = [stop for stop in stops if text[:end].endswith(stop)]
        if whole:
            longest = max(whole, key=len)
            return text[: end - len(longest)], longest
    return text, None


def held_back(text: str, stops: list[str]) -> int:
    sizes = [n for stop in stops for n in range(1, len(stop)) if text.endswith(stop[:n])]
    return max(sizes, default=0)


@given(st.lists(LETTERS, max_size=8), STOPS)
def test_equals_the_naive_definition_at_every_cut(pieces: list[str], stops: list[str]) -> None:
    matcher, sent, seen = StopMatcher(stops), "", ""
    for piece in pieces:
        seen += piece
        sent += matcher.push(piece)
        wanted, stop = naive(seen, stops)
        assert matcher.matched == stop
        if stop is not None:
            assert sent == wanted
            return
        assert len(seen) - len(sent) == held_back(seen, stops)
        assert seen.startswith(sent)
    assert sent + matcher.flush() == seen


@pytest.mark.parametrize(
    ("pieces", "stops", "sent", "matched"),
    [
        pytest.param(["A", "BC", "DEF"], ["DEFGHIJ"], ["A", "BC", ""], None, id="holds only a prefix of the stop"),
        pytest.param(["x", "DE", "FG", "HIJ"], ["DEFGHIJ"], ["x", "", "", ""], "DEFGHIJ", id="split over three"),
        pytest.param(["xab"], ["ab", "b"], ["x"], "ab", id="two end together: the longest"),
        pytest.param(["xaby"], ["aby", "b"], ["xa"], "b", id="the one that ends first"),
        pytest.param(["\n\n", "z"], ["\n\n"], [""], "\n\n", id="is the first token"),
        pytest.param(["a世", "界b"], ["世界"], ["a", ""], "世界", id="multi-byte"),
        pytest.param(["aab", "aac"], ["aabaac"], ["", ""], "aabaac", id="overlaps itself"),
    ],
)
def test_edges(pieces: list[str], stops: list[str], sent: list[str], matched: str | None) -> None:
    matcher = StopMatcher(stops)
    got = []
    for piece in pieces:
        got.append(matcher.push(piece))
        if matcher.matched is not None:
            break
    assert (got, matcher.matched) == (sent, matched)


@given(st.lists(LETTERS, max_size=8), st.lists(LETTERS, max_size=8), STOPS)
def test_no_match_ends_in_text_that_may_not_stop(before: list[str], after: list[str], stops: list[str]) -> None:
    matcher, sent = StopMatcher(stops), ""
    for piece in before:
        sent += matcher.push(piece, may_stop=False)
        assert matcher.matched is None
    start, seen = len("".join(before)), "".join(before)
    for piece in after:
        sent += matcher.push(piece)
        seen += piece
        wanted, stop = naive(seen, stops, start)
        assert matcher.matched == stop
        if stop is not None:
            assert sent == wanted
            return
    assert sent + matcher.flush() == seen
