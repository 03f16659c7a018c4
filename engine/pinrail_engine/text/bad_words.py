"""A word that must not appear, as the token sequences that must never be completed. Pure."""

from collections.abc import Callable, Iterator, Sequence


def sequences(
    words: Sequence[str], encode: Callable[[str], Sequence[int]], vocab_size: int
) -> tuple[tuple[int, ...], ...]:
    """How a tokenizer spells the words, wherever they stand.

    | the word stands                | its tokens are those of                    |
    |--------------------------------|--------------------------------------------|
    | where a text begins            | "word"                                     |
    | after a space                  | " word"                                    |
    | after a line break or a tag    | "\\nword", without those of "\\n" before it |

    Three, since a tokenizer may write the space into the word's first token ("Ġword"), and may put one before a text of
    its own (SentencePiece). Left out: empty ones, those with a token that the model cannot choose, and those that end
    in another, which is already forbidden. A word that is spelt in other, smaller tokens still passes, as in vLLM.

    Args:
        words: None empty; spaces before them do not count.
        encode: Adds no special tokens.
        vocab_size: Tokens that the model can choose.
    """
    spelt = dict.fromkeys(tokens for word in words for tokens in _spellings(word, encode))
    known = [tokens for tokens in spelt if tokens and max(tokens) < vocab_size]
    found = frozenset(known)
    return tuple(t for t in known if not any(t[start:] in found for start in range(1, len(t))))


def _spellings(word: str, encode: Callable[[str], Sequence[int]]) -> Iterator[tuple[int, ...]]:
    bare = word.lstrip(" ") or word
    yield tuple(encode(bare))
    yield tuple(encode(" " + bare))
    before, both = tuple(encode("\n")), tuple(encode("\n" + bare))
    if both[: len(before)] == before:
        yield both[len(before) :]
