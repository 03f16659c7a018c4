"""How many KV blocks fit the memory, and how long a request may be. Pure."""

from dataclasses import dataclass

from pinrail_contract.launch import LaunchSpec

from ..core.state import Limits
from ..errors import LaunchError
from ..model.arch import Arch


@dataclass(frozen=True, slots=True)
class Sizes:
    kv_blocks: int
    limits: Limits


def sizes(spec: LaunchSpec, arch: Arch, element_size: int) -> Sizes:
    """Args: element_size: bytes of one number of the compute type. Raises LaunchError where the flags do not fit."""
    block_bytes = arch.kv_block_bytes(spec.block_size, element_size)
    blocks = spec.kv_cache_memory // block_bytes
    tokens = blocks * spec.block_size
    if tokens < 2:
        raise LaunchError("--kv-cache-memory", spec.kv_cache_memory, f"at least {block_bytes} bytes, one block")
    if spec.max_model_len > arch.max_position:
        wanted = f"at most the {arch.max_position} tokens that the model was trained for"
        raise LaunchError("--max-model-len", spec.max_model_len, wanted)
    if spec.max_model_len > tokens:
        needed = -(-spec.max_model_len // spec.block_size) * block_bytes
        wanted = f"at least {needed} bytes, for one request of --max-model-len={spec.max_model_len}"
        raise LaunchError("--kv-cache-memory", spec.kv_cache_memory, wanted)
    if spec.max_model_len == 1:
        raise LaunchError("--max-model-len", 1, "at least 2: a token of prompt and one of output")
    return Sizes(blocks, _limits(spec, arch.vocab, min(arch.max_position, tokens)))


def _limits(spec: LaunchSpec, vocab_size: int, longest: int) -> Limits:
    """Every running request must fit a step, so a token budget below `max_num_seqs` lowers it."""
    return Limits(
        vocab_size=vocab_size,
        max_model_len=spec.max_model_len or longest,
        max_num_seqs=min(spec.max_num_seqs, spec.max_num_batched_tokens),
        max_num_batched_tokens=spec.max_num_batched_tokens,
    )
