"""What launchers refuse: a wrong shape, dtype or stride would be read out of bounds by a kernel, without a word.

Every message has the argument, what was wanted and what was seen. All raise ValueError.
"""

import torch
from torch import Tensor

FLOATS = (torch.float32, torch.float16, torch.bfloat16)


def want_shape(name: str, x: Tensor, *wanted: int | None) -> None:
    """Args: wanted: of each dimension; None is any."""
    if x.shape == wanted:
        return  # almost always, several hundred times a step
    fits = x.dim() == len(wanted) and all(w in (None, n) for w, n in zip(wanted, x.shape, strict=True))
    if not fits:
        said = ", ".join("any" if w is None else str(w) for w in wanted)
        raise ValueError(f"{name} must be [{said}], got {list(x.shape)}")


def want_dtype(name: str, x: Tensor, *wanted: torch.dtype) -> None:
    if x.dtype not in wanted:
        raise ValueError(f"{name} must be {' or '.join(str(w).removeprefix('torch.') for w in wanted)}, got {x.dtype}")


def want_dense(name: str, x: Tensor, dims: int) -> None:
    """The last `dims` dimensions must lie without gaps; those before may be strided."""
    if x.is_contiguous():
        return
    stride = 1
    for size, seen in zip(reversed(x.shape[-dims:]), reversed(x.stride()[-dims:]), strict=True):
        if size > 1 and seen != stride:
            raise ValueError(f"{name} must be contiguous in its last {dims} dimensions, got strides {x.stride()}")
        stride *= size
