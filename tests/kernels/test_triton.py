"""The Triton kernels, without a GPU: they equal their definitions, and they compile for devices that are not here.

Each in a process of its own, for kernels that can be interpreted cannot be compiled, and neither kind suits the tests
of the engine: see `triton/conftest.py`.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton is not installed here (requirements of `gpu`)")

FOLDER = Path(__file__).parent / "triton"
SHARED = {80: 163 * 1024, 90: 227 * 1024}  # bytes that one program may have, CUDA C++ Programming Guide, table 30


@pytest.fixture(scope="module")
def interpreted() -> subprocess.Popen[str]:
    """Begun with the compiling, which is waited for first: each fills a processor."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", FOLDER]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=FOLDER.parents[2])


@pytest.mark.parametrize("capability", SHARED)
def test_the_kernels_compile_for_devices_that_are_not_here(
    capability: int, interpreted: object, tmp_path: Path
) -> None:
    run = subprocess.run(
        [sys.executable, FOLDER / "ahead_of_time.py", str(capability)],
        env=os.environ | {"TRITON_CACHE_DIR": str(tmp_path)},  # empty: nothing was compiled before
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    kernels = json.loads(run.stdout)
    assert len(kernels) == 21
    for name, size in kernels.items():
        assert size["cubin"] > 0, name
        assert size["shared"] <= SHARED[capability], name


def test_the_kernels_equal_their_definitions_in_the_interpreter(interpreted: subprocess.Popen[str]) -> None:
    said, _ = interpreted.communicate()
    assert interpreted.returncode == 0, said[-6000:]
