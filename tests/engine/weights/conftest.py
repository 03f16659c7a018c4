"""Model folders to verify and load."""

from collections.abc import Callable
from pathlib import Path

import pytest

from pinrail_contract.canonical import sha256_of
from pinrail_contract.pins import Architecture, FilePin, ModelManifest, Role, Source, role_of

MakeModel = Callable[..., tuple[Path, ModelManifest]]


@pytest.fixture
def make_model(tmp_path: Path) -> MakeModel:
    """A folder with the given files, and the manifest that names them."""

    def make(**changes: bytes) -> tuple[Path, ModelManifest]:
        files = {"config.json": b"{}", "tokenizer.json": b"{}", "model.safetensors": b"weights"} | changes
        pins = []
        for name, data in files.items():
            (tmp_path / name).write_bytes(data)
            pins.append(FilePin(name, len(data), sha256_of(data).removeprefix("sha256:"), role_of(name) or Role.CONFIG))
        shape = Architecture("LlamaForCausalLM", 8, 1, 1, 1, 8, 10, 32)
        return tmp_path, ModelManifest.of(pins, shape, Source("file:///model"))

    return make
