"""The definition of plain rows against the engine's, which has cuts and penalties besides."""

import pytest
import torch

from pinrail_engine.core.types import SamplingParams
from pinrail_engine.run.sample import Draw, sample_ref, uniform
from pinrail_kernels.draw import draw


@pytest.mark.parametrize("temperature", [0.0, 0.3, 1.0, 1.7])
def test_plain_rows_are_as_the_engine_defines_them(temperature: float) -> None:
    row = torch.randn(300) * 2
    params = SamplingParams(max_tokens=1, temperature=temperature, seed=3)
    draws = [Draw(params, torch.zeros(position, dtype=torch.int32), 0) for position in range(40)]
    uniforms = torch.tensor([uniform(3, position) for position in range(40)], dtype=torch.float64)
    tokens = draw(row.expand(40, -1), torch.full((40,), temperature), uniforms)
    assert tokens.tolist() == [sample_ref(row, d) for d in draws]


def test_a_broken_row_has_no_token() -> None:
    logits = torch.randn(3, 10)
    logits[0, 2], logits[1] = float("nan"), float("-inf")
    for temperature in (0.0, 1.0):
        tokens = draw(logits, torch.full((3,), temperature), torch.full((3,), 0.5, dtype=torch.float64))
        assert tokens[:2].tolist() == [-1, -1]
        assert tokens[2] >= 0
