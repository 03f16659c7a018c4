"""What all tests of kernels share. Those of the Triton kernels, in `triton/`, run in a process of their own."""

import sys
from pathlib import Path

import pytest
import torch

collect_ignore = ["triton"]  # unless it is named: see its conftest.py, and test_triton.py, which names it

sys.path.insert(0, str(Path(__file__).parent))  # `ragged`


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
