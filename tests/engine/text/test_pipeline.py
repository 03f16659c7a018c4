"""One model's text files become a pipeline, or a clear refusal."""

import json
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from pinrail_engine.text.errors import PromptError, TokenizerError
from pinrail_engine.text.files import SamplingDefaults
from pinrail_engine.text.pipeline import TextPipeline, Token

HI = [{"role": "user", "content": "hi"}]
Make = Callable[..., dict[str, bytes]]


@pytest.fixture
def files(byte_level_tokenizer: Tokenizer, make_files: Make) -> dict[str, bytes]:
    return make_files(byte_level_tokenizer)


def test_chat_is_the_template_then_the_tokenizer(files: dict[str, bytes]) -> None:
    text = TextPipeline.from_files(files.get)
    ids = text.chat(HI)
    assert ids == text.encode_rendered("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")
    assert [ids[0], ids.count(0), ids.count(1)] == [0, 2, 1]


def test_the_template_file_wins_over_the_config(files: dict[str, bytes]) -> None:
    text = TextPipeline.from_files((files | {"chat_template.jinja": b"file"}).get)
    assert text.render(HI) == "file"


def test_a_list_of_templates_has_a_default(files: dict[str, bytes]) -> None:
    named = [{"name": "rag", "template": "rag"}, {"name": "default", "template": "plain"}]
    files["tokenizer_config.json"] = json.dumps({"chat_template": named}).encode()
    assert TextPipeline.from_files(files.get).render(HI) == "plain"


def test_a_template_sees_special_tokens_and_no_other_setting(files: dict[str, bytes]) -> None:
    files["special_tokens_map.json"] = b'{"bos_token": {"content": "<s>"}, "eos_token": "old"}'
    files["tokenizer_config.json"] = b'{"eos_token": "</s>", "tokenizer_class": "X", "pad_token": null}'
    files["chat_template.jinja"] = b"{{ bos_token }}{{ eos_token }}{{ tokenizer_class }}{{ pad_token }}"
    assert TextPipeline.from_files(files.get).render(HI) == "<s></s>"


def test_the_clock_is_passed_in(files: dict[str, bytes]) -> None:
    files["chat_template.jinja"] = b"{{ strftime_now('%Y') }}"
    assert TextPipeline.from_files(files.get, now=lambda: datetime(1999, 1, 1)).render(HI) == "1999"


def test_without_a_template_chat_is_refused(files: dict[str, bytes]) -> None:
    files["tokenizer_config.json"] = b"{}"
    with pytest.raises(PromptError, match="no chat template"):
        TextPipeline.from_files(files.get).chat(HI)


def test_end_of_sequence_ids_are_the_union(byte_level_tokenizer: Tokenizer, make_files: Make) -> None:
    files = make_files(
        byte_level_tokenizer,
        config__json={"eos_token_id": 7, "vocab_size": 512},
        generation_config__json={"eos_token_id": [8, 9], "temperature": 0.6, "top_p": 0.9, "top_k": 20},
    )
    text = TextPipeline.from_files(files.get)
    assert text.eos_token_ids == {1, 7, 8, 9}
    assert text.vocab_size == 512
    assert text.defaults == SamplingDefaults(temperature=0.6, top_p=0.9, top_k=20)


def test_without_configs_the_tokenizer_and_openai_decide(files: dict[str, bytes]) -> None:
    text = TextPipeline.from_files(files.get)
    assert (text.vocab_size, text.defaults) == (text._tokenizer.get_vocab_size(), SamplingDefaults())


@pytest.mark.parametrize(
    ("generation", "defaults"),
    [
        ({"min_p": 0.05, "repetition_penalty": 1.1}, SamplingDefaults(min_p=0.05, repetition_penalty=1.1)),
        ({"do_sample": False, "temperature": 0.7}, SamplingDefaults(temperature=0.0)),
        ({"do_sample": True, "temperature": 0.7}, SamplingDefaults(temperature=0.7)),
        ({"do_sample": None, "min_p": None}, SamplingDefaults()),
    ],
)
def test_defaults(files: dict[str, bytes], generation: dict[str, Any], defaults: SamplingDefaults) -> None:
    files["generation_config.json"] = json.dumps(generation).encode()
    assert TextPipeline.from_files(files.get).defaults == defaults


@pytest.mark.parametrize(
    ("token_id", "token"),
    [
        (0, Token("<|im_start|>", b"<|im_start|>")),
        (10**6, Token("", b"")),
    ],
)
def test_a_token_as_it_is_shown(files: dict[str, bytes], token_id: int, token: Token) -> None:
    assert TextPipeline.from_files(files.get).token(token_id) == token


def test_shown_tokens_have_the_exact_bytes(files: dict[str, bytes]) -> None:
    text = TextPipeline.from_files(files.get)
    shown = [text.token(i) for i in text.encode("語 a→日")]
    assert b"".join(token.data for token in shown).decode() == "語 a→日"
    assert shown[0].text == "\ufffd"
    assert shown[-1] == Token("→日", "→日".encode())


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("tokenizer.json", None, r"^tokenizer\.json: missing"),
        ("tokenizer.json", b"{}", r"^tokenizer\.json: the tokenizers library cannot read it"),
        ("tokenizer_config.json", b"[1]", r"^tokenizer_config\.json: holds a list, want an object"),
        ("generation_config.json", b"{", r"^generation_config\.json: is not JSON"),
        ("generation_config.json", b'{"temperature": 3}', r"temperature: got 3, want \[0, 2\]"),
        ("generation_config.json", b'{"top_p": NaN}', r"top_p: got nan, want a finite number"),
        ("generation_config.json", b'{"top_k": "5"}', r"top_k: got '5', want a finite number"),
        ("generation_config.json", b'{"top_k": 1.5}', r"top_k: got 1.5, want a whole number"),
        ("generation_config.json", b'{"min_p": 1.5}', r"min_p: got 1.5, want \[0, 1\]"),
        ("generation_config.json", b'{"repetition_penalty": 0}', r"repetition_penalty: got 0, want above 0"),
        ("chat_template.jinja", b"\xff", r"^chat_template\.jinja: is not UTF-8"),
    ],
)
def test_a_broken_file_is_named(files: dict[str, bytes], name: str, content: bytes | None, message: str) -> None:
    contents: dict[str, bytes | None] = {**files, name: content}
    with pytest.raises(TokenizerError, match=message):
        TextPipeline.from_files(contents.get)


@pytest.fixture(scope="session")
def real(model_dir: Path) -> TextPipeline:
    def read(name: str) -> bytes | None:
        path = model_dir / name
        return path.read_bytes() if path.exists() else None

    return TextPipeline.from_files(read)


@pytest.fixture(scope="session")
def reference(model_dir: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(model_dir)


@pytest.mark.model
@pytest.mark.parametrize(
    "messages",
    [
        HI,
        [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Grüße, 世界 🙂\n\n  x"}],
        [*HI, {"role": "assistant", "content": "hello"}, {"role": "user", "content": "<|im_end|> bye"}],
    ],
)
def test_chat_equals_transformers(real: TextPipeline, reference: Any, messages: list[dict[str, str]]) -> None:
    wanted = reference.apply_chat_template(messages, add_generation_prompt=True, tokenize=True, return_dict=False)
    assert real.chat(messages) == wanted


@pytest.mark.model
@given(data=st.data())
def test_the_real_tokenizer_streams_what_it_decodes(data: st.DataObject, real: TextPipeline) -> None:
    ids = data.draw(st.lists(st.integers(0, real.vocab_size - 1), max_size=50))
    detokenizer = real.detokenizer()
    streamed = "".join(map(detokenizer.push, ids)) + detokenizer.flush()
    assert streamed == real._tokenizer.decode(ids, skip_special_tokens=True)


@pytest.mark.model
def test_the_real_model_stops_at_its_end_of_turn(real: TextPipeline, reference: Any) -> None:
    assert reference.convert_tokens_to_ids("<|im_end|>") in real.eos_token_ids
