"""Text to token ids and back, for one model: built from its verified bytes, nothing else is read."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import NamedTuple, Self

from tokenizers import Tokenizer

from . import bad_words, files
from .chat import ChatTemplate, Message
from .decoder import PieceFormat, piece_format
from .detokenize import Detokenizer
from .errors import PromptError, TokenizerError
from .files import Read


class Token(NamedTuple):
    """One token, as log-probabilities show it."""

    text: str  # U+FFFD where its bytes are part of a character
    data: bytes  # exact; of a special token, those of its name


class TextPipeline:
    """What the API needs of the model's text files; `from_files` makes one."""

    def __init__(
        self, tokenizer: Tokenizer, vocabulary: "_Vocabulary", read: Read, now: Callable[[], datetime]
    ) -> None:
        config = files.read_object(read, files.CONFIG)
        generation = files.read_object(read, files.GENERATION_CONFIG)
        own = files.read_object(read, files.TOKENIZER_CONFIG)
        named = files.special_tokens(files.read_object(read, files.SPECIAL_TOKENS), own)
        eos = tokenizer.token_to_id(named["eos_token"]) if "eos_token" in named else None
        template = files.chat_template(read, own)
        self.defaults = files.sampling_defaults(generation)
        self.eos_token_ids = files.eos_ids(generation, config, {"eos_token_id": eos})
        self.vocab_size = files.vocab_size(config) or tokenizer.get_vocab_size()
        self._template = ChatTemplate(template, named) if template is not None else None
        self._tokenizer = tokenizer
        self._vocabulary = vocabulary
        self._pieces: dict[int, bytes] = {}  # filled as ids turn up: a whole vocabulary takes too long at start
        self._now = now

    @classmethod
    def from_files(cls, read: Read, *, now: Callable[[], datetime] = datetime.now) -> Self:
        """Raises TokenizerError where a file is missing, broken or of a kind that we do not read.

        Args:
            read: The verified bytes of a file of the model; None where there is none.
            now: The clock that chat templates may ask for the date.
        """
        data = read(files.TOKENIZER)
        if data is None:
            raise TokenizerError(files.TOKENIZER, "missing: the manifest names no such file")
        tokenizer = _tokenizer(data)
        return cls(tokenizer, _Vocabulary.of(tokenizer), read, now)

    def encode(self, text: str) -> list[int]:
        """Ids of a raw prompt, with the begin-of-sequence token where the tokenizer adds one."""
        return self._tokenizer.encode(text, add_special_tokens=True).ids

    def chat(self, messages: Sequence[Message]) -> list[int]:
        """Ids of a conversation, up to where the answer begins; raises PromptError."""
        return self.encode_rendered(self.render(messages))

    def render(self, messages: Sequence[Message]) -> str:
        if self._template is None:
            raise PromptError("messages: this model has no chat template; use /v1/completions")
        return self._template.render(messages, self._now())

    def encode_rendered(self, text: str) -> list[int]:
        """Ids of a rendered conversation: the template has written the special tokens itself."""
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def detokenizer(self) -> Detokenizer:
        """A fresh one, for one answer."""
        return Detokenizer(self.piece, self._vocabulary.format.strip_left)

    def piece(self, token_id: int) -> bytes:
        """The bytes that an id stands for; none for special and unknown ids."""
        found = self._pieces.get(token_id)
        if found is None:
            found = self._pieces[token_id] = self._read_piece(token_id)
        return found

    def token(self, token_id: int) -> Token:
        """Special tokens have their names here; ids without a token are empty."""
        special = token_id in self._vocabulary.special_ids
        data = (self._tokenizer.id_to_token(token_id) or "").encode() if special else self.piece(token_id)
        return Token(data.decode("utf-8", "replace"), data)

    def bad_words(self, words: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        """The token sequences to forbid, so that none of the words appears."""
        return bad_words.sequences(words, self.encode_rendered, self.vocab_size)

    def _read_piece(self, token_id: int) -> bytes:
        if token_id in self._vocabulary.special_ids:
            return b""
        token = self._tokenizer.id_to_token(token_id)
        return b"" if token is None else self._vocabulary.format.to_bytes(token)

    @cached_property
    def max_token_chars(self) -> int:
        """Length of the longest token: a text of n characters has at least n / max_token_chars tokens."""
        return max(map(len, self._tokenizer.get_vocab(with_added_tokens=True)), default=1)


@dataclass(frozen=True, slots=True)
class _Vocabulary:
    format: PieceFormat
    special_ids: frozenset[int]  # that stand for no text

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Self:
        """Asks the library for its parts: to parse a large tokenizer.json once more takes longer than to load it."""
        decoder = tokenizer.decoder
        state = None if decoder is None else json.loads(decoder.__getstate__())
        added = tokenizer.get_added_tokens_decoder()
        return cls(piece_format(state), frozenset(i for i, token in added.items() if token.special))


def _tokenizer(data: bytes) -> Tokenizer:
    try:
        tokenizer = Tokenizer.from_buffer(data)
    except Exception as e:  # the library raises bare Exception for every fault of the file
        raise TokenizerError(files.TOKENIZER, f"the tokenizers library cannot read it: {str(e)[:200]}") from e
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer
