"""Pieces of text to server-sent events. Pure.

A stream is: the role chunk (chat), text chunks, one chunk with finish_reason and no text, a usage chunk where asked
for, `[DONE]`. After an error: the error object, `[DONE]`.
"""

import json
from collections.abc import Iterator
from typing import Any

from pinrail_engine.text.output import Piece

from . import wire
from .admission import Kind
from .errors import ApiError
from .wire import Envelope

DONE = b"data: [DONE]\n\n"


def frames(envelope: Envelope, piece: Piece, *, first: bool) -> Iterator[bytes]:
    """The events of one piece; text that comes together with the end goes out before it."""
    if first and envelope.kind is Kind.CHAT:
        yield _event(wire.role_chunk(envelope))
    if piece.text:
        yield _event(wire.text_chunk(envelope, piece.text))
    if piece.end is None:
        return
    yield _event(wire.finish_chunk(envelope, piece.end))
    if envelope.include_usage:
        yield _event(wire.usage_chunk(envelope, piece.end))
    yield DONE


def error_frames(error: ApiError) -> Iterator[bytes]:
    """The status is out already: what went wrong is said inside the stream."""
    yield _event(error.body())
    yield DONE


def _event(value: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"
