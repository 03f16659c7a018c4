"""Log-probabilities against torch's, their order among equals, and how much memory a prompt's take."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pinrail_engine.core.types import TokenLogprobs
from pinrail_engine.run.logprobs import in_chunks, logprobs


def rows(n: int, vocab: int, seed: int = 0) -> Tensor:
    return torch.randn(n, vocab, generator=torch.Generator().manual_seed(seed)) * 3


def of(row: Tensor, token: int, wanted: int) -> TokenLogprobs:
    (told,) = logprobs(row[None], torch.tensor([token]), [wanted])
    assert told is not None
    return told


@settings(max_examples=80, deadline=None)
@given(st.integers(1, 70) | st.sampled_from([1023, 1025, 3000]), st.integers(0, 25), st.integers(0, 50), st.booleans())
def test_they_are_those_of_torch_in_order(vocab: int, wanted: int, seed: int, has_equals: bool) -> None:
    row = rows(1, vocab, seed)[0]
    row = row.round() if has_equals else row
    token = seed % vocab
    reference = row.double().log_softmax(0)
    order = row.sort(descending=True, stable=True).indices.tolist()
    told = of(row, token, wanted)
    assert told.logprob == pytest.approx(float(reference[token]), abs=1e-6)
    assert told.rank == 1 + order.index(token)
    assert [t for t, _ in told.top] == order[:wanted]
    assert [value for _, value in told.top] == pytest.approx([float(reference[t]) for t in order[:wanted]], abs=1e-6)


def test_rank_is_the_place_in_top() -> None:
    row = torch.tensor([1.0, 2.0, 2.0, 0.0, 2.0])
    for place, token in enumerate([1, 2, 4, 0, 3], 1):
        told = of(row, token, 5)
        assert told.rank == place
        assert told.top[place - 1] == (token, told.logprob)


def test_what_is_impossible_has_minus_infinity() -> None:
    told = of(torch.tensor([0.0, -math.inf, 0.0]), 1, 3)
    assert told.logprob == -math.inf
    assert told.rank == 3
    assert told.top == (
        (0, pytest.approx(-math.log(2))),
        (2, pytest.approx(-math.log(2))),
        (1, -math.inf),
    )


def test_large_logits_overflow_nothing() -> None:
    told = of(torch.tensor([3e38, 3e38, -3e38]), 0, 0)
    assert told.logprob == pytest.approx(-math.log(2))


def test_more_than_there_are_is_all() -> None:
    assert len(of(torch.zeros(3), 0, 20).top) == 3


def test_only_rows_that_ask_are_told() -> None:
    logits = rows(4, 9)
    before = logits.clone()
    told = logprobs(logits, torch.tensor([1, 2, 3, -1]), [None, 0, 2, 5])
    assert [None if one is None else len(one.top) for one in told] == [None, 0, 2, None]
    assert logprobs(logits, torch.tensor([1, 2, 3, 4]), [None] * 4) == [None] * 4
    assert logprobs(logits[:0], torch.zeros(0, dtype=torch.int64), []) == []
    assert torch.equal(logits, before)


def test_a_broken_row_leaves_its_neighbours_alone() -> None:
    logits = rows(3, 9)
    whole = logprobs(logits, torch.tensor([1, 2, 3]), [3, 3, 3])
    logits[1] = math.nan
    told = logprobs(logits, torch.tensor([1, -1, 3]), [3, 3, 3])
    assert told == [whole[0], None, whole[2]]


@pytest.mark.parametrize("vocab", [7, 1025, 50_257])
def test_they_depend_on_neither_neighbours_nor_threads(vocab: int) -> None:
    logits, tokens = rows(5, vocab), torch.arange(5)
    before = torch.get_num_threads()
    results = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        results.append(logprobs(logits, tokens, [4] * 5))
        results.append([of(logits[i], i, 4) for i in range(5)])
    torch.set_num_threads(before)
    assert results[0] == results[1] == results[2] == results[3]


class Head:
    """A matrix that remembers how many rows it was given at a time."""

    def __init__(self, hidden: int, vocab: int) -> None:
        self.matrix = rows(hidden, vocab, 1)
        self.given: list[int] = []

    def __call__(self, hidden: Tensor) -> Tensor:
        self.given.append(hidden.shape[0])
        return hidden @ self.matrix


@pytest.mark.parametrize(("n", "given_"), [(0, []), (1, [1]), (64, [64]), (65, [64, 1]), (200, [64, 64, 64, 8])])
def test_a_prompt_takes_a_chunks_logits_at_a_time(n: int, given_: list[int]) -> None:
    head, hidden, tokens = Head(8, 30), rows(n, 8), torch.arange(n) % 30
    told = in_chunks(hidden, head, tokens, 3)
    assert head.given == given_
    reference = (hidden @ head.matrix).log_softmax(-1)
    assert [one.logprob for one in told] == pytest.approx([float(reference[i, tokens[i]]) for i in range(n)], abs=1e-4)
    assert all(len(one.top) == 3 for one in told)


def test_chunks_are_as_long_as_asked() -> None:
    head = Head(8, 30)
    in_chunks(rows(10, 8), head, torch.zeros(10, dtype=torch.int32), 0, chunk=4)
    assert head.given == [4, 4, 2]
