"""Weights in 8 or 4 bits: what they stand for, and how they are made from a matrix. Pure torch; no kernel is here.

    int8    w = q s,      s = max |w| / 127           per output row,              q = round(w / s)
    int4    w = q s + m,  s = (max w - m) / 15, m = min w  per row and group of columns,  q = round((w - m) / s)

Rounded to nearest, ties to even. A row of zeros, or a group of equal weights, has the scale 0.

Four bits are two to a byte. 32 columns are 16 bytes: byte j of them has column j in its low half and column 16 + j in
its high half, so that a kernel gets two runs of 16 columns out of 16 bytes with one shift.

Source of the layout: `block_q4_1` of ggml, https://github.com/ggml-org/ggml, src/ggml-common.h (there with scale
and least weight beside each block).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from .checks import FLOATS, want_dtype, want_shape

RUN = 32  # columns that are packed together
GROUPS = (32, 128)  # columns that may share a scale


@dataclass(frozen=True, slots=True)
class Int8Weight:
    values: Tensor  # [out, in] int8
    scales: Tensor  # [out] float32

    @property
    def shape(self) -> tuple[int, int]:
        """Of the matrix that this stands for."""
        out, width = self.values.shape
        return out, width


@dataclass(frozen=True, slots=True)
class Int4Weight:
    packed: Tensor  # [out, in / 2] uint8
    steps: Tensor  # [out, 2, in / group] float32: scales, then least weights

    @property
    def shape(self) -> tuple[int, int]:
        """Of the matrix that this stands for."""
        return self.packed.shape[0], 2 * self.packed.shape[1]

    @property
    def group(self) -> int:
        """Columns that share a scale."""
        return self.shape[1] // self.steps.shape[2]


def quantize_int8(w: Tensor) -> Int8Weight:
    """Args: w: [out, in], a float dtype; not changed."""
    _check(w)
    scales = w.float().abs().amax(-1) / 127
    return Int8Weight(_rounded(w.float(), scales[:, None], -127, 127).to(torch.int8), scales)


def quantize_int4(w: Tensor, group: int = 128) -> Int4Weight:
    """Make 4-bit weights.

    Args:
        w: [out, in], a float dtype; not changed.
        group: Columns that share a scale, 32 or 128; divides `in`.

    Raises:
        ValueError: A shape, dtype or group is not as above.
    """
    _check(w)
    if group not in GROUPS or w.shape[1] % group:
        raise ValueError(f"group must be 32 or 128 and divide the {w.shape[1]} columns of w, got {group}")
    groups = w.float().view(w.shape[0], -1, group)
    least, most = groups.amin(-1), groups.amax(-1)
    scales = (most - least) / 15
    values = _rounded(groups - least[..., None], scales[..., None], 0, 15)
    low, high = values.to(torch.uint8).view(w.shape[0], -1, 2, RUN // 2).unbind(2)
    return Int4Weight((low | high << 4).flatten(1), torch.stack((scales, least), 1))


def dequantize(w: Int8Weight | Int4Weight) -> Tensor:
    """The matrix that a weight stands for: [out, in] float32."""
    if isinstance(w, Int8Weight):
        return w.values.float() * w.scales[:, None]
    bytes_ = w.packed.view(w.packed.shape[0], -1, RUN // 2)
    values = torch.stack((bytes_ & 15, bytes_ >> 4), 2).flatten(1).float()
    scales, least = w.steps.repeat_interleave(w.group, dim=2).unbind(1)
    return values * scales + least


def _check(w: Tensor) -> None:
    want_shape("w", w, None, None)
    want_dtype("w", w, *FLOATS)


def _rounded(w: Tensor, scales: Tensor, lowest: int, highest: int) -> Tensor:
    """Whole numbers of the shape of `w`; zeros where the scale is 0."""
    return (w / torch.where(scales > 0, scales, 1.0)).round_().clamp_(lowest, highest)
