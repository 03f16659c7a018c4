"""Which token sequences are forbidden, so that a word appears nowhere. The rows are the docstring's table."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from tokenizers import Tokenizer

from pinrail_engine.text.bad_words import sequences
from pinrail_engine.text.pipeline import TextPipeline

VOCABULARY = ["", "a", "b", " ", " a", "\n", "\n\n", "ab"]


def greedy(text: str) -> list[int]:
    """The longest token that fits, again and again."""
    found: list[int] = []
    while text:
        token = max((t for t in VOCABULARY if t and text.startswith(t)), key=len, default="")
        if not token:
            return []
        found.append(VOCABULARY.index(token))
        text = text[len(token) :]
    return found


def prepending(text: str) -> list[int]:
    """As SentencePiece: a space before every text."""
    return greedy(" " + text)


@pytest.mark.parametrize(
    ("encode", "words", "forbidden"),
    [
        pytest.param(greedy, ["a"], ["a", " a"], id="the space is in the word's token: two spellings"),
        pytest.param(greedy, ["b"], ["b"], id="the space is a token of its own: the word ends in the other"),
        pytest.param(greedy, ["ab"], ["ab", " a|b"], id="one longer than the other"),
        pytest.param(prepending, ["a"], [" a", "a"], id="a space before every text: after a line break it has none"),
        pytest.param(prepending, ["ab"], [" a|b", "ab"], id="and so for a word that is cut elsewhere"),
        pytest.param(greedy, ["\n"], ["\n"], id="a line break: nothing is known of the one after another"),
        pytest.param(greedy, [" a", "  a", "a"], ["a", " a"], id="spaces before it do not count; each comes once"),
        pytest.param(greedy, [" "], [" "], id="a space is itself"),
        pytest.param(greedy, ["?"], [], id="no tokens: nothing to forbid"),
        pytest.param(greedy, [], [], id="no words"),
    ],
)
def test_sequences(encode: Callable[[str], Sequence[int]], words: list[str], forbidden: list[str]) -> None:
    wanted = {tuple(VOCABULARY.index(t) for t in spelling.split("|")) for spelling in forbidden}
    assert set(sequences(words, encode, len(VOCABULARY))) == wanted


def test_what_the_model_cannot_choose_needs_no_ban() -> None:
    assert sequences(["ab"], greedy, VOCABULARY.index("ab")) == ((4, 2),)


@pytest.mark.parametrize("name", ["byte_level_tokenizer", "byte_fallback_tokenizer"])
@pytest.mark.parametrize("before", ["", " ", "\n", "fox ", "fox\n"])
@pytest.mark.parametrize("word", ["a", "ab", "hab", "quick", "é"])
def test_no_text_spells_the_word_past_the_ban(
    request: pytest.FixtureRequest, make_files: Callable[..., Any], name: str, before: str, word: str
) -> None:
    text = TextPipeline.from_files(make_files(request.getfixturevalue(name)).get)
    written = text.encode_rendered(before + word)
    banned = text.bad_words([word])
    assert any(tuple(written[-len(b) :]) == b for b in banned)


@pytest.mark.model
@pytest.mark.parametrize("before", ["", " ", "\n", "x ", "x\n"])
def test_the_real_tokenizer_too(real_model: Any, before: str) -> None:
    tokenizer = Tokenizer.from_file(str(real_model[0] / "tokenizer.json"))

    def encode(text: str) -> list[int]:
        return list(tokenizer.encode(text, add_special_tokens=False).ids)

    for word in ("Paris", "the", "antidisestablishmentarianism", "世界"):
        banned = sequences([word], encode, tokenizer.get_vocab_size())
        assert any(tuple(encode(before + word)[-len(b) :]) == b for b in banned)
