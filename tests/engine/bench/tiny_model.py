"""A random network that `pinrail serve` serves: a byte a token, and room for every fixed workload."""

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from pinrail_contract.canonical import sha256_of
from pinrail_contract.pins import Architecture, FilePin, ModelManifest, Role, Source
from pinrail_contract.render import manifest_yaml
from pinrail_engine.text.decoder import byte_table

VOCAB = 256
_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "vocab_size": VOCAB,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": True,
}
_ROLES = {"config.json": Role.CONFIG, "model.safetensors": Role.WEIGHTS, "tokenizer.json": Role.TOKENIZER}


def serve_flags(folder: Path) -> list[str]:
    """Writes the model into `folder`, and says how it is served."""
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text(json.dumps(_CONFIG))
    (folder / "model" / "tokenizer.json").write_text(_tokenizer().to_str())
    save_file(_weights(), folder / "model" / "model.safetensors")
    pins = []
    for name, role in _ROLES.items():
        data = (folder / "model" / name).read_bytes()
        pins.append(FilePin(name, len(data), sha256_of(data).removeprefix("sha256:"), role))
    manifest = ModelManifest.of(pins, Architecture.from_config(_CONFIG), Source("file:///model"))
    (folder / "manifest.yaml").write_text(manifest_yaml("tiny", manifest))
    return [f"--model-dir={folder / 'model'}", f"--manifest={folder / 'manifest.yaml'}", "--kv-cache-memory=16Mi"]


def _weights() -> dict[str, np.ndarray]:
    dice, layer = np.random.default_rng(0), "model.layers.0"
    square = [f"{layer}.self_attn.{name}_proj.weight" for name in "qkvo"]
    square += [f"{layer}.mlp.{name}_proj.weight" for name in ("gate", "up", "down")]
    norms = ["model.norm.weight", f"{layer}.input_layernorm.weight", f"{layer}.post_attention_layernorm.weight"]
    weights = {name: dice.standard_normal((16, 16)).astype(np.float32) for name in square}
    weights |= {name: np.ones(16, np.float32) for name in norms}
    return weights | {"model.embed_tokens.weight": dice.standard_normal((VOCAB, 16)).astype(np.float32)}


def _tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(vocab=byte_table(), merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer
