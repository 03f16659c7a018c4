"""Two mends of Triton's interpreter (seen in 3.9), without which it says nothing of bfloat16.

It keeps bfloat16 as the 16 bits of an unsigned number. `tl.dot` then multiplies these numbers, where a GPU multiplies
what they stand for; and to get there from float32 it cuts bits off, where a GPU rounds to nearest, ties to even (from
whole numbers it does not get there at all).

Only `dispatch` calls this, and only where kernels are interpreted; nothing that a GPU runs is touched.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray


def mend() -> None:
    """Change the interpreter of this process; a second call changes nothing more."""
    import triton.language as tl
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    if getattr(InterpreterBuilder, "is_mended", False):
        return
    cast, dot = InterpreterBuilder.cast_impl, InterpreterBuilder.create_dot

    def cast_rounding(self: Any, source: Any, to: Any) -> Any:
        if source.dtype.scalar == tl.bfloat16:
            source = TensorHandle(widened(source.data), tl.float32)
        if to.scalar == tl.bfloat16:
            return TensorHandle(rounded(source.data.astype(np.float32)), tl.bfloat16)
        return cast(self, source, to)

    def dot_of_values(self: Any, a: Any, b: Any, *rest: Any) -> Any:
        if a.dtype.scalar == tl.bfloat16:
            a, b = (TensorHandle(widened(x.data), tl.float32) for x in (a, b))
        return dot(self, a, b, *rest)

    InterpreterBuilder.cast_impl, InterpreterBuilder.create_dot = cast_rounding, dot_of_values
    InterpreterBuilder.is_mended = True


def rounded(x: NDArray[np.float32]) -> NDArray[np.uint16]:
    """The bits of bfloat16 numbers: to nearest, ties to even; NaN stays one."""
    bits = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32)
    up = np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    with np.errstate(over="ignore"):  # of NaNs alone, which are replaced
        near = ((bits + up) >> np.uint32(16)).astype(np.uint16)
    return np.where(np.isnan(x), np.uint16(0x7FC0), near)


def widened(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    """The float32 numbers that bfloat16's bits stand for, exactly."""
    return (np.ascontiguousarray(bits).astype(np.uint32) << np.uint32(16)).view(np.float32)
