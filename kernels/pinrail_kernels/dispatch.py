"""Where an operation runs: the only module that asks for the device, and for Triton.

| tensors are on | Triton is there           | path                             |
|----------------|---------------------------|----------------------------------|
| CUDA           | yes                       | the Triton kernel                |
| a CPU          | with `TRITON_INTERPRET=1` | the same kernel, its interpreter |
| either         | no                        | torch's operations               |

The variable is read when this module is first imported. Where Triton is not installed kernels are never launched; they
only have to be defined, for which names will do.
"""

import os
from importlib import import_module
from types import SimpleNamespace
from typing import Any

from torch import Tensor

from . import interpreter

# A product and a sum are rounded one after the other, as in torch; Triton's default differs from version to version.
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "0")

triton: Any
tl: Any
try:
    triton, tl = import_module("triton"), import_module("triton.language")
except ModuleNotFoundError:  # a torch for CPUs alone, or not Linux
    triton = SimpleNamespace(jit=lambda kernel: kernel)
    tl = SimpleNamespace(constexpr=int)

INSTALLED = hasattr(triton, "compile")
INTERPRETED = INSTALLED and bool(triton.knobs.runtime.interpret)
if INTERPRETED:
    interpreter.mend()


def on_triton(x: Tensor) -> bool:
    """Whether an operation on `x` is a kernel's."""
    return INTERPRETED or (INSTALLED and x.is_cuda)
