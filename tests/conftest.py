"""What tests of every folder share: free ports, and the real model, which `make model` makes."""

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from pinrail_contract.cache import cache, volumes
from pinrail_contract.documents import read_manifest
from pinrail_contract.pins import ModelManifest

EXAMPLE = Path(__file__).parents[1] / "crds" / "examples" / "smollm2.yaml"
FOLDER = volumes() / "models" / "smollm2-135m-instruct"
GGUF = cache() / "gguf" / "SmolLM2-135M-Instruct.Q4_1.gguf"


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Tests marked `model` are skipped where it is missing, and fail where PINRAIL_REQUIRE_MODEL is 1.

    Tests marked `native` are skipped where PINRAIL_ISA is none, which says that the CPU kernels are not wanted.
    """
    if item.get_closest_marker("native") and os.environ.get("PINRAIL_ISA") == "none":
        pytest.skip("PINRAIL_ISA=none: the CPU kernels are not wanted")
    missing = [path.name for path in (FOLDER, GGUF) if not path.exists()]
    if item.get_closest_marker("model") and missing:
        said = f"{' and '.join(missing)} not found: run `make model`"
        if os.environ.get("PINRAIL_REQUIRE_MODEL") == "1":
            pytest.fail(said)
        pytest.skip(said)


@pytest.fixture
def free_port() -> Callable[[], int]:
    """A port of 127.0.0.1 that nothing listened on a moment ago."""

    def take() -> int:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            return int(probe.getsockname()[1])

    return take


@pytest.fixture(scope="session")
def real_model() -> tuple[Path, ModelManifest]:
    """The folder, and the manifest that the example pins."""
    return FOLDER, read_manifest(EXAMPLE)


@pytest.fixture(scope="session")
def example() -> Path:
    """The document that holds the manifest and a service."""
    return EXAMPLE


@pytest.fixture(scope="session")
def gguf_file() -> Path:
    """What the real model was imported from."""
    return GGUF


_SAID = pytest.StashKey[list[str]]()


@pytest.fixture
def say(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Takes a figure that a test has measured; all are printed at the end."""
    said = request.config.stash.setdefault(_SAID, [])
    return lambda line: said.append(f"{request.node.name}: {line}")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    said = config.stash.get(_SAID, [])
    if said:
        terminalreporter.section("figures")
        terminalreporter.write_line("\n".join(said))
