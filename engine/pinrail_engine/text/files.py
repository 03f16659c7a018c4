"""The model's small text files, parsed: special tokens, chat template, end-of-sequence ids, sampling defaults. Pure."""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from .errors import TokenizerError

Read = Callable[[str], bytes | None]
"""The verified bytes of a file of the model, by its name; None where the manifest names no such file."""

TOKENIZER = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
SPECIAL_TOKENS = "special_tokens_map.json"
CHAT_TEMPLATE = "chat_template.jinja"
GENERATION_CONFIG = "generation_config.json"
CONFIG = "config.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingDefaults:
    """What holds where a request says nothing: generation_config.json, then OpenAI's defaults."""

    temperature: float = 1.0  # [0, 2]
    top_p: float = 1.0  # (0, 1]
    top_k: int = 0  # 0 is off
    min_p: float = 0.0  # [0, 1]
    repetition_penalty: float = 1.0  # above 0


def read_object(read: Read, name: str) -> Mapping[str, Any]:
    """The JSON object in a file; {} where there is no such file."""
    data = read(name)
    if data is None:
        return {}
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as e:
        raise TokenizerError(name, f"is not JSON: {e}") from e
    if not isinstance(value, dict):
        raise TokenizerError(name, f"holds a {type(value).__name__}, want an object")
    return value


def sampling_defaults(generation: Mapping[str, Any]) -> SamplingDefaults:
    """`do_sample: false` is greedy: the temperature that stands beside it has no say."""
    temperature = _number(generation, "temperature", 1.0)
    top_p = _number(generation, "top_p", 1.0)
    top_k = _number(generation, "top_k", 0)
    min_p = _number(generation, "min_p", 0.0)
    repetition_penalty = _number(generation, "repetition_penalty", 1.0)
    _want(0 <= temperature <= 2, "temperature", temperature, "[0, 2]")
    _want(0 < top_p <= 1, "top_p", top_p, "(0, 1]")
    _want(top_k >= -1 and top_k == int(top_k), "top_k", top_k, "a whole number, -1 or above")
    _want(0 <= min_p <= 1, "min_p", min_p, "[0, 1]")
    _want(repetition_penalty > 0, "repetition_penalty", repetition_penalty, "above 0")
    return SamplingDefaults(
        temperature=0.0 if generation.get("do_sample") is False else float(temperature),
        top_p=float(top_p),
        top_k=max(0, int(top_k)),
        min_p=float(min_p),
        repetition_penalty=float(repetition_penalty),
    )


def eos_ids(*configs: Mapping[str, Any]) -> frozenset[int]:
    """All end-of-sequence ids that the configs name, as one id or a list."""
    named: list[Any] = []
    for config in configs:
        ids = config.get("eos_token_id")
        named += ids if isinstance(ids, list) else [ids]
    return frozenset(i for i in named if type(i) is int and i >= 0)


def special_tokens(*configs: Mapping[str, Any]) -> dict[str, str]:
    """`bos_token` and its like by name; later configs win. Each is a string or an object with `content`."""
    found: dict[str, str] = {}
    for config in configs:
        for name, value in config.items():
            content = value.get("content") if isinstance(value, dict) else value
            if name.endswith("_token") and isinstance(content, str):
                found[name] = content
    return found


def chat_template(read: Read, tokenizer_config: Mapping[str, Any]) -> str | None:
    """The template file if there is one, else the tokenizer's own (the one named `default` of several)."""
    data = read(CHAT_TEMPLATE)
    if data is not None:
        return _utf8(data)
    template = tokenizer_config.get("chat_template")
    if isinstance(template, list):
        named = {t.get("name"): t.get("template") for t in template if isinstance(t, dict)}
        template = named.get("default")
    return template if isinstance(template, str) else None


def vocab_size(config: Mapping[str, Any]) -> int | None:
    """Rows of the embedding: a prompt id at or past it would read outside."""
    inner = config.get("text_config")
    size = (inner if isinstance(inner, dict) else config).get("vocab_size")
    return size if type(size) is int else None


def _utf8(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as e:
        raise TokenizerError(CHAT_TEMPLATE, "is not UTF-8") from e


def _number(generation: Mapping[str, Any], name: str, default: float) -> float:
    value = generation.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise TokenizerError(GENERATION_CONFIG, f"{name}: got {value!r}, want a finite number")
    return value


def _want(holds: bool, name: str, value: float, wanted: str) -> None:
    if not holds:
        raise TokenizerError(GENERATION_CONFIG, f"{name}: got {value}, want {wanted}")
