"""What tests of the installation share: wheels as a user builds them, and libraries with sanitizers."""

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import cmake
import ninja
import pytest

from pinrail_contract.cache import cache
from pinrail_kernels.native import library_path

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "kernels" / "native"


@pytest.fixture(scope="session")
def native_library() -> Path:
    """The C++ kernels, as `make native` has built them; where there is a compiler they must be there."""
    found = library_path()
    if found is None:
        if os.environ.get("CXX") or shutil.which("c++"):
            pytest.fail("the C++ kernels are not built: run `make native`")
        pytest.skip("no C++ compiler, so no C++ kernels")
    return found


@pytest.fixture(scope="session")
def sanitized_library() -> Callable[[str], Path]:
    """Builds the C++ kernels with sanitizers, once for each content of their sources: a minute."""
    if platform.machine() != "x86_64" or not shutil.which("g++"):
        pytest.skip("no g++ for x86_64, whose sanitizers these are")

    def build(sanitizers: str) -> Path:
        content = hashlib.sha256(sanitizers.encode())
        for file in sorted(SOURCES.iterdir()):
            content.update(file.name.encode() + file.read_bytes())
        library = cache() / "sanitized" / f"{content.hexdigest()[:12]}.so"
        library.parent.mkdir(parents=True, exist_ok=True)
        if not library.exists():
            with tempfile.TemporaryDirectory(dir=library.parent) as aside:
                _cmake("-G", "Ninja", "-S", str(SOURCES), "-B", aside, f"-DPINRAIL_SANITIZE={sanitizers}")
                _cmake("--build", aside)
                Path(aside, "_native.so").replace(library)
        return library

    return build


def _cmake(*words: str) -> None:
    path = os.pathsep.join([ninja.BIN_DIR, os.environ["PATH"]])
    env = {**os.environ, "CXX": "g++", "PATH": path}
    done = subprocess.run([f"{cmake.CMAKE_BIN_DIR}/cmake", *words], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def wheel(tmp_path: Path) -> Callable[..., Path]:
    """Builds the wheel as pip does, with `settings` as its --config-settings, and `env` on top of the environment."""

    def build(settings: dict[str, str], **env: str) -> Path:
        call = f"from scikit_build_core.build import build_wheel; build_wheel({str(tmp_path)!r}, {settings!r})"
        command = [sys.executable, "-c", call]
        done = subprocess.run(command, cwd=ROOT, env={**os.environ, **env}, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        (built,) = tmp_path.glob("*.whl")
        return built

    return build
