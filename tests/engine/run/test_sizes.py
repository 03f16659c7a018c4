"""How many KV blocks: as told, or as measured; and what does not fit."""

from dataclasses import replace
from typing import Any

import pytest

from pinrail_contract.launch import LaunchSpec, Policy
from pinrail_engine.core.state import Limits
from pinrail_engine.errors import LaunchError
from pinrail_engine.model.arch import Arch
from pinrail_engine.run.sizes import check, sizes

ARCH = Arch(
    hidden=8,
    intermediate=8,
    layers=2,
    heads=2,
    kv_heads=1,
    head_dim=4,
    vocab=10,
    max_position=1024,
    eps=1e-5,
    rope_theta=1e4,
    tied=True,
)
BLOCK_BYTES = 2 * 2 * 16 * 4 * 4  # keys and values, layers, tokens, numbers, bytes
TOLD = LaunchSpec(model_dir="d", manifest="m", kv_cache_memory=65536)
MEASURED = LaunchSpec(model_dir="d", manifest="m")


def test_blocks_fill_the_memory_and_the_window_is_what_fits() -> None:
    size = sizes(TOLD, ARCH, 4, 0, 0.2)
    assert size.kv_blocks == 65536 // BLOCK_BYTES == 64
    assert size.limits == Limits(
        vocab_size=10, max_model_len=1024, max_num_seqs=32, max_num_batched_tokens=512, target_step=0.2
    )
    wide = replace(TOLD, block_size=1000)
    assert sizes(wide, replace(ARCH, max_position=8192), 4, 0, 0).limits.max_model_len == 1000


def test_nine_tenths_of_what_is_free_are_taken_where_nothing_is_told() -> None:
    assert sizes(MEASURED, ARCH, 4, 100 * BLOCK_BYTES, 0).kv_blocks == 90


def test_no_more_is_taken_than_all_slots_with_full_windows_can_use() -> None:
    assert sizes(MEASURED, ARCH, 4, 2**40, 0).kv_blocks == 32 * 1024 // 16
    assert sizes(replace(MEASURED, max_model_len=100), ARCH, 4, 2**40, 0).kv_blocks == 32 * 7


def test_a_small_step_lowers_the_number_of_sequences() -> None:
    assert sizes(replace(TOLD, max_num_batched_tokens=4), ARCH, 4, 0, 0).limits.max_num_seqs == 4


def test_the_policy_is_handed_on() -> None:
    assert sizes(replace(TOLD, policy=Policy.SJF), ARCH, 4, 0, 0).limits.policy is Policy.SJF


@pytest.mark.parametrize(
    ("change", "element_size", "message"),
    [
        ({"block_size": 1024}, 8, "--kv-cache-memory: got 65536, want at least 131072 bytes, one block"),
        ({"max_model_len": 1025}, 4, "--max-model-len: got 1025, want at most the 1024 tokens"),
        ({"max_model_len": 1}, 4, "--max-model-len: got 1, want at least 2"),
        ({"kv_cache_memory": 0, "max_model_len": 1025}, 4, "--max-model-len: got 1025, want at most the 1024 tokens"),
    ],
)
def test_flags_that_do_not_fit(change: dict[str, Any], element_size: int, message: str) -> None:
    with pytest.raises(LaunchError, match=message):
        check(replace(TOLD, **change), ARCH, element_size)


def test_a_window_larger_than_the_cache_names_the_memory_it_needs() -> None:
    with pytest.raises(LaunchError, match=f"want at least {65 * BLOCK_BYTES} bytes, for one request"):
        check(replace(TOLD, max_model_len=1025), replace(ARCH, max_position=4096), 4)


@pytest.mark.parametrize(("free", "window"), [(0, 0), (BLOCK_BYTES, 0), (60 * BLOCK_BYTES, 1000)])
def test_too_little_free_memory_says_how_much_is_needed(free: int, window: int) -> None:
    with pytest.raises(LaunchError, match=r"memory that is free for the KV cache: got \d+, want at least"):
        sizes(replace(MEASURED, max_model_len=window), ARCH, 4, free, 0)
