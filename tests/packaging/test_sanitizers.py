"""The C++ kernels touch only memory that is theirs, do nothing undefined, and never race."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

DRIVER = Path(__file__).parent / "sanitized_run.py"
ROUNDS = "6"  # each with every operation on every instruction set; 1, 2 and 3 threads by turns


@pytest.mark.parametrize(
    ("sanitizers", "runtime"),
    [
        pytest.param("address,undefined", "libasan.so", id="memory"),
        pytest.param("thread", "libtsan.so", id="threads"),
    ],
)
def test_nothing_is_found(sanitizers: str, runtime: str, sanitized_library: Callable[[str], Path]) -> None:
    found = subprocess.run(["g++", f"-print-file-name={runtime}"], capture_output=True, text=True, check=True)
    watched = {
        "LD_PRELOAD": found.stdout.strip(),  # before Python, which is built without
        "ASAN_OPTIONS": "detect_leaks=0",  # Python's own, at its end
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "OPENBLAS_NUM_THREADS": "1",  # numpy's threads are not watched, so what they do looks like races
    }
    command = [sys.executable, str(DRIVER), str(sanitized_library(sanitizers)), ROUNDS]
    done = subprocess.run(command, env={**os.environ, **watched}, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-8000:]
    assert f"{ROUNDS} rounds" in done.stdout
