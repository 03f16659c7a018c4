"""Pieces of text to server-sent events. Pure.

A stream is: the role chunk (chat), text chunks, one chunk with finish_reason and no text, of each choice, as they come;
a usage chunk where asked for, `[DONE]`. After an error: the error object, `[DONE]`.

Log-probabilities go with the text of their tokens, and those of a piece without text with the finish chunk.
"""

import json
from collections.abc import Iterator
from typing import Any

from pinrail_engine.text.output import End, Piece

from . import wire
from .admission import Kind
from .errors import ApiError
from .wire import Envelope

DONE = b"data: [DONE]\n\n"


class Frames:
    """The events of one stream, piece by piece.

    Args:
        choices: How many answers the stream holds.
    """

    def __init__(self, envelope: Envelope, choices: int) -> None:
        self._envelope = envelope
        self._choices = choices
        self._begun: set[int] = set()
        self._ends: dict[int, End] = {}

    @property
    def complete(self) -> bool:
        return len(self._ends) == self._choices

    def push(self, choice: int, piece: Piece) -> Iterator[bytes]:
        """Text that comes together with the end goes out before it."""
        if choice not in self._begun and self._envelope.kind is Kind.CHAT:
            yield _event(wire.role_chunk(self._envelope, choice))
        self._begun.add(choice)
        if piece.text:
            yield _event(wire.text_chunk(self._envelope, choice, piece))
        if piece.end is not None:
            yield from self._end(choice, piece, piece.end)

    def _end(self, choice: int, piece: Piece, end: End) -> Iterator[bytes]:
        yield _event(wire.finish_chunk(self._envelope, choice, end, () if piece.text else piece.scores))
        self._ends[choice] = end
        if not self.complete:
            return
        if self._envelope.include_usage:
            yield _event(wire.usage_chunk(self._envelope, [self._ends[i] for i in range(self._choices)]))
        yield DONE


def error_frames(error: ApiError) -> Iterator[bytes]:
    """The status is out already: what went wrong is said inside the stream."""
    yield _event(error.body())
    yield DONE


def _event(value: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"
