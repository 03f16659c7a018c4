"""What the machine decides: number type, threads, blocks."""

from dataclasses import replace

import pytest

from pinrail_contract.launch import Dtype, LaunchSpec
from pinrail_engine.core.state import Limits
from pinrail_engine.errors import LaunchError
from pinrail_engine.model.arch import Arch
from pinrail_engine.run.dtype import Processor, choose, processor
from pinrail_engine.run.sizes import sizes
from pinrail_engine.run.threads import allowed, count

AMX = Processor("GenuineIntel", frozenset({"avx512_bf16", "amx_bf16"}))
ZEN4 = Processor("AuthenticAMD", frozenset({"avx512_bf16", "avx2"}))
NO_AMX = Processor("GenuineIntel", frozenset({"avx512_bf16", "avx2"}))
PLAIN = Processor("AuthenticAMD", frozenset({"avx2"}))


@pytest.mark.parametrize(
    ("wanted", "cpu", "accelerator", "chosen", "reason"),
    [
        pytest.param(Dtype.BFLOAT16, PLAIN, False, Dtype.BFLOAT16, "--dtype", id="explicit"),
        pytest.param(Dtype.FLOAT32, AMX, True, Dtype.FLOAT32, "--dtype", id="explicit, against the machine"),
        pytest.param(Dtype.AUTO, PLAIN, True, Dtype.BFLOAT16, "accelerator", id="accelerator"),
        pytest.param(Dtype.AUTO, AMX, False, Dtype.BFLOAT16, "amx_bf16", id="AMX"),
        pytest.param(Dtype.AUTO, ZEN4, False, Dtype.BFLOAT16, "avx512_bf16", id="AVX-512 bfloat16 of AMD"),
        pytest.param(Dtype.AUTO, NO_AMX, False, Dtype.FLOAT32, "no faster", id="AVX-512 bfloat16 of Intel"),
        pytest.param(Dtype.AUTO, PLAIN, False, Dtype.FLOAT32, "no faster", id="neither"),
        pytest.param(Dtype.AUTO, Processor(), False, Dtype.FLOAT32, "no faster", id="unknown"),
    ],
)
def test_dtype(wanted: Dtype, cpu: Processor, accelerator: bool, chosen: Dtype, reason: str) -> None:
    found, why = choose(wanted, cpu, accelerator)
    assert found == chosen
    assert reason in why


@pytest.mark.parametrize(
    ("processors", "quota", "threads"),
    [
        (8, "max 100000", 8),
        (8, "250000 100000", 2),
        (8, "50000 100000", 1),
        (2, "800000 100000", 2),
        (8, "-1 100000", 8),
        (8, "", 8),
        (8, "100000 0", 8),
    ],
)
def test_threads(processors: int, quota: str, threads: int) -> None:
    assert count(processors, quota) == threads


def test_this_machine_can_be_read() -> None:
    assert allowed() >= 1
    assert processor() == Processor() or "fpu" in processor().flags


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
SPEC = LaunchSpec(model_dir="d", manifest="m", kv_cache_memory=65536)


def test_blocks_fill_the_memory_and_the_window_is_what_fits() -> None:
    size = sizes(SPEC, ARCH, 4)
    assert size.kv_blocks == 65536 // BLOCK_BYTES == 64
    assert size.limits == Limits(vocab_size=10, max_model_len=1024, max_num_seqs=32, max_num_batched_tokens=512)
    assert sizes(replace(SPEC, block_size=1000), replace(ARCH, max_position=8192), 4).limits.max_model_len == 1000


def test_a_small_step_lowers_the_number_of_sequences() -> None:
    assert sizes(replace(SPEC, max_num_batched_tokens=4), ARCH, 4).limits.max_num_seqs == 4


@pytest.mark.parametrize(
    ("change", "element_size", "message"),
    [
        ({"block_size": 1024}, 8, "--kv-cache-memory: got 65536, want at least 131072 bytes, one block"),
        ({"max_model_len": 1025}, 4, "--max-model-len: got 1025, want at most the 1024 tokens"),
        ({"max_model_len": 1}, 4, "--max-model-len: got 1, want at least 2"),
    ],
)
def test_flags_that_do_not_fit(change: dict[str, int], element_size: int, message: str) -> None:
    with pytest.raises(LaunchError, match=message):
        sizes(replace(SPEC, **change), ARCH, element_size)


def test_a_window_larger_than_the_cache_names_the_memory_it_needs() -> None:
    with pytest.raises(LaunchError, match=f"want at least {65 * BLOCK_BYTES} bytes, for one request"):
        sizes(replace(SPEC, max_model_len=1025), replace(ARCH, max_position=4096), 4)
