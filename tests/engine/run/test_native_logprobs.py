"""Log-probabilities in numpy: against the definition in torch, their order among equals, and chunks of a prompt."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from pinrail_engine.core.types import TokenLogprobs
from pinrail_engine.run import logprobs as by_torch
from pinrail_engine.run.native_logprobs import bound, in_chunks, logprobs

Logits = NDArray[np.float32]


def rows(n: int, vocab: int, seed: int = 0) -> Logits:
    return np.random.default_rng(seed).standard_normal((n, vocab), np.float32) * np.float32(3)


def of(row: Logits, token: int, wanted: int) -> TokenLogprobs:
    (told,) = logprobs(row[None], np.array([token]), [wanted])
    assert told is not None
    return told


@settings(max_examples=150, deadline=None)
@given(
    st.integers(1, 70) | st.sampled_from([1023, 1025, 3000, 49_152]),
    st.integers(0, 25),
    st.integers(0, 50),
    st.booleans(),
)
def test_they_are_those_of_torch_in_order(vocab: int, wanted: int, seed: int, has_equals: bool) -> None:
    row = rows(1, vocab, seed)[0]
    row = row.round() if has_equals else row
    token = seed % vocab
    (theirs,) = by_torch.logprobs(torch.from_numpy(row[None]), torch.tensor([token]), [wanted])
    reference = torch.from_numpy(row).double().log_softmax(0)
    told = of(row, token, wanted)
    assert theirs is not None
    assert told.rank == theirs.rank
    assert [t for t, _ in told.top] == [t for t, _ in theirs.top]
    assert told.logprob == pytest.approx(float(reference[token]), abs=1e-6)
    assert [value for _, value in told.top] == pytest.approx([float(reference[t]) for t, _ in told.top], abs=1e-6)


def test_rank_is_the_place_in_top() -> None:
    row = np.array([1.0, 2.0, 2.0, 0.0, 2.0], np.float32)
    for place, token in enumerate([1, 2, 4, 0, 3], 1):
        told = of(row, token, 5)
        assert told.rank == place
        assert told.top[place - 1] == (token, told.logprob)


def test_what_is_impossible_has_minus_infinity() -> None:
    told = of(np.array([0.0, -math.inf, 0.0], np.float32), 1, 3)
    half = pytest.approx(-math.log(2))
    assert told == (-math.inf, 3, ((0, half), (2, half), (1, -math.inf)))


def test_large_logits_overflow_nothing() -> None:
    assert of(np.array([3e38, 3e38, -3e38], np.float32), 0, 0).logprob == pytest.approx(-math.log(2))


def test_more_than_there_are_is_all() -> None:
    assert len(of(np.zeros(3, np.float32), 0, 20).top) == 3


def test_they_are_numbers_of_python() -> None:
    """Which JSON can tell, and which compare as equal."""
    told = of(rows(1, 40)[0], 3, 2)
    assert [type(x) for x in (told.logprob, told.rank, *told.top[0])] == [float, int, int, float]


def test_only_rows_that_ask_are_told() -> None:
    logits = rows(4, 9)
    before = logits.copy()
    told = logprobs(logits, np.array([1, 2, 3, -1]), [None, 0, 2, 5])
    assert [None if one is None else len(one.top) for one in told] == [None, 0, 2, None]
    assert logprobs(logits, np.array([1, 2, 3, 4]), [None] * 4) == [None] * 4
    assert logprobs(logits[:0], np.zeros(0, np.int64), []) == []
    assert np.array_equal(logits, before)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_broken_row_leaves_its_neighbours_alone(bad: float) -> None:
    logits = rows(3, 90)
    whole = logprobs(logits, np.array([1, 2, 3]), [3, 3, 3])
    logits[1] = bad
    assert logprobs(logits, np.array([1, -1, 3]), [3, 3, 3]) == [whole[0], None, whole[2]]
    told = in_chunks(np.arange(3, dtype=np.int32), lambda some: logits[some], np.array([1, 2, 3], np.int32), 3)
    assert [told[0], None, told[2]] == [whole[0], None, whole[2]]
    assert math.isnan(told[1].logprob)


@pytest.mark.parametrize("vocab", [7, 1025, 50_257])
def test_they_depend_on_no_neighbours(vocab: int) -> None:
    logits = rows(5, vocab)
    assert logprobs(logits, np.arange(5), [4] * 5) == [of(logits[i].copy(), i, 4) for i in range(5)]


@pytest.mark.parametrize("k", [1, 5, 62, 63, 900, 1000])
def test_the_bound_is_reached_by_k(k: int) -> None:
    for row in (rows(1, 1000)[0], rows(1, 1000)[0].round(), np.zeros(1000, np.float32)):
        assert k <= np.count_nonzero(row >= bound(row, k))


class Head:
    """A matrix of logits that remembers how many rows it was asked for at a time."""

    def __init__(self, n: int, vocab: int) -> None:
        self.logits = rows(n, vocab, 1)
        self.given: list[int] = []

    def __call__(self, some: NDArray[np.int32]) -> Logits:
        self.given.append(len(some))
        return self.logits[some]


@pytest.mark.parametrize(("n", "given_"), [(0, []), (1, [1]), (64, [64]), (65, [64, 1]), (200, [64, 64, 64, 8])])
def test_a_prompt_takes_a_chunks_logits_at_a_time(n: int, given_: list[int]) -> None:
    head, tokens = Head(n + 3, 30), np.arange(n, dtype=np.int32) % 30
    told = in_chunks(np.arange(3, n + 3, dtype=np.int32), head, tokens, 3)
    assert head.given == given_
    assert told == [of(head.logits[3 + i], int(tokens[i]), 3) for i in range(n)]


def test_chunks_are_as_long_as_asked() -> None:
    head = Head(10, 30)
    in_chunks(np.arange(10, dtype=np.int32), head, np.zeros(10, np.int32), 0, chunk=4)
    assert head.given == [4, 4, 2]
