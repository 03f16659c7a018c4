"""Small tokenizers, built here, and the real model's files where they are."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from pinrail_contract.pins import ModelManifest

CORPUS = ["Hello, world! The quick brown fox jumps over the lazy dog.", "Grüße, 世界 🙂 naïve café… ok"] * 4
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SPECIALS = ["<|im_start|>", "<|im_end|>"]

Files = dict[str, bytes]
Read = Callable[[str], bytes | None]


def byte_level() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=330, special_tokens=SPECIALS, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_tokens([AddedToken("→日", special=False)])  # characters outside the byte table
    return tokenizer


def byte_fallback() -> Tokenizer:
    words = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *"▁abcdefgh", "▁a", "▁h"]
    vocab = {word: i for i, word in enumerate(words)}
    merges = [("▁", "a"), ("▁", "h")]
    tokenizer = Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    return tokenizer


def files_of(tokenizer: Tokenizer, **others: object) -> Files:
    config = {"eos_token": "<|im_end|>", "chat_template": CHATML}
    files = {"tokenizer.json": tokenizer.to_str().encode(), "tokenizer_config.json": json.dumps(config).encode()}
    return files | {name.replace("__", "."): json.dumps(value).encode() for name, value in others.items()}


@pytest.fixture(scope="session")
def byte_level_tokenizer() -> Tokenizer:
    return byte_level()


@pytest.fixture(scope="session")
def byte_fallback_tokenizer() -> Tokenizer:
    return byte_fallback()


@pytest.fixture(scope="session")
def make_files() -> Callable[..., Files]:
    return files_of


@pytest.fixture(scope="session")
def model_dir(real_model: tuple[Path, ModelManifest]) -> Path:
    return real_model[0]
