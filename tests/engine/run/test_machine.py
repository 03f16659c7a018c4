"""What the machine decides: number type and threads."""

import pytest

from pinrail_contract.launch import Dtype
from pinrail_engine.run.dtype import Processor, choose, processor
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
