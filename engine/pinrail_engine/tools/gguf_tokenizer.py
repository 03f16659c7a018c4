"""The tokenizer inside a GGUF file as tokenizer.json and its companions."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from pinrail_contract.errors import PinrailError

if TYPE_CHECKING:
    from .gguf_model import Metadata

_CONTROL = 3  # token type: special, never produced by text

_PRE_TOKENIZERS: dict[str, Callable[[], Any]] = {  # tokenizer.ggml.pre -> how text is cut before byte-pair merges
    "gpt-2": lambda: pre_tokenizers.ByteLevel(add_prefix_space=False),
    "smollm": lambda: pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    ),
}


def tokenizer_files(metadata: "Metadata") -> dict[str, Any]:
    """File name -> content; raises PinrailError for a kind of tokenizer that is not known."""
    model, pre = metadata.get("tokenizer.ggml.model", str), metadata.get("tokenizer.ggml.pre", str)
    if model != "gpt2" or pre not in _PRE_TOKENIZERS:
        known = ", ".join(_PRE_TOKENIZERS)
        raise PinrailError(f"tokenizer.ggml.pre: got {model!r} with {pre!r}, want 'gpt2' with one of {known}")
    if metadata.get("tokenizer.ggml.add_bos_token", bool, False):
        raise PinrailError(
            "tokenizer.ggml.add_bos_token: got True, want False: a prompt's first token is not added here"
        )
    tokens = metadata.get("tokenizer.ggml.tokens", list)
    return {
        "tokenizer.json": _tokenizer(metadata, tokens, pre).to_str(pretty=False) + "\n",
        "tokenizer_config.json": _config(metadata, tokens),
    }


def _tokenizer(metadata: "Metadata", tokens: list[str], pre: str) -> Tokenizer:
    merges = [tuple(m.split(" ", 1)) for m in metadata.get("tokenizer.ggml.merges", list)]
    tokenizer = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = _PRE_TOKENIZERS[pre]()
    tokenizer.decoder = decoders.ByteLevel()
    types = metadata.get("tokenizer.ggml.token_type", list)
    specials = [t for t, kind in zip(tokens, types, strict=True) if kind == _CONTROL]
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in specials])
    return tokenizer


def _config(metadata: "Metadata", tokens: list[str]) -> dict[str, Any]:
    names = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    named = {ours: tokens[metadata.get(f"tokenizer.ggml.{theirs}_token_id", int)] for ours, theirs in names.items()}
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": metadata.get("llama.context_length", int),
        **named,
        "chat_template": metadata.get("tokenizer.chat_template", str),
    }
