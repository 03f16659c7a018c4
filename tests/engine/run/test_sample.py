"""The fast path against the definition and against transformers; that nothing but seed and position matters."""

import math
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import LogitsProcessorList, MinPLogitsWarper, TemperatureLogitsWarper, TopKLogitsWarper
from transformers import TopPLogitsWarper as TopP

from pinrail_engine.core.types import SamplingParams
from pinrail_engine.run.sample import (
    Draw,
    _draw,
    _invert,
    bound,
    distribution_ref,
    sample,
    sample_ref,
    uniform,
    unit,
    weights,
)

PARAMS = {
    "greedy": SamplingParams(max_tokens=1, temperature=0),
    "plain": SamplingParams(max_tokens=1),
    "hot": SamplingParams(max_tokens=1, temperature=1.7),
    "ice": SamplingParams(max_tokens=1, temperature=1e-300),
    "top-k": SamplingParams(max_tokens=1, top_k=5),
    "top-k of more than are bounded": SamplingParams(max_tokens=1, top_k=400),
    "top-k of more than there are": SamplingParams(max_tokens=1, top_k=10**6),
    "top-p": SamplingParams(max_tokens=1, top_p=0.9),
    "top-p of nearly all": SamplingParams(max_tokens=1, temperature=2.0, top_p=0.9999),
    "tiny top-p": SamplingParams(max_tokens=1, top_p=1e-6),
    "min-p": SamplingParams(max_tokens=1, temperature=1.5, min_p=0.05),
    "min-p of 1": SamplingParams(max_tokens=1, min_p=1.0),
    "top-k and top-p": SamplingParams(max_tokens=1, temperature=0.7, top_k=50, top_p=0.8),
    "top-k and min-p": SamplingParams(max_tokens=1, top_k=20, min_p=0.01),
    "top-p and min-p": SamplingParams(max_tokens=1, top_p=0.8, min_p=0.02),
    "all cuts": SamplingParams(max_tokens=1, temperature=1.2, top_k=30, top_p=0.9, min_p=0.01),
    "penalties": SamplingParams(
        max_tokens=1, repetition_penalty=1.3, frequency_penalty=0.5, presence_penalty=-0.3, logit_bias=((0, 1.0),)
    ),
    "all": SamplingParams(
        max_tokens=1, top_k=30, top_p=0.9, min_p=0.01, repetition_penalty=0.8, frequency_penalty=1.0,
        min_tokens=99, stop_token_ids=frozenset({1}), bad_words=((2,), (0, 3)),
    ),
    "greedy with a mask": SamplingParams(max_tokens=1, temperature=0, allowed_token_ids=(0, 4, 5)),
}  # fmt: skip


@pytest.fixture(params=[1, 2], ids=["one thread", "two threads"])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def logits(vocab: int, seed: int = 0) -> Tensor:
    return torch.randn(vocab, generator=torch.Generator().manual_seed(seed)) * 2


def draw(params: SamplingParams, position: int, seed: int = 0, vocab: int = 1) -> Draw:
    """For a sequence of `position` tokens, half of them the prompt; `vocab` bounds their ids."""
    tokens = torch.arange(position, dtype=torch.int32) ** 2 % vocab
    return Draw(replace(params, seed=seed), tokens, position // 2)


def is_right(token: int, row: Tensor, d: Draw) -> bool:
    """Whether a token is the definition's, or a neighbour of it and the random number within 1e-5 of their boundary."""
    p = distribution_ref(row, d)
    if token == -1:
        return bool(p.isnan().any())
    end = float(p[: token + 1].sum())
    u = uniform(d.params.seed, d.position) if d.params.temperature else end - 0.5
    return float(p[token]) > 0 and end - float(p[token]) - 1e-5 <= u < end + 1e-5


@pytest.mark.parametrize("vocab", [6, 7, 1024, 2500])
@pytest.mark.parametrize("params", PARAMS.values(), ids=PARAMS.keys())
def test_matches_the_definition(params: SamplingParams, vocab: int) -> None:
    """50 draws of one distribution; float32 may move a boundary by about 1e-6, which none of these is near."""
    row = logits(vocab)
    draws = [draw(params, position, vocab=vocab) for position in range(50)]
    assert sample(row.expand(50, -1), draws).tolist() == [sample_ref(row, d) for d in draws]


@pytest.mark.parametrize("params", PARAMS.values(), ids=PARAMS.keys())
def test_equal_logits_are_cut_at_the_lower_id(params: SamplingParams) -> None:
    row = logits(1100).round()  # a handful of values, each many times
    draws = [draw(params, position, vocab=7) for position in range(40)]
    assert sample(row.expand(40, -1), draws).tolist() == [sample_ref(row, d) for d in draws]


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_whatever_is_asked_for_is_as_defined(data: st.DataObject) -> None:
    vocab = data.draw(st.integers(1, 70) | st.sampled_from([1023, 1025, 2050]), label="vocab")
    row = logits(vocab, data.draw(st.integers(0, 99), label="logits")) * data.draw(st.sampled_from([0.1, 1.0, 5.0]))
    row = data.draw(st.sampled_from([row, row.round()]), label="row")
    ids = st.integers(0, vocab - 1)
    params = SamplingParams(
        max_tokens=1,
        min_tokens=data.draw(st.integers(0, 6)),
        temperature=data.draw(st.sampled_from([0, 0.01, 0.5, 1.0, 2.0])),
        top_k=data.draw(st.integers(0, 80)),
        top_p=data.draw(st.sampled_from([1.0, 0.999, 0.77, 0.31, 1e-9])),
        min_p=data.draw(st.sampled_from([0.0, 1e-4, 0.123, 1.0])),
        repetition_penalty=data.draw(st.sampled_from([1.0, 0.5, 1.37])),
        presence_penalty=data.draw(st.sampled_from([0.0, -0.71, 1.03])),
        frequency_penalty=data.draw(st.sampled_from([0.0, -0.29, 0.57])),
        logit_bias=tuple(data.draw(st.lists(st.tuples(ids, st.floats(-9, 9, width=16)), max_size=3))),
        bad_words=tuple(map(tuple, data.draw(st.lists(st.lists(ids, min_size=1, max_size=3), max_size=3)))),
        allowed_token_ids=tuple(data.draw(st.sets(ids, max_size=5))),
        stop_token_ids=frozenset(data.draw(st.sets(ids | st.just(10**6), max_size=2))),
        seed=data.draw(st.integers(0, 9)),
    )
    tokens = torch.tensor(data.draw(st.lists(ids, min_size=1, max_size=12)), dtype=torch.int32)
    d = Draw(params, tokens, data.draw(st.integers(1, len(tokens))))
    rows = torch.stack([logits(vocab, 7), row, logits(vocab, 8)])
    before = rows.clone()
    (_, token, _) = sample(rows, [draw(PARAMS["plain"], 3), d, draw(PARAMS["greedy"], 3)]).tolist()
    assert torch.equal(rows, before)
    if params.temperature == 0 and token >= 0:  # float32's rounding may make equals of neighbours, or the reverse
        warm = replace(params, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
        p = distribution_ref(row, replace(d, params=warm))
        assert p[token] >= p.max() * (1 - 1e-5)
    else:
        assert is_right(token, row, d)


@pytest.mark.parametrize("vocab", [1, 7, 100, 1023, 1024, 1025, 4099])
def test_a_token_does_not_depend_on_its_neighbours(vocab: int, threads: int) -> None:
    """Each row alone, then among up to 33 of all kinds, from either end."""
    table = [replace(p, allowed_token_ids=(), logit_bias=(), bad_words=()) for p in PARAMS.values()]
    draws = [draw(table[i % len(table)], 5 + i, seed=i, vocab=vocab) for i in range(33)]
    rows = torch.stack([logits(vocab, seed) for seed in range(33)])
    alone = [int(sample(rows[i : i + 1], [d])) for i, d in enumerate(draws)]
    for n in (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33):
        assert sample(rows[:n], draws[:n]).tolist() == alone[:n]
        assert sample(rows[-n:].flip(0), draws[-n:][::-1]).tolist() == alone[-n:][::-1]


def test_a_token_does_not_depend_on_the_number_of_threads() -> None:
    rows = torch.stack([logits(50_257, seed) for seed in range(9)])
    before = torch.get_num_threads()
    results = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        kinds = [
            sample(rows, [draw(PARAMS[name], i) for i in range(9)]).tolist() for name in ("plain", "top-p", "top-k")
        ]
        ones = [int(sample(rows[:1], [draw(PARAMS["plain"], i)])) for i in range(9)]
        results.append((kinds, ones))
    torch.set_num_threads(before)
    assert results[0] == results[1]


@pytest.mark.parametrize("vocab", [1, 7, 31, 1000, 1025, 4099, 49_152, 50_257])
def test_weights_are_the_same_bits_wherever_a_row_stands(vocab: int, threads: int) -> None:
    rows = torch.stack([logits(vocab, seed) for seed in range(33)])
    temperatures = torch.linspace(0.3, 2.0, 33)
    of_peak = unit(vocab)
    alone = [weights(rows[i : i + 1], rows[i : i + 1].amax(-1), temperatures[i : i + 1], of_peak)[0] for i in range(33)]
    for n in (1, 2, 3, 5, 8, 17, 32, 33):
        assert torch.equal(weights(rows[:n], rows[:n].amax(-1), temperatures[:n], of_peak), torch.stack(alone[:n]))


@pytest.mark.parametrize("vocab", [1, 2, 1024, 50_257, 151_936, 262_144])
def test_a_rows_weights_have_one_sum_in_any_order(vocab: int) -> None:
    for row in (logits(vocab) / 4, torch.zeros(vocab)):
        w = weights(row[None], row.amax()[None], torch.ones(1), unit(vocab))[0].double()
        total = sum(map(int, w.tolist()))
        assert 0 < total < 2**53
        shuffled = w[torch.randperm(vocab, generator=torch.Generator().manual_seed(0))]
        assert {float(w.sum()), float(w.flip(0).cumsum(0)[-1]), float(shuffled.sum())} == {float(total)}


@pytest.mark.parametrize("vocab", [6, 1500])
def test_rows_that_are_cut_together_are_cut_as_alone(vocab: int) -> None:
    """An accelerator cuts all rows at once, of the whole vocabulary; a CPU each row among its candidates."""
    cut = [p for p in PARAMS.values() if p.temperature and (p.top_k or p.top_p < 1 or p.min_p)]
    cut = [replace(p, min_tokens=0, bad_words=(), repetition_penalty=1.0, frequency_penalty=0.0) for p in cut]
    for seed in range(8):
        rows = torch.stack([logits(vocab, seed + i) for i in range(len(cut))])
        rows[::2] = rows[::2].round()
        draws = [draw(params, i, seed=seed) for i, params in enumerate(cut)]
        assert _draw(rows, rows.amax(-1), draws).tolist() == sample(rows, draws).tolist()


@pytest.mark.parametrize("name", ["plain", "hot", "top-k", "top-p", "min-p", "all cuts"])
def test_frequencies_are_the_probabilities(name: str) -> None:
    """In 4,000 draws, each token within 4 standard deviations of its share, and none of share 0."""
    row, n = logits(12, seed=3), 4000
    one = draw(PARAMS[name], 1)
    p = distribution_ref(row, one)
    tokens = sample(row.expand(n, -1), [draw(PARAMS[name], 1, seed=seed) for seed in range(n)])
    counts = tokens.bincount(minlength=12).double()
    assert torch.all((counts / n - p).abs() <= 4 * (p * (1 - p) / n).sqrt())


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p", "min_p"),
    [(1.0, 7, 1.0, 0.0), (0.7, 0, 0.8, 0.0), (1.3, 0, 1.0, 0.1), (1.5, 9, 0.8, 0.03), (2.0, 25, 0.95, 0.01)],
)
def test_kept_is_what_transformers_keeps(temperature: float, top_k: int, top_p: float, min_p: float, seed: int) -> None:
    """Their warpers in vLLM's order: temperature, min_p, top_k, top_p."""
    params = SamplingParams(max_tokens=1, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    row = logits(200, seed)
    warpers = LogitsProcessorList([TemperatureLogitsWarper(temperature)])
    warpers += [MinPLogitsWarper(min_p)] if min_p else []
    warpers += [TopKLogitsWarper(top_k)] if top_k else []
    warpers += [TopP(top_p)] if top_p < 1 else []
    theirs = warpers(torch.zeros(1, 1, dtype=torch.int64), row[None].clone())[0].softmax(-1)
    ours = distribution_ref(row, draw(params, 1))
    torch.testing.assert_close(ours.float(), theirs, atol=1e-5, rtol=1e-4)
    drawn = sample(row.expand(300, -1), [draw(params, 1, seed=i) for i in range(300)])
    assert set(drawn.tolist()) <= set(theirs.nonzero().squeeze(1).tolist())


def test_min_p_is_applied_before_top_p() -> None:
    """Of 0.5, 0.3, 0.1, 0.1 min_p keeps two; the first has 0.6 of their 0.8, but not of the whole."""
    row = torch.tensor([0.5, 0.3, 0.1, 0.1]).log()
    params = SamplingParams(max_tokens=1, min_p=0.5, top_p=0.6)
    assert set(sample(row.expand(50, -1), [draw(params, i) for i in range(50)]).tolist()) == {0}


def test_what_reaches_top_p_exactly_is_enough() -> None:
    params = SamplingParams(max_tokens=1, top_p=0.5)
    assert set(sample(torch.zeros(50, 2), [draw(params, i) for i in range(50)]).tolist()) == {0}


def test_a_token_that_cannot_be_is_never_drawn() -> None:
    row = torch.full((2000,), -math.inf)
    row[1500] = row[3] = 0.0
    for name in ("plain", "top-k", "top-p of nearly all", "min-p"):
        tokens = sample(row.expand(100, -1), [draw(PARAMS[name], i) for i in range(100)])
        assert set(tokens.tolist()) == {3, 1500}


@pytest.mark.parametrize("params", PARAMS.values(), ids=PARAMS.keys())
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf], ids=["nan", "inf", "all -inf"])
def test_a_broken_row_is_minus_one_and_its_neighbours_are_not_affected(params: SamplingParams, bad: float) -> None:
    rows = torch.stack([logits(3000, seed) for seed in range(5)])
    draws = [draw(params, 8, seed=i, vocab=50) for i in range(5)]
    whole = sample(rows, draws).tolist()
    if bad == -math.inf:
        rows[2] = bad
    else:
        rows[2, 1234] = bad  # also where a mask lies on it
    assert sample(rows, draws).tolist() == [*whole[:2], -1, *whole[3:]]
    assert _draw(rows[2:3], rows[2:3].amax(-1), [replace(draws[2], params=PARAMS["all cuts"])]).shape == (1,)
    assert sample_ref(rows[2], draws[2]) == -1


def test_a_row_that_is_allowed_nothing_is_minus_one() -> None:
    params = SamplingParams(max_tokens=1, allowed_token_ids=(3,), bad_words=((3,),))
    assert sample(torch.zeros(2, 9), [draw(params, 2), draw(PARAMS["greedy"], 2)]).tolist() == [-1, 0]


def test_greedy_takes_the_lower_id_of_equals() -> None:
    row = torch.zeros(5000)
    row[[1100, 1099, 4999]] = 1.0
    assert sample(row[None], [draw(PARAMS["greedy"], 0)]).tolist() == [1099]


def test_the_last_ids_of_a_vocabulary_are_reached() -> None:
    row = torch.zeros(3000)
    row[2999] = 30.0
    kinds = ("greedy", "plain", "top-k", "top-p", "min-p")
    assert sample(row.expand(5, -1), [draw(PARAMS[name], 0) for name in kinds]).tolist() == [2999] * 5


def test_no_rows_need_no_logits() -> None:
    assert sample(torch.zeros(0, 5), []).tolist() == []


@pytest.mark.parametrize("at", [0, 1022, 5000])
@pytest.mark.parametrize(("u", "place"), [(0.0, 1), (0.59, 1), (0.6, 3), (0.99, 3)])
def test_a_boundary_belongs_to_the_token_above_it_and_none_is_of_no_weight(at: int, u: float, place: int) -> None:
    """Weights 0, 3, 0 and 2, on either side of a span's end too."""
    row = torch.zeros(1, 6000)
    row[0, at + 1], row[0, at + 3] = 3.0, 2.0
    assert _invert(row, torch.tensor([u], dtype=torch.float64)).tolist() == [at + place]


@pytest.mark.parametrize("k", [1, 5, 62, 63, 900, 1000, 2000])
def test_the_bound_is_reached_by_k(k: int) -> None:
    for row in (logits(1000), logits(1000).round(), torch.zeros(1000)):
        assert int((row >= bound(row, k)).sum()) >= min(k, 1000)


@settings(max_examples=100)
@given(st.integers(-(2**70), 2**70), st.integers(0, 2**24))
def test_uniform_is_a_function_into_0_to_1(seed: int, position: int) -> None:
    u = uniform(seed, position)
    assert 0 <= u < 1
    assert u == uniform(seed, position)


def test_uniform_stays_what_it_was() -> None:
    """A change here would change every text that was told with a seed."""
    assert [uniform(0, 0), uniform(7, 1), uniform(-1, 4095)] == [
        0.6524484863740322,
        0.15589407130731636,
        0.21191011415196292,
    ]


def test_uniforms_of_neighbours_are_unlike() -> None:
    values = [uniform(seed, position) for seed in range(20) for position in range(50)]
    assert len(set(values)) == 1000
    assert sum(values) / 1000 == pytest.approx(0.5, abs=0.04)
