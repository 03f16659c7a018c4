"""How many KV blocks there are, and how long a request may be. Pure."""

from dataclasses import dataclass

from pinrail_contract.launch import LaunchSpec

from ..core.state import Limits
from ..errors import LaunchError
from ..model.arch import Arch

_SHARE = 0.9  # of what is free that the cache takes where it is measured: the rest is for what was not tried out


@dataclass(frozen=True, slots=True)
class Sizes:
    kv_blocks: int
    limits: Limits


def check(spec: LaunchSpec, arch: Arch, element_size: int) -> None:
    """What can be known before anything is loaded; raises LaunchError where the flags do not fit."""
    if spec.max_model_len > arch.max_position:
        wanted = f"at most the {arch.max_position} tokens that the model was trained for"
        raise LaunchError("--max-model-len", spec.max_model_len, wanted)
    if spec.max_model_len == 1:
        raise LaunchError("--max-model-len", 1, "at least 2: a token of prompt and one of output")
    if spec.kv_cache_memory:
        _check_room(spec, arch, element_size, spec.kv_cache_memory, "--kv-cache-memory")


def sizes(spec: LaunchSpec, arch: Arch, element_size: int, free: int, target_step: float) -> Sizes:
    """Raises LaunchError where not even one request fits.

    Args:
        element_size: Bytes of one number of the compute type.
        free: Bytes that are free for the cache; looked at only where `--kv-cache-memory` does not say.
        target_step: Seconds.

    | --kv-cache-memory | the cache takes                                                                   |
    |-------------------|-----------------------------------------------------------------------------------|
    | bytes             | those                                                                             |
    | 0                 | 90 % of what is free, and no more than all slots with full windows can use        |
    """
    block_bytes = arch.kv_block_bytes(spec.block_size, element_size)
    window = spec.max_model_len or arch.max_position
    useful = seqs(spec) * -(-window // spec.block_size)  # blocks
    room = spec.kv_cache_memory or min(int(free * _SHARE), useful * block_bytes)
    if not spec.kv_cache_memory:
        _check_room(spec, arch, element_size, room, "memory that is free for the KV cache")
    blocks = room // block_bytes
    limits = Limits(
        vocab_size=arch.vocab,
        max_model_len=spec.max_model_len or min(arch.max_position, blocks * spec.block_size),
        max_num_seqs=seqs(spec),
        max_num_batched_tokens=spec.max_num_batched_tokens,
        policy=spec.policy,
        target_step=target_step,
    )
    return Sizes(blocks, limits)


def seqs(spec: LaunchSpec) -> int:
    """Every running request must fit a step, so a token budget below `--max-num-seqs` lowers it."""
    return min(spec.max_num_seqs, spec.max_num_batched_tokens)


def _check_room(spec: LaunchSpec, arch: Arch, element_size: int, room: int, name: str) -> None:
    block_bytes = arch.kv_block_bytes(spec.block_size, element_size)
    tokens = room // block_bytes * spec.block_size
    if tokens < 2:
        raise LaunchError(name, room, f"at least {block_bytes} bytes, one block")
    if spec.max_model_len > tokens:
        needed = -(-spec.max_model_len // spec.block_size) * block_bytes
        wanted = f"at least {needed} bytes, for one request of --max-model-len={spec.max_model_len}"
        raise LaunchError(name, room, wanted)
