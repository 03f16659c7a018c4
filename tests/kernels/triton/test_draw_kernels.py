"""Tokens from logits: the kernels against the definition here, and against the engine's sampler, which defines more."""

import pytest
import torch
from torch import Tensor

from pinrail_engine.core.types import SamplingParams
from pinrail_engine.run.sample import Draw, sample, uniform
from pinrail_kernels.draw import SPAN, draw, draw_ref, unit

VOCABS = [1, 6, SPAN - 1, SPAN, SPAN + 1, 2 * SPAN + 500]
TEMPERATURES = [0.0, 0.3, 1.7, 1e-30]


def columns(n: int, temperature: float, seed: int = 0) -> tuple[Tensor, Tensor]:
    uniforms = torch.tensor([uniform(seed, position) for position in range(n)], dtype=torch.float64)
    return torch.full((n,), temperature), uniforms


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("vocab", VOCABS)
def test_matches_the_definition(vocab: int, temperature: float) -> None:
    """float32 may move a boundary by about 1e-6, which none of these numbers is near."""
    logits = (torch.randn(vocab) * 2).expand(8, -1)
    assert torch.equal(draw(logits, *columns(8, temperature)), draw_ref(logits, *columns(8, temperature)))


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_matches_the_engine_s_sampler(temperature: float) -> None:
    logits = (torch.randn(2 * SPAN + 500) * 2).expand(12, -1)
    params = SamplingParams(max_tokens=1, temperature=temperature, seed=5)
    draws = [Draw(params, torch.zeros(position, dtype=torch.int32), 0) for position in range(12)]
    assert torch.equal(draw(logits, *columns(12, temperature, seed=5)), sample(logits, draws))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_among_equals_the_lower_id_comes_first(temperature: float) -> None:
    logits = torch.zeros(4, 3 * SPAN)
    temperatures, _ = columns(4, temperature)
    uniforms = torch.tensor([0.0, 1 / 3, 0.5, 1 - 2**-53], dtype=torch.float64)
    wanted = [0, 0, 0, 0] if temperature == 0 else [0, SPAN, 3 * SPAN // 2, 3 * SPAN - 1]
    assert draw(logits, temperatures, uniforms).tolist() == wanted


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_broken_row_has_no_token_and_spoils_no_other(temperature: float) -> None:
    logits = torch.randn(5, SPAN + 10)
    whole = draw(logits, *columns(5, temperature))
    logits[0, 3] = logits[1, SPAN + 1] = float("nan")
    logits[2] = float("-inf")
    logits[3, 8] = float("inf")
    assert draw(logits, *columns(5, temperature)).tolist() == [-1, -1, -1, -1, int(whole[4])]


def test_a_forbidden_token_is_never_drawn() -> None:
    logits = torch.full((16, 40), float("-inf"))
    logits[:, 7] = logits[:, 31] = 0.0
    assert set(draw(logits, *columns(16, 5.0)).tolist()) == {7, 31}


def test_nor_is_the_first_of_a_span_where_the_target_ends_the_one_before() -> None:
    logits = torch.zeros(1, 3 * SPAN)
    logits[0, SPAN : 3 * SPAN // 2] = logits[0, 5 * SPAN // 2 :] = float("-inf")
    half = torch.tensor([0.5], dtype=torch.float64)  # 1,024 of the 2,048 that are left
    assert draw(logits, torch.ones(1), half).tolist() == [3 * SPAN // 2]


def test_greedy_and_drawn_rows_may_be_mixed() -> None:
    logits = torch.randn(6, 50)
    temperatures = torch.tensor([0.0, 1.0, 0.0, 0.5, 2.0, 0.0])
    _, uniforms = columns(6, 1.0)
    assert torch.equal(draw(logits, temperatures, uniforms), draw_ref(logits, temperatures, uniforms))


def test_the_sum_of_all_weights_is_a_whole_number_that_float64_holds() -> None:
    for vocab in (1, 2, 1023, 1024, 151_936, 2**21):
        assert vocab * unit(vocab) < 2**53
