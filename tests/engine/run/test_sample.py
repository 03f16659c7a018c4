"""The fast path against the definition, the distribution, and that nothing but seed and position matters."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pinrail_engine.core.types import SamplingParams
from pinrail_engine.run.sample import Draw, sample, sample_ref, uniform

PARAMS = {
    "greedy": SamplingParams(max_tokens=1, temperature=0),
    "plain": SamplingParams(max_tokens=1, temperature=1.0),
    "hot": SamplingParams(max_tokens=1, temperature=1.7),
    "top-k": SamplingParams(max_tokens=1, top_k=5),
    "top-k of more than there are": SamplingParams(max_tokens=1, top_k=10**6),
    "top-p": SamplingParams(max_tokens=1, top_p=0.9),
    "top-p that needs a sort": SamplingParams(max_tokens=1, temperature=3.0, top_p=0.999),
    "tiny top-p": SamplingParams(max_tokens=1, top_p=1e-6),
    "both": SamplingParams(max_tokens=1, temperature=0.7, top_k=50, top_p=0.8),
}


def logits(vocab: int, seed: int = 0) -> Tensor:
    return torch.randn(vocab, generator=torch.Generator().manual_seed(seed)) * 2


def draw(params: SamplingParams, position: int, seed: int = 0) -> Draw:
    return Draw(replace(params, seed=seed), position)


@pytest.mark.parametrize("vocab", [1, 7, 1024, 5000])
@pytest.mark.parametrize("params", PARAMS.values(), ids=PARAMS.keys())
def test_matches_the_definition(params: SamplingParams, vocab: int) -> None:
    """200 draws of one distribution; float32 sums may move a boundary by about 1e-6, which none of these is near."""
    row = logits(vocab)
    draws = [draw(params, position) for position in range(200)]
    assert sample(row.expand(200, -1), draws) == [sample_ref(row, d) for d in draws]


@pytest.mark.parametrize("params", PARAMS.values(), ids=PARAMS.keys())
def test_equal_logits_are_cut_at_the_lower_id(params: SamplingParams) -> None:
    row = logits(40).round()  # a handful of values, each many times
    draws = [draw(params, position) for position in range(100)]
    assert sample(row.expand(100, -1), draws) == [sample_ref(row, d) for d in draws]


def test_a_token_does_not_depend_on_its_neighbours() -> None:
    rows = torch.stack([logits(3000, seed) for seed in range(9)])
    draws = [draw(params, 5, seed=i) for i, params in enumerate(PARAMS.values())]
    alone = [sample(rows[i : i + 1], [d])[0] for i, d in enumerate(draws)]
    assert sample(rows, draws) == alone
    assert sample(rows.flip(0), draws[::-1]) == alone[::-1]


def test_frequencies_are_the_probabilities() -> None:
    row = torch.tensor([0.1, 0.2, 0.3, 0.4]).log()
    n = 4000
    tokens = sample(row.expand(n, -1), [draw(PARAMS["plain"], position) for position in range(n)])
    for token, p in enumerate((0.1, 0.2, 0.3, 0.4)):
        assert tokens.count(token) / n == pytest.approx(p, abs=4 * math.sqrt(p * (1 - p) / n))


@pytest.mark.parametrize(
    "params", [SamplingParams(max_tokens=1, top_k=2), SamplingParams(max_tokens=1, top_p=0.65)], ids=["top-k", "top-p"]
)
def test_nothing_outside_the_cut_is_ever_drawn(params: SamplingParams) -> None:
    row = torch.tensor([0.1, 0.2, 0.3, 0.4]).log()
    assert set(sample(row.expand(200, -1), [draw(params, i) for i in range(200)])) == {2, 3}


def test_what_reaches_top_p_exactly_is_enough() -> None:
    params = SamplingParams(max_tokens=1, top_p=0.5)
    assert set(sample(torch.zeros(50, 2), [draw(params, i) for i in range(50)])) == {0}


def test_a_token_that_cannot_be_is_never_drawn() -> None:
    row = torch.full((2000,), -math.inf)
    row[1500] = row[3] = 0.0
    tokens = sample(row.expand(100, -1), [draw(PARAMS["plain"], i) for i in range(100)])
    assert set(tokens) == {3, 1500}


def test_a_broken_forward_pass_is_not_sampled_from() -> None:
    with pytest.raises(FloatingPointError, match="no finite maximum"):
        sample(torch.tensor([[0.0, math.nan]]), [draw(PARAMS["greedy"], 0)])


def test_no_rows_need_no_logits() -> None:
    assert sample(torch.zeros(0, 5), []) == []


@settings(max_examples=100)
@given(st.integers(-(2**70), 2**70), st.integers(0, 2**24))
def test_uniform_is_a_function_into_0_to_1(seed: int, position: int) -> None:
    u = uniform(seed, position)
    assert 0 <= u < 1
    assert u == uniform(seed, position)


def test_uniforms_of_neighbours_are_unlike() -> None:
    values = [uniform(seed, position) for seed in range(20) for position in range(50)]
    assert len(set(values)) == 1000
    assert sum(values) / 1000 == pytest.approx(0.5, abs=0.04)
