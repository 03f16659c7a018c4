"""What the machine decides: number type, threads, and whether torch may find an accelerator."""

from pathlib import Path

import pytest

from pinrail_contract.launch import BackendName, Dtype
from pinrail_engine.run.accelerator import has_nvidia
from pinrail_engine.run.dtype import Processor, choose, processor
from pinrail_engine.run.threads import allowed, count

AMX = Processor("GenuineIntel", frozenset({"avx512_bf16", "amx_bf16"}))
ZEN4 = Processor("AuthenticAMD", frozenset({"avx512_bf16", "avx2"}))
NO_AMX = Processor("GenuineIntel", frozenset({"avx512_bf16", "avx2"}))
PLAIN = Processor("AuthenticAMD", frozenset({"avx2"}))


NATIVE, TORCH = BackendName.NATIVE, BackendName.TORCH


@pytest.mark.parametrize(
    ("wanted", "backend", "cpu", "accelerator", "chosen", "reason"),
    [
        pytest.param(Dtype.BFLOAT16, TORCH, PLAIN, False, Dtype.BFLOAT16, "--dtype", id="explicit"),
        pytest.param(Dtype.FLOAT32, TORCH, AMX, True, Dtype.FLOAT32, "--dtype", id="explicit, against the machine"),
        pytest.param(Dtype.FLOAT32, NATIVE, AMX, False, Dtype.FLOAT32, "--dtype", id="explicit, native"),
        pytest.param(Dtype.AUTO, NATIVE, PLAIN, False, Dtype.BFLOAT16, "half as much to read", id="native"),
        pytest.param(Dtype.AUTO, TORCH, PLAIN, True, Dtype.BFLOAT16, "accelerator", id="accelerator"),
        pytest.param(Dtype.AUTO, TORCH, AMX, False, Dtype.BFLOAT16, "amx_bf16", id="AMX"),
        pytest.param(Dtype.AUTO, TORCH, ZEN4, False, Dtype.BFLOAT16, "avx512_bf16", id="AVX-512 bfloat16 of AMD"),
        pytest.param(Dtype.AUTO, TORCH, NO_AMX, False, Dtype.FLOAT32, "no faster", id="AVX-512 bfloat16 of Intel"),
        pytest.param(Dtype.AUTO, TORCH, PLAIN, False, Dtype.FLOAT32, "no faster", id="neither"),
        pytest.param(Dtype.AUTO, TORCH, Processor(), False, Dtype.FLOAT32, "no faster", id="unknown"),
    ],
)
def test_dtype(
    wanted: Dtype, backend: BackendName, cpu: Processor, accelerator: bool, chosen: Dtype, reason: str
) -> None:
    found, why = choose(wanted, backend, cpu, accelerator)
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


@pytest.mark.parametrize(
    ("path", "found"),
    [("dev/nvidia0", True), ("dev/nvidiactl", True), ("proc/driver/nvidia", True), ("dev/null", False)],
)
def test_torch_is_asked_for_an_accelerator_only_where_the_driver_has_left_a_trace(
    tmp_path: Path, path: str, found: bool
) -> None:
    (tmp_path / path).mkdir(parents=True)
    assert has_nvidia(tmp_path) == found


def test_a_machine_without_devices_has_no_accelerator(tmp_path: Path) -> None:
    assert not has_nvidia(tmp_path)
