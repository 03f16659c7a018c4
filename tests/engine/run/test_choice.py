"""Which backend computes: the table of `choose_backend`, row by row, and what its refusals say."""

import pytest

from pinrail_contract.launch import BackendName, Quantization
from pinrail_engine.errors import LaunchError
from pinrail_engine.run.choice import choose_backend

AUTO, NATIVE, TORCH = BackendName.AUTO, BackendName.NATIVE, BackendName.TORCH
BROKEN = "block_size is 8, want a multiple of 16"


def choose(
    wanted: BackendName,
    *,
    torch: bool = True,
    accelerator: bool = False,
    problem: str = "",
    quantization: Quantization = Quantization.NONE,
) -> tuple[BackendName, str]:
    return choose_backend(wanted, quantization, torch=torch, accelerator=accelerator, native_problem=lambda: problem)


@pytest.mark.parametrize(
    ("wanted", "torch", "accelerator", "problem", "chosen", "reason"),
    [
        pytest.param(TORCH, True, False, "", TORCH, "--backend", id="torch is asked for"),
        pytest.param(NATIVE, True, False, "", NATIVE, "--backend", id="native is asked for"),
        pytest.param(AUTO, True, True, "", TORCH, "there is an accelerator", id="an accelerator"),
        pytest.param(AUTO, True, False, "", NATIVE, "no accelerator", id="none: native"),
        pytest.param(AUTO, False, False, "", NATIVE, "no accelerator", id="none, and no torch: native"),
        pytest.param(AUTO, True, False, BROKEN, TORCH, BROKEN, id="native cannot: torch"),
    ],
)
def test_choice(
    wanted: BackendName, torch: bool, accelerator: bool, problem: str, chosen: BackendName, reason: str
) -> None:
    found, why = choose(wanted, torch=torch, accelerator=accelerator, problem=problem)
    assert found is chosen
    assert reason in why


@pytest.mark.parametrize(
    ("wanted", "torch", "problem", "message"),
    [
        pytest.param(TORCH, False, "", r"got torch, .*`pip install 'pinrail\[gpu\]'`, is not installed", id="torch"),
        pytest.param(NATIVE, True, BROKEN, f"got native, want one that works here: {BROKEN}", id="native"),
        pytest.param(AUTO, False, BROKEN, rf"got auto, .*pinrail\[gpu\].* C\+\+ compiler .*\({BROKEN}\)", id="neither"),
    ],
)
def test_where_none_can_it_says_what_is_missing_and_how_to_get_it(
    wanted: BackendName, torch: bool, problem: str, message: str
) -> None:
    with pytest.raises(LaunchError, match=f"--backend: {message}"):
        choose(wanted, torch=torch, problem=problem)


@pytest.mark.parametrize(
    ("wanted", "accelerator", "problem", "why"),
    [
        pytest.param(TORCH, False, "", "--backend asks for it", id="torch is asked for"),
        pytest.param(AUTO, True, "", "there is an accelerator", id="an accelerator"),
        pytest.param(AUTO, False, BROKEN, BROKEN, id="native cannot"),
    ],
)
def test_torch_does_not_keep_weights_quantised(wanted: BackendName, accelerator: bool, problem: str, why: str) -> None:
    with pytest.raises(LaunchError, match=rf"--quantization: got int8, want none on the torch backend \(.*{why}"):
        choose(wanted, accelerator=accelerator, problem=problem, quantization=Quantization.INT8)


def test_the_library_is_not_opened_where_it_does_not_matter() -> None:
    def opened() -> str:
        raise AssertionError("opened")

    for wanted in (TORCH, AUTO):
        choose_backend(wanted, Quantization.NONE, torch=True, accelerator=True, native_problem=opened)
