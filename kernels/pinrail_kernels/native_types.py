"""What goes between Python and the CPU kernels: shapes, matrices and batches, and the structures that carry them.

The fields are those of `kernels/native/types.h`, in its order.
"""

import ctypes
import mmap
from ctypes import c_float, c_int32, c_void_p
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

PANEL = 32  # outputs that are packed together
GATE = 16  # outputs of the gate and of up, by turns, in a packed pair
TOKENS = 16  # a KV block's size is a multiple of this
K_STEP = 8  # inputs of a packed matrix are a multiple of this
GROUP = 48  # query heads of a KV head, at most

Array = NDArray[Any]


class NativeError(Exception):
    """The library is not there, or cannot do what is asked; the message says which."""


class Kind(IntEnum):
    """How numbers are stored; the C++ side has the same values."""

    F32 = 0
    BF16 = 1  # in numpy: uint16
    INT8 = 2  # packed only: a scale for each output
    INT4 = 3  # packed only: a scale and a least weight for each group of an output's inputs
    F16 = 4  # sources only; in numpy: float16


_WORDS = {Kind.F32: 1, Kind.BF16: 2, Kind.INT8: 4, Kind.INT4: 8}  # inputs in four bytes


class CMatrix(ctypes.Structure):
    _fields_ = (
        ("data", c_void_p),
        ("scales", c_void_p),
        ("n", c_int32),
        ("k", c_int32),
        ("kind", c_int32),
        ("group", c_int32),
    )


class CSource(ctypes.Structure):
    _fields_ = (("data", c_void_p), ("kind", c_int32), ("rows", c_int32))


class CPacking(ctypes.Structure):
    _fields_ = (("matrix", CMatrix), ("sources", ctypes.POINTER(CSource)), ("turn", c_int32))


class CLayer(ctypes.Structure):
    _fields_ = (
        ("attention_norm", c_void_p),
        ("qkv", CMatrix),
        ("o", CMatrix),
        ("mlp_norm", c_void_p),
        ("gate_up", CMatrix),
        ("down", CMatrix),
    )


class CShape(ctypes.Structure):
    _fields_ = (
        *((name, c_int32) for name in ("hidden", "intermediate", "layers", "heads", "kv_heads", "head_dim", "vocab")),
        *((name, c_int32) for name in ("block_size", "kv_kind", "window")),
        *((name, c_float) for name in ("eps", "scale", "soft_cap")),
    )


class CBatch(ctypes.Structure):
    _fields_ = (
        ("rows", c_int32),
        ("sequences", c_int32),
        ("tokens", c_void_p),
        ("positions", c_void_p),
        ("sequence", c_void_p),
        ("tables", c_void_p),
        ("table_width", c_int32),
        ("blocks", c_int32),
        ("kv", c_void_p),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What a decoder, or attention alone, is like; see `pinrail_engine.model.arch`."""

    heads: int
    kv_heads: int
    head_dim: int
    block_size: int  # tokens
    kv_kind: Kind  # F32 or BF16
    hidden: int = 0
    intermediate: int = 0
    layers: int = 1
    vocab: int = 0
    window: int = 0  # positions that a token sees, itself included; 0: all before it
    eps: float = 0.0
    rope_theta: float = 10000.0
    scale: float = 0.0  # of attention scores; 0: 1 / sqrt(head_dim)
    soft_cap: float = 0.0  # of attention scores; 0: none

    def __post_init__(self) -> None:
        check(self.block_size % TOKENS == 0, "block_size", self.block_size, f"a multiple of {TOKENS}")
        check(self.kv_kind in (Kind.F32, Kind.BF16), "kv_kind", self.kv_kind, "F32 or BF16")
        check(self.head_dim % 2 == 0, "head_dim", self.head_dim, "an even number")
        check(self.heads % self.kv_heads == 0, "kv_heads", self.kv_heads, f"a divisor of heads, {self.heads}")
        check(self.heads // self.kv_heads <= GROUP, "heads", self.heads, f"at most {GROUP} for each of kv_heads")

    @property
    def kv_type(self) -> np.dtype[Any]:
        return np.dtype(np.float32 if self.kv_kind is Kind.F32 else np.uint16)

    @property
    def block_elements(self) -> int:
        """Numbers in one KV block of one layer."""
        return 2 * self.kv_heads * self.head_dim * self.block_size

    def frequencies(self) -> NDArray[np.float32]:
        """Of the rotary pairs [head_dim / 2], in float32 as the definition has them."""
        exponents = np.arange(0, self.head_dim, 2, dtype=np.float32) / np.float32(self.head_dim)
        return np.float32(1.0) / np.float32(self.rope_theta) ** exponents

    def struct(self) -> CShape:
        values = {field[0]: getattr(self, field[0]) for field in CShape._fields_}
        return CShape(**values | {"scale": self.scale or self.head_dim**-0.5})


@dataclass(frozen=True, slots=True)
class Packed:
    """A matrix [n, k] in panels; see kernels/native/types.h for the layouts."""

    n: int
    k: int
    kind: Kind
    group: int  # inputs that share a scale, with INT4
    data: Array  # bytes
    scales: NDArray[np.float32]

    @property
    def nbytes(self) -> int:
        return self.data.nbytes + self.scales.nbytes

    def struct(self) -> CMatrix:
        return CMatrix(self.data.ctypes.data, self.scales.ctypes.data, self.n, self.k, self.kind, self.group)


@dataclass(frozen=True, slots=True)
class Packing:
    """What a matrix is to be made of.

    Args:
        sources: [rows, k]: float32, float16 or, for bfloat16, uint16; contiguous, of the same k.
        group: Inputs that share a scale, with INT4.
        by_turns: Of two sources of equal size, GATE outputs of each by turns.
    """

    kind: Kind
    sources: tuple[Array, ...]
    group: int = 0
    by_turns: bool = False

    def room(self) -> Packed:
        """For it, as zeros; raises NativeError."""
        k, n = self.sources[0].shape[1], sum(s.shape[0] for s in self.sources)
        check(k % K_STEP == 0, "inputs of a matrix", k, f"a multiple of {K_STEP}")
        if self.kind is Kind.INT4:
            good = self.group > 0 and self.group % K_STEP == 0 and k % self.group == 0
            check(good, "inputs of a matrix", k, f"groups of {self.group}")
        panels = -(-n // PANEL)
        data = room(panels * PANEL * 4 * (k // _WORDS[self.kind]))
        scales = dict.fromkeys((Kind.BF16, Kind.INT8), panels * PANEL)
        scales[Kind.INT4] = 2 * panels * PANEL * k // max(self.group, 1)
        return Packed(n, k, self.kind, self.group, data, np.zeros(scales.get(self.kind, 0), np.float32))

    def struct(self, room: Packed) -> CPacking:
        listed = (CSource * len(self.sources))(*(_source(s, room.k) for s in self.sources))
        return CPacking(room.struct(), listed, GATE if self.by_turns else 0)


@dataclass(frozen=True, slots=True)
class PackedLayer:
    attention_norm: NDArray[np.float32]  # [hidden]
    qkv: Packed
    o: Packed
    mlp_norm: NDArray[np.float32]  # [hidden]
    gate_up: Packed  # by turns GATE outputs of each
    down: Packed

    def struct(self) -> CLayer:
        return CLayer(
            self.attention_norm.ctypes.data,
            self.qkv.struct(),
            self.o.struct(),
            self.mlp_norm.ctypes.data,
            self.gate_up.struct(),
            self.down.struct(),
        )


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of some sequences, and where their keys and values are."""

    tokens: NDArray[np.int32]  # [rows]
    positions: NDArray[np.int32]  # [rows]
    sequences: NDArray[
        np.int32
    ]  # [sequences, 4]: first row, its position, rows, line of the tables; all rows, in order
    tables: NDArray[np.int32]  # [lines, width], contiguous: block numbers
    kv: Array  # [layers, blocks, block_elements], of `Shape.kv_type`

    def struct(self) -> CBatch:
        return CBatch(
            len(self.tokens),
            len(self.sequences),
            self.tokens.ctypes.data,
            self.positions.ctypes.data,
            self.sequences.ctypes.data,
            self.tables.ctypes.data,
            self.tables.shape[1],
            self.kv.shape[1],
            self.kv.ctypes.data,
        )


def room(nbytes: int) -> NDArray[np.uint8]:
    """Zeroed memory that begins with a page; counted when it is touched, a page at a time.

    Not in large pages, which numpy would ask for: to find them takes the system up to a second for each gigabyte.
    """
    mapping = mmap.mmap(-1, max(nbytes, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return np.frombuffer(mapping, np.uint8, nbytes)


def check(good: bool, field: str, seen: object, wanted: str) -> None:
    """Raises NativeError."""
    if not good:
        raise NativeError(f"{field} is {seen}, want {wanted}")


def _source(array: Array, k: int) -> CSource:
    kinds = {np.dtype(np.float32): Kind.F32, np.dtype(np.uint16): Kind.BF16, np.dtype(np.float16): Kind.F16}
    check(array.dtype in kinds, "a weight's type", array.dtype, "float32, float16 or bfloat16")
    check(array.ndim == 2 and array.shape[1] == k, "a weight's shape", array.shape, f"[rows, {k}]")
    return CSource(array.ctypes.data, kinds[array.dtype], array.shape[0])
