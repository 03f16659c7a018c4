"""The changes to a row's logits: against the definition, against numpy, against transformers, and their order."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import NoBadWordsLogitsProcessor, RepetitionPenaltyLogitsProcessor

from pinrail_engine.core.types import SamplingParams
from pinrail_engine.run.penalties import adjust, adjust_ref, is_adjusted
from pinrail_engine.run.sample import Draw, sample

VOCAB = 50
INF = math.inf


def logits(vocab: int = VOCAB, seed: int = 0) -> Tensor:
    return torch.randn(vocab, generator=torch.Generator().manual_seed(seed)) * 3


def adjusted(row: Tensor, tokens: list[int], prompt_len: int, **params: object) -> Tensor:
    changed = row.clone()
    asked = SamplingParams(max_tokens=1, **params)  # type: ignore[arg-type]
    adjust(changed, asked, torch.tensor(tokens, dtype=torch.int32), prompt_len)
    torch.testing.assert_close(changed.double(), adjust_ref(row, asked, tokens, prompt_len), atol=1e-5, rtol=1e-6)
    return changed


@pytest.mark.parametrize("seed", range(5))
def test_penalties_are_the_formulas(seed: int) -> None:
    """Repetition, then frequency and presence, all at once on arrays."""
    tokens = torch.randint(0, VOCAB, (60,), generator=torch.Generator().manual_seed(seed)).tolist()
    row = logits(seed=seed)
    x = row.numpy().astype(np.float64)
    in_all = np.bincount(tokens, minlength=VOCAB) > 0
    in_output = np.bincount(tokens[20:], minlength=VOCAB)
    x = np.where(in_all, np.where(x > 0, x / 1.3, x * 1.3), x) - 0.4 * in_output - 0.7 * (in_output > 0)
    ours = adjusted(row, tokens, 20, repetition_penalty=1.3, frequency_penalty=0.4, presence_penalty=0.7)
    np.testing.assert_allclose(ours.numpy(), x, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("penalty", [0.7, 1.0, 1.5])
def test_repetition_is_that_of_transformers(penalty: float) -> None:
    row, tokens = logits(), [3, 3, 9, 49, 0, 9]
    theirs = RepetitionPenaltyLogitsProcessor(penalty)(torch.tensor([tokens]), row[None].clone())[0]
    torch.testing.assert_close(adjusted(row, tokens, 4, repetition_penalty=penalty), theirs)


@pytest.mark.parametrize("tokens", [[], [1], [1, 2], [2, 1], [1, 2, 3], [9, 1, 2, 3], [3, 3, 3]], ids=str)
def test_bad_words_are_those_of_transformers(tokens: list[int]) -> None:
    words = [[5], [1, 6], [1, 2, 7], [3, 3, 3], [1, 2, 3, 8], [2, 3, 9]]
    row = logits()
    theirs = NoBadWordsLogitsProcessor(words)(torch.tensor([tokens], dtype=torch.int64), row[None].clone())[0]
    assert torch.equal(adjusted(row, tokens, 0, bad_words=tuple(map(tuple, words))), theirs)


def test_the_head_of_a_bad_word_does_not_begin_in_the_prompt() -> None:
    words = ((1, 2, 7), (2, 8))
    assert adjusted(logits(), [1, 2], 1, bad_words=words).isinf().nonzero().squeeze(1).tolist() == [8]
    assert adjusted(logits(), [1, 2], 0, bad_words=words).isinf().nonzero().squeeze(1).tolist() == [7, 8]
    assert adjusted(logits(), [1, 2], 2, bad_words=words).isinf().sum() == 0


def test_only_allowed_tokens_remain() -> None:
    row = logits()
    ours = adjusted(row, [1], 1, allowed_token_ids=(7, 0))
    assert ours.isfinite().nonzero().squeeze(1).tolist() == [0, 7]
    assert torch.equal(ours[[0, 7]], row[[0, 7]])


@pytest.mark.parametrize(("n_output", "is_masked"), [(0, True), (2, True), (3, False), (4, False)])
def test_no_stop_token_comes_before_min_tokens(n_output: int, is_masked: bool) -> None:
    """An id that the vocabulary has not is no error."""
    tokens = [1] * (4 + n_output)
    ours = adjusted(logits(), tokens, 4, min_tokens=3, stop_token_ids=frozenset({2, 9, 10**6}))
    assert ours.isinf().nonzero().squeeze(1).tolist() == ([2, 9] if is_masked else [])


def test_bias_comes_before_the_repetition_penalty_and_may_name_a_token_twice() -> None:
    row = torch.tensor([1.0, -1.0, 0.5])
    ours = adjusted(row, [0, 1], 2, logit_bias=((0, -2.0), (1, 1.0), (1, 2.0)), repetition_penalty=2.0)
    assert ours.tolist() == [-2.0, 1.0, 0.5]


def test_bias_lifts_no_mask() -> None:
    ours = adjusted(logits(), [1], 1, logit_bias=((3, 100.0),), bad_words=((3,),), repetition_penalty=0.5)
    assert ours[3] == -INF


def test_the_prompt_is_not_output() -> None:
    row = torch.zeros(4)
    ours = adjusted(row, [0, 0, 1, 2, 2], 3, frequency_penalty=1.0, presence_penalty=0.5)
    assert ours.tolist() == [0, 0, -2.5, 0]


def test_a_logit_of_minus_infinity_stays() -> None:
    row = torch.tensor([-INF, 1.0])
    assert adjusted(row, [0, 0], 1, repetition_penalty=2.0, frequency_penalty=-2.0)[0] == -INF


@pytest.mark.parametrize(
    "params",
    [
        {"allowed_token_ids": (1,)},
        {"bad_words": ((0,),)},
        {"min_tokens": 9, "stop_token_ids": frozenset({0})},
        {"logit_bias": ((0, 1.0),), "repetition_penalty": 1.5, "frequency_penalty": 1.0},
    ],
    ids=str,
)
def test_no_change_hides_that_a_row_is_broken(params: dict[str, object]) -> None:
    row = torch.tensor([math.nan, 1.0, 2.0])
    adjust(row, SamplingParams(max_tokens=1, **params), torch.zeros(3, dtype=torch.int32), 1)  # type: ignore[arg-type]
    assert row.isnan().any()


def test_a_broken_steps_token_in_the_sequence_raises_nothing() -> None:
    """It stands there while the step after it is under way; what that one gives is dropped."""
    adjusted(logits(), [4, -1, -1], 1, repetition_penalty=1.5, frequency_penalty=1.0, bad_words=((9, 3), (0, 4)))


@pytest.mark.parametrize(
    ("params", "n_output", "wanted"),
    [
        pytest.param({}, 5, False, id="nothing is asked for"),
        pytest.param({"temperature": 0.5, "top_k": 3, "top_p": 0.5, "min_p": 0.1}, 5, False, id="cuts are no changes"),
        pytest.param({"allowed_token_ids": (0,)}, 0, True, id="allowed tokens"),
        pytest.param({"min_tokens": 2, "stop_token_ids": frozenset({1})}, 1, True, id="too short to stop"),
        pytest.param({"min_tokens": 2, "stop_token_ids": frozenset({1})}, 2, False, id="long enough"),
        pytest.param({"min_tokens": 2}, 1, False, id="nothing stops it"),
        pytest.param({"bad_words": ((1,),)}, 0, True, id="bad words"),
        pytest.param({"logit_bias": ((1, 1.0),)}, 0, True, id="bias"),
        pytest.param({"repetition_penalty": 0.9}, 0, True, id="repetition, for the prompt's sake"),
        pytest.param({"presence_penalty": 0.1}, 0, False, id="presence, no output"),
        pytest.param({"presence_penalty": 0.1}, 1, True, id="presence"),
        pytest.param({"frequency_penalty": -0.1}, 1, True, id="frequency"),
    ],
)
def test_rows_are_changed_where_it_is_asked_for(params: dict[str, object], n_output: int, wanted: bool) -> None:
    asked = SamplingParams(max_tokens=1, **params)  # type: ignore[arg-type]
    assert is_adjusted(asked, n_output) == wanted
    if not wanted:
        assert torch.equal(adjusted(logits(), [1] * (3 + n_output), 3, **params), logits())


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=40),
    st.floats(0.5, 2.0),
    st.floats(-2.0, 2.0),
    st.floats(-2.0, 2.0),
    st.integers(0, 9),
)
def test_preemption_changes_nothing(tokens: list[int], r: float, f: float, p: float, seed: int) -> None:
    """What was prompt and what output decides, whatever was computed before: there is no state."""
    asked = SamplingParams(
        max_tokens=1, temperature=0, repetition_penalty=r, frequency_penalty=f, presence_penalty=p, seed=seed
    )
    one = Draw(asked, torch.tensor(tokens, dtype=torch.int32), len(tokens) // 2)
    other = Draw(asked, torch.tensor(tokens[::-1], dtype=torch.int32), 0)
    row = logits(seed=seed)
    (token,) = sample(row[None], [one]).tolist()
    sample(row[None], [other])
    assert sample(torch.stack([row, row]), [other, one])[1] == token
    assert torch.equal(row, logits(seed=seed))
    best = adjust_ref(row, asked, tokens, len(tokens) // 2)
    assert best[token] >= best.max() - 1e-5
