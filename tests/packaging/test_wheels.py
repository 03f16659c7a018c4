"""What a wheel holds, and that it can be built where there is no compiler."""

import os
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

PACKAGES = {"pinrail_contract", "pinrail_engine", "pinrail_kernels", "pinrail_operator"}
NO_COMPILER = {"CXX": "/nowhere/c++", "CC": "/nowhere/cc", "PATH": "/nowhere"}


@pytest.mark.parametrize(
    ("settings", "changed", "tag"),
    [
        pytest.param({}, NO_COMPILER, "py3-none-", id="no compiler"),
        pytest.param({"wheel.cmake": "false"}, {}, "py3-none-any", id="no kernels wanted, as in the operator's image"),
    ],
)
def test_without_its_library_a_wheel_says_so(
    settings: dict[str, str], changed: dict[str, str], tag: str, wheel: Callable[..., Path], tmp_path: Path
) -> None:
    built = wheel(settings, **changed)
    assert tag in built.name
    installed = tmp_path / "installed"
    with zipfile.ZipFile(built) as archive:
        archive.extractall(installed)
    assert {path.name for path in installed.glob("pinrail_*")} >= PACKAGES
    asks = "import pinrail_kernels.native as n; print(n.__file__, n.library_path())"
    command = [sys.executable, "-S", "-c", asks]  # without site, which would put the working tree first
    env = {"PYTHONPATH": os.pathsep.join([str(installed), sysconfig.get_path("purelib")])}
    said = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    assert said.stdout.split() == [str(installed / "pinrail_kernels" / "native.py"), "None"]
