"""The Triton kernels against their definitions: on a GPU where there is one, else in Triton's interpreter, on the CPU.

The interpreter is switched on by a variable that is read when triton is first imported, and from then on every
operation of the process would take it, the engine's other tests included. So this folder is not collected with the
others; `../test_triton.py` runs it in a process of its own. By hand: `pytest tests/kernels/triton`.
"""

import os
import sys

import pytest
import torch

ON_GPU = torch.cuda.is_available()
if not ON_GPU:
    assert "triton" not in sys.modules, "triton was imported before this folder: run it alone"
    os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture(autouse=True)
def on_the_gpu_if_there_is_one() -> None:
    torch.set_default_device("cuda" if ON_GPU else "cpu")
