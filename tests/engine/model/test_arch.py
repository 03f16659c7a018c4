"""config.json: what is read, and that whatever is not understood is refused by name."""

from typing import Any

import pytest

from pinrail_engine.errors import ConfigError
from pinrail_engine.model.arch import Arch

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "vocab_size": 49152,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 100000,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}


def test_a_small_llama() -> None:
    arch = Arch.from_config(CONFIG)
    assert arch == Arch(
        hidden=576,
        intermediate=1536,
        layers=30,
        heads=9,
        kv_heads=3,
        head_dim=64,
        vocab=49152,
        max_position=8192,
        eps=1e-5,
        rope_theta=100000.0,
        tied=True,
    )
    assert (arch.q_size, arch.kv_size) == (576, 192)
    assert arch.kv_block_bytes(16, 2) == 2 * 30 * 16 * 192 * 2


@pytest.mark.parametrize(
    ("change", "attribute", "value"),
    [
        ({"head_dim": 128}, "head_dim", 128),
        ({"head_dim": None}, "head_dim", 64),
        ({"num_key_value_heads": None}, "kv_heads", 9),
        ({"rope_theta": 5e5}, "rope_theta", 5e5),
        ({"rope_theta": 1e6, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}, "rope_theta", 1e6),
        ({"architectures": ["MistralForCausalLM"], "sliding_window": 8192}, "max_position", 8192),
    ],
)
def test_spellings(change: dict[str, Any], attribute: str, value: object) -> None:
    assert getattr(Arch.from_config(CONFIG | change), attribute) == value


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, r"architectures: got \['GPT2LMHeadModel'\], want a list of one of"),
        ({"architectures": []}, r"architectures: got \[\]"),
        ({"auto_map": {"AutoModel": "x.py"}}, "auto_map: got .*, want no such key"),
        ({"_attn_implementation_internal": "org/kernel"}, "_attn_implementation_internal: got .*, want no such key"),
        ({"_attn_implementation": "eager"}, "_attn_implementation: got 'eager', want no such key"),
        ({"quantization_config": {"bits": 4}}, "quantization_config: got .*, want no such key"),
        ({"rope_scaling": {"type": "linear"}}, "rope_scaling: got .*, want None"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e5}}, "rope_type: got 'yarn', want 'default'"),
        ({"rope_parameters": {"rope_theta": 1e5, "factor": 8}}, "rope_parameters.factor: got 8, want no such key"),
        ({"rope_parameters": {"rope_theta": 1e4}}, "rope_theta: got 100000, want the 10000.0 of"),
        ({"hidden_act": "gelu"}, "hidden_act: got 'gelu', want 'silu'"),
        ({"attention_bias": True}, "attention_bias: got True, want False or None"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers: got 1000000000, want a whole number from 1 to 512"),
        ({"num_hidden_layers": True}, "num_hidden_layers: got True"),
        ({"num_key_value_heads": 2}, "num_key_value_heads: got 2, want a divisor of num_attention_heads, 9"),
        ({"head_dim": 63}, "head_dim: got 63, want an even number"),
        ({"rms_norm_eps": 0}, "rms_norm_eps: got 0, want a number above 0"),
        ({"rope_theta": "x"}, "rope_theta: got 'x', want a number above 0"),
        ({"sliding_window": 4096}, r"sliding_window: got 4096, want null, or max_position_embeddings \(8192\)"),
        ({"architectures": ["MistralForCausalLM"]}, "sliding_window: got 4096, want null"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings: got 1, want true or false"),
    ],
    ids=lambda v: ",".join(v) if isinstance(v, dict) else "",
)
def test_what_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Arch.from_config(CONFIG | change)


def test_a_list_is_no_config() -> None:
    with pytest.raises(ConfigError, match="got 'list', want a JSON object"):
        Arch.from_config([])
