"""Incremental text equals the whole decode, whatever the ids."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from pinrail_engine.text.decoder import piece_format
from pinrail_engine.text.detokenize import Detokenizer
from pinrail_engine.text.errors import TokenizerError
from pinrail_engine.text.pipeline import TextPipeline

IDS = st.lists(st.integers(0, 340), max_size=60)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)


@pytest.fixture(scope="module")
def byte_level(byte_level_tokenizer: Tokenizer, make_files: Callable[..., Any]) -> TextPipeline:
    return TextPipeline.from_files(make_files(byte_level_tokenizer).get)


@pytest.fixture(scope="module")
def byte_fallback(byte_fallback_tokenizer: Tokenizer, make_files: Callable[..., Any]) -> TextPipeline:
    return TextPipeline.from_files(make_files(byte_fallback_tokenizer).get)


def pieces(detokenizer: Detokenizer, ids: list[int]) -> list[str]:
    return [*(detokenizer.push(i) for i in ids), detokenizer.flush()]


@given(data=st.data())
def test_byte_level_equals_the_library_for_any_ids(
    data: st.DataObject, byte_level: TextPipeline, byte_level_tokenizer: Tokenizer
) -> None:
    ids = data.draw(IDS)
    assert "".join(pieces(byte_level.detokenizer(), ids)) == byte_level_tokenizer.decode(ids)


@given(data=st.data())
def test_byte_level_never_sends_half_a_character(data: st.DataObject, byte_level: TextPipeline) -> None:
    text = data.draw(TEXT)
    got = pieces(byte_level.detokenizer(), byte_level.encode(text))
    assert "".join(got) == text
    assert "\ufffd" in text or not any("\ufffd" in piece for piece in got)


@given(data=st.data())
def test_byte_fallback_equals_the_library_for_whole_characters(
    data: st.DataObject, byte_fallback: TextPipeline, byte_fallback_tokenizer: Tokenizer
) -> None:
    ids = byte_fallback.encode(data.draw(TEXT))
    assert "".join(pieces(byte_fallback.detokenizer(), ids)) == byte_fallback_tokenizer.decode(ids)


@given(data=st.data())
def test_byte_fallback_equals_its_bytes_for_any_ids(
    data: st.DataObject, byte_fallback: TextPipeline, byte_fallback_tokenizer: Tokenizer
) -> None:
    ids = data.draw(st.lists(st.integers(0, byte_fallback_tokenizer.get_vocab_size() + 5), max_size=60))
    whole = b"".join(map(byte_fallback.piece, ids)).decode("utf-8", "replace")
    assert "".join(pieces(byte_fallback.detokenizer(), ids)) == re.sub(r"\A ", "", whole)


def test_a_character_over_three_ids_comes_with_the_last(byte_fallback: TextPipeline) -> None:
    ids = [3 + byte for byte in "世".encode()]
    assert pieces(byte_fallback.detokenizer(), ids) == ["", "", "世", ""]


def test_an_unfinished_character_is_replaced_at_the_end(byte_fallback: TextPipeline) -> None:
    ids = [3 + byte for byte in "世".encode()[:2]]
    assert pieces(byte_fallback.detokenizer(), ids) == ["", "", "\ufffd"]


@pytest.mark.parametrize(
    "decoder",
    [
        None,
        {"type": "WordPiece"},
        {"type": "Sequence", "decoders": [{"type": "Fuse"}, {"type": "ByteFallback"}]},
        {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"Regex": "_"}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
            ],
        },
        {
            "type": "Sequence",
            "decoders": [
                {"type": "ByteFallback"},
                {"type": "Fuse"},
                {"type": "Strip", "content": " ", "start": 1, "stop": 1},
            ],
        },
    ],
)
def test_a_foreign_decoder_is_refused(decoder: object) -> None:
    with pytest.raises(TokenizerError, match=r"^tokenizer\.json: decoder: "):
        piece_format(decoder)
