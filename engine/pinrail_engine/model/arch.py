"""The shape of the network, parsed from config.json once. Pure.

Past `from_config` code trusts these numbers. Every key of the file is either read, or known to change nothing, or
refused: a key that we do not know may change what the network computes.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from ..errors import ConfigError

CLASSES = ("LlamaForCausalLM", "MistralForCausalLM")

_WINDOWS = {"MistralForCausalLM": 4096}  # tokens seen back, where config.json does not say: transformers' default

_INERT = frozenset(
    [
        "_name_or_path",
        "bos_token_id",
        "dtype",
        "eos_token_id",
        "initializer_range",
        "is_llama_config",
        "model_type",
        "pad_token_id",
        "pretraining_tp",
        "torch_dtype",
        "transformers.js_config",
        "transformers_version",
        "use_cache",
        "attention_dropout",
    ]
)
"""Keys that concern training, other programs or the text side; no value of theirs changes a logit."""

_FIXED: dict[str, tuple[Any, ...]] = {  # key -> the values that this engine computes
    "attention_bias": (False, None),
    "mlp_bias": (False, None),
    "hidden_act": ("silu",),
    "rope_interleaved": (False, None),
    "rope_scaling": (None,),
}

_READ = frozenset(
    [
        "architectures",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "vocab_size",
        "max_position_embeddings",
        "rms_norm_eps",
        "rope_theta",
        "rope_parameters",
        "tie_word_embeddings",
        "sliding_window",
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Arch:
    """A Llama-shaped decoder: RMSNorm before each half, rotary positions, grouped heads, SwiGLU, no biases."""

    hidden: int  # width of the residual stream
    intermediate: int  # width inside the feed-forward
    layers: int
    heads: int  # query heads
    kv_heads: int  # divides heads
    head_dim: int  # even; heads * head_dim need not be `hidden`
    vocab: int  # tokens
    max_position: int  # tokens that the network was trained to see at once
    eps: float  # of RMSNorm
    rope_theta: float
    tied: bool  # the output head is the embedding table

    @classmethod
    def from_config(cls, config: Any) -> Self:
        """Raises ConfigError: the field, what was seen and what is wanted."""
        if not isinstance(config, Mapping):
            raise ConfigError("the file", type(config).__name__, "a JSON object")
        _check_keys(config)
        heads, hidden = _whole(config, "num_attention_heads", 1024), _whole(config, "hidden_size", 2**17)
        arch = cls(
            hidden=hidden,
            intermediate=_whole(config, "intermediate_size", 2**20),
            layers=_whole(config, "num_hidden_layers", 512),
            heads=heads,
            kv_heads=_whole(config, "num_key_value_heads", heads, default=heads),
            head_dim=_whole(config, "head_dim", 1024, default=hidden // heads),
            vocab=_whole(config, "vocab_size", 2**21),
            max_position=_whole(config, "max_position_embeddings", 2**24),
            eps=_positive(config.get("rms_norm_eps", 1e-6), "rms_norm_eps", 1.0),
            rope_theta=_rope_theta(config),
            tied=_flag(config, "tie_word_embeddings"),
        )
        _check_fit(arch, config)
        return arch

    @property
    def q_size(self) -> int:
        """Width of all query heads together."""
        return self.heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Width of all key heads together, and of all value heads."""
        return self.kv_heads * self.head_dim

    def kv_block_bytes(self, block_size: int, element_size: int) -> int:
        """Bytes of one KV block over all layers.

        Args:
            block_size: Tokens in a block.
            element_size: Bytes of one number.
        """
        return 2 * self.layers * block_size * self.kv_size * element_size


def _check_keys(config: Mapping[str, Any]) -> None:
    classes = config.get("architectures")
    if not isinstance(classes, list) or len(classes) != 1 or classes[0] not in CLASSES:
        raise ConfigError("architectures", classes, f"a list of one of {', '.join(CLASSES)}")
    for key, value in config.items():
        if key in _FIXED and value not in _FIXED[key]:
            raise ConfigError(key, value, " or ".join(repr(v) for v in _FIXED[key]))
        if key not in _FIXED and key not in _READ and key not in _INERT:
            raise ConfigError(key, value, "no such key: it is not known here, and could change what is computed")


def _check_fit(arch: Arch, config: Mapping[str, Any]) -> None:
    if arch.heads % arch.kv_heads:
        raise ConfigError("num_key_value_heads", arch.kv_heads, f"a divisor of num_attention_heads, {arch.heads}")
    if arch.head_dim % 2:
        raise ConfigError("head_dim", arch.head_dim, "an even number, for rotary pairs")
    window = config.get("sliding_window", _WINDOWS.get(config["architectures"][0]))
    if window is not None and (not isinstance(window, int) or window < arch.max_position):
        raise ConfigError("sliding_window", window, f"null, or max_position_embeddings ({arch.max_position}) or more")


def _rope_theta(config: Mapping[str, Any]) -> float:
    """From `rope_parameters` (newer files) or `rope_theta` (older ones)."""
    parameters = config.get("rope_parameters")
    if parameters is None:
        return _positive(config.get("rope_theta", 10000.0), "rope_theta", 1e12)
    if not isinstance(parameters, Mapping):
        raise ConfigError("rope_parameters", parameters, "an object")
    for key, value in parameters.items():
        if key == "rope_type" and value != "default":
            raise ConfigError("rope_parameters.rope_type", value, "'default'")
        if key not in ("rope_type", "rope_theta"):
            raise ConfigError(f"rope_parameters.{key}", value, "no such key: only rope_type and rope_theta are known")
    theta = _positive(parameters.get("rope_theta"), "rope_parameters.rope_theta", 1e12)
    if config.get("rope_theta", theta) != theta:
        raise ConfigError("rope_theta", config["rope_theta"], f"the {theta} of rope_parameters.rope_theta")
    return theta


def _whole(config: Mapping[str, Any], key: str, most: int, default: int | None = None) -> int:
    value = config.get(key)
    value = default if value is None else value
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        raise ConfigError(key, value, f"a whole number from 1 to {most}")
    return value


def _positive(value: Any, field: str, most: float) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value) or value <= 0:
        raise ConfigError(field, value, "a number above 0")
    if value > most:
        raise ConfigError(field, value, f"at most {most:g}")
    return float(value)


def _flag(config: Mapping[str, Any], key: str) -> bool:
    value = config.get(key, False)
    if not isinstance(value, bool):
        raise ConfigError(key, value, "true or false")
    return value
