"""A tiny model folder, and its manifest; no weights that mean anything. A certificate for servers on loopback.

Makes `https_server` importable: there are no packages under tests/.
"""

import json
import sys
from pathlib import Path

import pytest

from pinrail_contract.folder import no_progress
from pinrail_contract.pin_command import pin_folder
from pinrail_contract.pins import ModelManifest, Source

sys.path.insert(0, str(Path(__file__).parent))

from https_server import write_certificate

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
    "max_position_embeddings": 128,
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "model"
    path.mkdir()
    (path / "config.json").write_text(json.dumps(CONFIG))
    (path / "model.safetensors").write_bytes(bytes(range(256)) * 40)
    (path / "tokenizer.json").write_text("{}")
    return path


@pytest.fixture
def manifest(folder: Path) -> ModelManifest:
    return pin_folder(folder, Source("file://" + str(folder)), no_progress)


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_certificate(tmp_path_factory.mktemp("tls"))
