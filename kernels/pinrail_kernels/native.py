"""The CPU kernels in C++ (`kernels/native`), called by ctypes on numpy arrays. Knows nothing of torch.

One library holds every instruction set; which one is used is decided here, when it is opened:

    PINRAIL_ISA    chosen
    -----------    -----------------------------------------------------
    unset          the first of what this processor has: see `isas`
    a name         that one, or NativeError: avx2, avx512, avx512_bf16, neon
    none           NativeError, as where there is no library

A library has one team of threads, so one piece of work at a time; a call gives the interpreter up while it computes.
"""

import ctypes
import mmap
import os
from collections.abc import Sequence
from ctypes import POINTER, c_char_p, c_float, c_int, c_int32, c_void_p
from dataclasses import dataclass
from enum import IntEnum
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .native_sampling import CChoice, Choice, structures

INTERFACE = 2  # of the C functions; raised with each change, here and in kernels/native/api.cpp
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


class _Matrix(ctypes.Structure):
    _fields_ = (
        ("data", c_void_p),
        ("scales", c_void_p),
        ("n", c_int32),
        ("k", c_int32),
        ("kind", c_int32),
        ("group", c_int32),
    )


class _Source(ctypes.Structure):
    _fields_ = (("data", c_void_p), ("kind", c_int32), ("rows", c_int32))


class _Layer(ctypes.Structure):
    _fields_ = (
        ("attention_norm", c_void_p),
        ("qkv", _Matrix),
        ("o", _Matrix),
        ("mlp_norm", c_void_p),
        ("gate_up", _Matrix),
        ("down", _Matrix),
    )


class _Shape(ctypes.Structure):
    _fields_ = (
        *((name, c_int32) for name in ("hidden", "intermediate", "layers", "heads", "kv_heads", "head_dim", "vocab")),
        *((name, c_int32) for name in ("block_size", "kv_kind", "window")),
        *((name, c_float) for name in ("eps", "scale", "soft_cap")),
    )


class _Batch(ctypes.Structure):
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
        _check(self.block_size % TOKENS == 0, "block_size", self.block_size, f"a multiple of {TOKENS}")
        _check(self.kv_kind in (Kind.F32, Kind.BF16), "kv_kind", self.kv_kind, "F32 or BF16")
        _check(self.head_dim % 2 == 0, "head_dim", self.head_dim, "an even number")
        _check(self.heads % self.kv_heads == 0, "kv_heads", self.kv_heads, f"a divisor of heads, {self.heads}")
        _check(self.heads // self.kv_heads <= GROUP, "heads", self.heads, f"at most {GROUP} for each of kv_heads")

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

    def struct(self) -> _Shape:
        values = {field[0]: getattr(self, field[0]) for field in _Shape._fields_}
        return _Shape(**values | {"scale": self.scale or self.head_dim**-0.5})


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

    def struct(self) -> _Matrix:
        return _Matrix(self.data.ctypes.data, self.scales.ctypes.data, self.n, self.k, self.kind, self.group)


@dataclass(frozen=True, slots=True)
class PackedLayer:
    attention_norm: NDArray[np.float32]  # [hidden]
    qkv: Packed
    o: Packed
    mlp_norm: NDArray[np.float32]  # [hidden]
    gate_up: Packed  # by turns GATE outputs of each
    down: Packed

    def struct(self) -> _Layer:
        return _Layer(
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

    def struct(self) -> _Batch:
        return _Batch(
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
    """Zeroed memory that begins with a page, in large pages where the system has them; counted when it is touched."""
    mapping = mmap.mmap(-1, max(nbytes, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        mapping.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(mapping, np.uint8, nbytes)


def library_path() -> Path | None:
    """Where the package's library is, or None where it was built without."""
    spec = find_spec("pinrail_kernels._native")
    return Path(spec.origin) if spec and spec.origin else None


class Native:
    """The opened library with its team of threads.

    Args:
        threads: That compute, the caller's included.
        isa: See the module; '' for the environment's choice.
        path: Of the library; None for the package's own.
    """

    def __init__(self, threads: int, isa: str = "", path: Path | None = None) -> None:
        wanted = isa or os.environ.get("PINRAIL_ISA", "")
        if wanted == "none":
            raise NativeError("PINRAIL_ISA=none: the CPU kernels are not wanted")
        found = path or library_path()
        if found is None:
            raise NativeError("this installation was built without its CPU kernels")
        self._library = _opened(found)
        self.isas: tuple[str, ...] = tuple(filter(None, self._library.pinrail_isas().decode().split(",")))
        if not self.isas:
            raise NativeError("this processor has none of the instruction sets that the CPU kernels are written for")
        self.isa = wanted or self.isas[0]
        self.threads = threads
        if self._library.pinrail_begin(self.isa.encode(), threads) != 0:
            raise NativeError(f"PINRAIL_ISA={self.isa}: this processor has {', '.join(self.isas)}")

    def pack(self, kind: Kind, *sources: Array, group: int = 0, by_turns: bool = False) -> Packed:
        """Lay matrices [rows, k] out as one, quantised if `kind` is so.

        Args:
            sources: float32, float16 or, for bfloat16, uint16; contiguous, of the same k.
            group: Inputs that share a scale, with INT4.
            by_turns: Of two sources of equal size, GATE outputs of each by turns.
        """
        k, n = sources[0].shape[1], sum(s.shape[0] for s in sources)
        _check(k % K_STEP == 0, "inputs of a matrix", k, f"a multiple of {K_STEP}")
        if kind is Kind.INT4:
            _check(group > 0 and group % K_STEP == 0 and k % group == 0, "inputs of a matrix", k, f"groups of {group}")
        panels = -(-n // PANEL)
        data = room(panels * PANEL * 4 * (k // _WORDS[kind]))
        scales = {Kind.INT8: panels * PANEL, Kind.INT4: 2 * panels * PANEL * k // max(group, 1)}.get(kind, 0)
        packed = Packed(n, k, kind, group, data, np.zeros(scales, np.float32))
        listed = (_Source * len(sources))(*(_source(s, k) for s in sources))
        self._call("pinrail_pack", packed.struct(), listed, GATE if by_turns else 0)
        return packed

    def unpack(self, matrix: Packed, first: int, count: int) -> NDArray[np.float32]:
        """Rows [count, k] of a packed matrix."""
        out = np.empty((count, matrix.k), np.float32)
        self._library.pinrail_unpack(ctypes.byref(matrix.struct()), first, count, out.ctypes.data)
        return out

    def linear(self, matrix: Packed, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """x [m, k] -> [m, n], each sum taken in float32 in the order of the inputs."""
        out = np.empty((len(x), matrix.n), np.float32)
        self._call("pinrail_linear", matrix.struct(), x.ctypes.data, len(x), out.ctypes.data)
        return out

    def rms_norm(self, x: NDArray[np.float32], w: NDArray[np.float32], eps: float) -> NDArray[np.float32]:
        """x [m, n], w [n] -> [m, n]"""
        out = np.empty_like(x)
        self._call("pinrail_rms_norm", x.ctypes.data, w.ctypes.data, eps, *x.shape, out.ctypes.data)
        return out

    def silu_mul(self, gate_up: NDArray[np.float32]) -> NDArray[np.float32]:
        """[m, 2 n] -> [m, n]"""
        m, n = gate_up.shape[0], gate_up.shape[1] // 2
        out = np.empty((m, n), np.float32)
        self._call("pinrail_silu_mul", gate_up.ctypes.data, m, n, out.ctypes.data)
        return out

    def rope(self, x: NDArray[np.float32], positions: NDArray[np.int32], theta: float) -> None:
        """Turn x [n, heads, head_dim], in place."""
        n, heads, head_dim = x.shape
        shape = Shape(heads=1, kv_heads=1, head_dim=head_dim, block_size=TOKENS, kv_kind=Kind.F32, rope_theta=theta)
        frequencies = shape.frequencies()
        pointers = (x.ctypes.data, positions.ctypes.data, frequencies.ctypes.data)
        self._call("pinrail_rope", *pointers, n, heads, head_dim)

    def store_kv(self, shape: Shape, batch: Batch, k: NDArray[np.float32], v: NDArray[np.float32]) -> None:
        """Write k and v [rows, kv_heads, head_dim] into the cache of one layer."""
        pointers = (k.ctypes.data, v.ctypes.data)
        self._library.pinrail_store_kv(ctypes.byref(shape.struct()), ctypes.byref(batch.struct()), *pointers)

    def attention(self, shape: Shape, batch: Batch, q: NDArray[np.float32]) -> NDArray[np.float32]:
        """q [rows, heads, head_dim] -> the same; keys and values of all rows are in the cache of one layer."""
        out = np.empty_like(q)
        self._call("pinrail_attention", shape.struct(), batch.struct(), q.ctypes.data, out.ctypes.data)
        return out

    def sample(self, logits: NDArray[np.float32], choices: Sequence[Choice]) -> NDArray[np.int64]:
        """One token id per row [s] of logits [s, vocab]; -1 for a row that has no finite maximum."""
        out = np.empty(len(choices), np.int64)
        listed = structures(logits, choices)
        self._call("pinrail_sample", logits.ctypes.data, *logits.shape, listed, out.ctypes.data)
        return out

    def decoder(
        self, shape: Shape, layers: Sequence[PackedLayer], embed: Packed, head: Packed, norm: NDArray[np.float32]
    ) -> "Decoder":
        return Decoder(self, shape, layers, embed, head, norm)

    def _call(self, name: str, *arguments: Any) -> None:
        """Structures go by reference."""
        passed = [ctypes.byref(a) if isinstance(a, ctypes.Structure) else a for a in arguments]
        if getattr(self._library, name)(*passed) != 0:
            raise MemoryError(f"{name}: no memory for what it works with")


class Decoder:
    """A whole network, of which a batch is computed in one call."""

    def __init__(
        self,
        native: Native,
        shape: Shape,
        layers: Sequence[PackedLayer],
        embed: Packed,
        head: Packed,
        norm: NDArray[np.float32],
    ) -> None:
        self._native, self._vocab = native, shape.vocab
        self._logits = np.empty((0, shape.vocab), np.float32)
        self._kept = (layers, embed, head, norm)  # what C++ holds pointers into
        listed = (_Layer * len(layers))(*(layer.struct() for layer in layers))
        frequencies = shape.frequencies()
        self._pointer = native._library.pinrail_decoder(
            ctypes.byref(shape.struct()),
            listed,
            ctypes.byref(embed.struct()),
            ctypes.byref(head.struct()),
            norm.ctypes.data,
            frequencies.ctypes.data,
        )
        if not self._pointer:
            raise MemoryError("no memory for a decoder")

    def forward(self, batch: Batch) -> None:
        """Compute a batch; `logits` then gives what follows its rows."""
        self._native._call("pinrail_forward", self._pointer, batch.struct())

    def logits(self, rows: NDArray[np.int32]) -> NDArray[np.float32]:
        """[n, vocab], after rows [n] of the last batch. In memory that the next call writes to again."""
        if len(self._logits) < len(rows):
            self._logits = np.empty((len(rows), self._vocab), np.float32)
        out = self._logits[: len(rows)]
        self._native._call("pinrail_logits", self._pointer, rows.ctypes.data, len(rows), out.ctypes.data)
        return out

    def close(self) -> None:
        """Give the memory back; nothing may be computed after it."""
        if self._pointer:
            self._native._library.pinrail_free_decoder(self._pointer)
            self._pointer = None


def _opened(path: Path) -> ctypes.CDLL:
    """Raises NativeError where the library was built from other sources than this file belongs to."""
    library = ctypes.CDLL(str(path))
    built = library.pinrail_interface()
    _check(built == INTERFACE, f"the interface of {path}", built, f"{INTERFACE}: build the package again")
    return _declared(library)


def _declared(library: ctypes.CDLL) -> ctypes.CDLL:
    """With the types of its functions, so that ctypes refuses what does not fit."""
    p = c_void_p
    signatures: dict[str, tuple[Any, tuple[Any, ...]]] = {
        "pinrail_isas": (c_char_p, ()),
        "pinrail_begin": (c_int, (c_char_p, c_int)),
        "pinrail_pack": (c_int, (POINTER(_Matrix), POINTER(_Source), c_int)),
        "pinrail_unpack": (None, (POINTER(_Matrix), c_int, c_int, p)),
        "pinrail_decoder": (p, (POINTER(_Shape), POINTER(_Layer), POINTER(_Matrix), POINTER(_Matrix), p, p)),
        "pinrail_free_decoder": (None, (p,)),
        "pinrail_forward": (c_int, (p, POINTER(_Batch))),
        "pinrail_logits": (c_int, (p, p, c_int, p)),
        "pinrail_linear": (c_int, (POINTER(_Matrix), p, c_int, p)),
        "pinrail_rms_norm": (c_int, (p, p, c_float, c_int, c_int, p)),
        "pinrail_silu_mul": (c_int, (p, c_int, c_int, p)),
        "pinrail_rope": (c_int, (p, p, p, c_int, c_int, c_int)),
        "pinrail_store_kv": (None, (POINTER(_Shape), POINTER(_Batch), p, p)),
        "pinrail_sample": (c_int, (p, c_int, c_int, POINTER(CChoice), p)),
        "pinrail_attention": (c_int, (POINTER(_Shape), POINTER(_Batch), p, p)),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def _source(array: Array, k: int) -> _Source:
    kinds = {np.dtype(np.float32): Kind.F32, np.dtype(np.uint16): Kind.BF16, np.dtype(np.float16): Kind.F16}
    _check(array.dtype in kinds, "a weight's type", array.dtype, "float32, float16 or bfloat16")
    _check(array.ndim == 2 and array.shape[1] == k, "a weight's shape", array.shape, f"[rows, {k}]")
    return _Source(array.ctypes.data, kinds[array.dtype], array.shape[0])


def _check(good: bool, field: str, seen: object, wanted: str) -> None:
    if not good:
        raise NativeError(f"{field} is {seen}, want {wanted}")
