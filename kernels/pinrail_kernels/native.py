"""The CPU kernels in C++ (`kernels/native`), called by ctypes on numpy arrays. Knows nothing of torch.

One library holds every instruction set; which one is used is decided here, when it is opened:

    PINRAIL_ISA    chosen
    -----------    -----------------------------------------------------
    unset          the first of what this processor has: see `isas`
    a name         that one, or NativeError: avx2, avx512, avx512_bf16, avx512_fp16, neon
    none           NativeError, as where there is no library

A library has one team of threads, so one piece of work at a time; a call gives the interpreter up while it computes.
"""

import ctypes
import os
from collections.abc import Sequence
from ctypes import POINTER, c_char_p, c_float, c_int, c_void_p
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .native_sampling import CChoice, Choice, structures
from .native_types import (
    GATE,
    GROUP,
    K_STEP,
    PANEL,
    TOKENS,
    Array,
    Batch,
    CBatch,
    CLayer,
    CMatrix,
    CPacking,
    CShape,
    Kind,
    NativeError,
    Packed,
    PackedLayer,
    Packing,
    Shape,
    check,
    room,
)

__all__ = [
    "GATE",
    "GROUP",
    "INTERFACE",
    "K_STEP",
    "PANEL",
    "TOKENS",
    "Array",
    "Batch",
    "Decoder",
    "Kind",
    "Native",
    "NativeError",
    "Packed",
    "PackedLayer",
    "Packing",
    "Shape",
    "library_path",
    "room",
]

INTERFACE = 3  # of the C functions; raised with each change, here and in kernels/native/api.cpp


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
        """Lay matrices out as one; see `Packing`."""
        (packed,) = self.pack_all([Packing(kind, sources, group, by_turns)])
        return packed

    def pack_all(self, wanted: Sequence[Packing]) -> list[Packed]:
        """Lay each matrix out, quantised where its kind is so."""
        packed = [packing.room() for packing in wanted]
        listed = (CPacking * len(packed))(*(w.struct(p) for w, p in zip(wanted, packed, strict=True)))
        self._call("pinrail_pack", listed, len(packed))
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
        listed = (CLayer * len(layers))(*(layer.struct() for layer in layers))
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

    def reserve(self, batch: Batch) -> None:
        """Take the memory that `forward` of such a batch works with; `logits` are then those of zeros."""
        self._native._call("pinrail_reserve", self._pointer, batch.struct())

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
    check(built == INTERFACE, f"the interface of {path}", built, f"{INTERFACE}: build the package again")
    return _declared(library)


def _declared(library: ctypes.CDLL) -> ctypes.CDLL:
    """With the types of its functions, so that ctypes refuses what does not fit."""
    p = c_void_p
    signatures: dict[str, tuple[Any, tuple[Any, ...]]] = {
        "pinrail_isas": (c_char_p, ()),
        "pinrail_begin": (c_int, (c_char_p, c_int)),
        "pinrail_pack": (c_int, (POINTER(CPacking), c_int)),
        "pinrail_unpack": (None, (POINTER(CMatrix), c_int, c_int, p)),
        "pinrail_decoder": (p, (POINTER(CShape), POINTER(CLayer), POINTER(CMatrix), POINTER(CMatrix), p, p)),
        "pinrail_free_decoder": (None, (p,)),
        "pinrail_reserve": (c_int, (p, POINTER(CBatch))),
        "pinrail_forward": (c_int, (p, POINTER(CBatch))),
        "pinrail_logits": (c_int, (p, p, c_int, p)),
        "pinrail_linear": (c_int, (POINTER(CMatrix), p, c_int, p)),
        "pinrail_rms_norm": (c_int, (p, p, c_float, c_int, c_int, p)),
        "pinrail_silu_mul": (c_int, (p, c_int, c_int, p)),
        "pinrail_rope": (c_int, (p, p, p, c_int, c_int, c_int)),
        "pinrail_store_kv": (None, (POINTER(CShape), POINTER(CBatch), p, p)),
        "pinrail_sample": (c_int, (p, c_int, c_int, POINTER(CChoice), p)),
        "pinrail_attention": (c_int, (POINTER(CShape), POINTER(CBatch), p, p)),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library
