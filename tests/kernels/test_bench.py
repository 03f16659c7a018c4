"""The bench says what it lacks; what it checks is run by `triton/test_bench_checks.py`."""

import math

import pytest
import torch

from pinrail_kernels.bench import main
from pinrail_kernels.bench_correctness import Check


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_without_a_gpu_it_says_so_and_exits_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    said = capsys.readouterr().err
    assert said.startswith("bench: torch.cuda is False")
    assert said.endswith("want a CUDA GPU and Triton, or --interpret for correctness on this CPU\n")


@pytest.mark.parametrize(
    ("error", "tolerance", "right"),
    [(0.0, 0.0, True), (0.1, 0.1, True), (0.2, 0.1, False), (1e-9, 0.0, False), (math.nan, 0.1, False)],
)
def test_what_is_no_number_is_wrong(error: float, tolerance: float, right: bool) -> None:
    assert Check("x", error, tolerance).is_right is right
