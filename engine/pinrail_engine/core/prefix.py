"""Names of KV blocks by content: a block's hash stands for its tokens and everything before them. Pure.

    h(0) = sha256(root, tokens of block 0),  h(i) = sha256(h(i - 1), tokens of block i)

The root stands for all else that the numbers in a block depend on, so equal hashes mean equal blocks, in any process of
the same model and settings. Salt and adapter are in the root, so no block of one is ever found by another.

Source: Zheng et al. 2023, https://arxiv.org/abs/2312.07104, section 3 (the idea); CVE-2025-46570 (why the salt) and
GHSA-rm76-4mrf-v9r8 (why sha256, and not a hash that collisions can be made for).
"""

import json
from array import array
from collections.abc import Sequence
from hashlib import sha256

_ID_CODE = "i"  # 4 bytes on every platform that CPython runs on


def root(
    *, model: str, dtype: str, block_size: int, quantization: str = "none", salt: str = "", adapter: str = ""
) -> bytes:
    """Args: model: the manifest's digest; dtype, quantization: of cache and weights; block_size: tokens."""
    parts = {
        "model": model,
        "dtype": dtype,
        "quantization": quantization,
        "block_size": block_size,
        "salt": salt,
        "adapter": adapter,
    }
    return sha256(json.dumps(parts, sort_keys=True).encode()).digest()


def extend(hashes: list[bytes], start: bytes, tokens: Sequence[int], block_size: int, upto: int) -> None:
    """Append the hashes of the full blocks that `hashes` lacks, for the first `upto` tokens.

    Args:
        hashes: Of the first blocks, in order; changed in place.
        start: The chain's root.
    """
    parent = hashes[-1] if hashes else start
    for begin in range(len(hashes) * block_size, upto - block_size + 1, block_size):
        parent = sha256(parent + array(_ID_CODE, tokens[begin : begin + block_size]).tobytes()).digest()
        hashes.append(parent)
