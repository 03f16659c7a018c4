"""Token ids to text, one id at a time, never with half a character. Pure.

Ids become bytes, bytes go through an incremental UTF-8 decoder: each id costs the same however long the text is,
and the pieces joined are the decoding of all ids at once. One difference to the tokenizers library, on purpose: in a
run of byte-fallback tokens that is not UTF-8 it replaces *every* byte of the run, which could only be known when the
run ends; here whole characters of the run are kept, and leave at once.
"""

import codecs
from collections.abc import Callable


class Detokenizer:
    """The state of one answer.

    Args:
        piece: The bytes of an id; empty for special and unknown ids.
        strip_left: Spaces to drop from the very start, at most.
    """

    def __init__(self, piece: Callable[[int], bytes], strip_left: int = 0) -> None:
        self._piece = piece
        self._strip_left = strip_left
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        """The text that this id completes; often '' inside a multi-byte character."""
        return self._strip(self._utf8.decode(self._piece(token_id)))

    def flush(self) -> str:
        """What is left at the end: U+FFFD where the last character never became whole."""
        return self._strip(self._utf8.decode(b"", final=True))

    def _strip(self, text: str) -> str:
        while self._strip_left and text:
            if not text.startswith(" "):
                self._strip_left = 0
                break
            text, self._strip_left = text[1:], self._strip_left - 1
        return text
