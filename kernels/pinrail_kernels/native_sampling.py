"""What `Native.sample` is told of each row, and the structures that carry it to C++ (`kernels/native/sampling.h`).

What it all means, `pinrail_engine.run.sample` and `penalties` define. Knows nothing of requests: which tokens are
masked, and the random number, were decided by the caller.
"""

from collections.abc import Sequence
from ctypes import Array, Structure, c_double, c_float, c_int32, c_void_p
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

NO_IDS: NDArray[np.int32] = np.empty(0, np.int32)
NO_BIASES: NDArray[np.float32] = np.empty(0, np.float32)


class CChoice(Structure):
    _fields_ = (
        *((name, c_double) for name in ("temperature", "top_p", "min_p", "u")),
        *((name, c_void_p) for name in ("tokens", "allowed", "masked", "biased", "biases")),
        *((name, c_float) for name in ("repetition", "frequency", "presence")),
        *((name, c_int32) for name in ("top_k", "n_tokens", "prompt_len", "n_allowed", "n_masked", "n_biased")),
    )


class Choice(NamedTuple):
    """How the token after one row of logits is chosen. Arrays are contiguous; ids are below the vocabulary's size."""

    temperature: float  # 0: the likeliest
    top_k: int  # 0: all
    top_p: float
    min_p: float
    u: float  # the random number, in [0, 1); not looked at where temperature is 0
    repetition: float = 1.0  # penalties
    frequency: float = 0.0
    presence: float = 0.0
    tokens: NDArray[np.int32] = NO_IDS  # [n]: the sequence so far, the prompt first, for penalties; -1 counts as 0
    prompt_len: int = 0
    allowed: NDArray[np.int32] = NO_IDS  # the only ones that may be chosen; empty: all
    masked: NDArray[np.int32] = NO_IDS  # not chosen
    biased: NDArray[np.int32] = NO_IDS
    biases: NDArray[np.float32] = NO_BIASES  # added to the logits of `biased`


def structures(logits: NDArray[np.float32], choices: Sequence[Choice]) -> Array[CChoice]:
    """The choices as C++ reads them; they point into the choices' arrays.

    Raises:
        ValueError: They do not fit the logits [s, vocab], or these are no dense float32.
    """
    if logits.dtype != np.float32 or logits.ndim != 2 or not logits.flags.c_contiguous:
        raise ValueError(f"logits are {logits.dtype} {logits.shape}, want float32 [s, vocab], contiguous")
    if len(choices) != len(logits):
        raise ValueError(f"there are {len(choices)} choices for {len(logits)} rows of logits, want one each")
    return (CChoice * len(choices))(*(_structure(choice, logits.shape[1]) for choice in choices))


def _structure(c: Choice, vocab: int) -> CChoice:
    ids = (c.allowed, c.masked, c.biased)
    for some in ids:
        if some.size and not 0 <= some.min() <= some.max() < vocab:
            raise ValueError(f"token ids are {some.min()} to {some.max()}, want 0 to {vocab - 1}")
    numbers = (c.temperature, c.top_p, c.min_p, c.u)
    pointers = map(_pointer, (c.tokens, *ids, c.biases))
    sizes = (min(c.top_k, vocab), c.tokens.size, c.prompt_len, *(some.size for some in ids))
    return CChoice(*numbers, *pointers, c.repetition, c.frequency, c.presence, *sizes)


def _pointer(array: NDArray[Any]) -> int:
    return array.ctypes.data if array.size else 0
