"""Gathers an answer that is sent in one piece."""

from typing import Any

from . import wire
from .generation import Generation
from .wire import Envelope


async def collect(generation: Generation, envelope: Envelope) -> dict[str, Any]:
    """Raises ApiError where the request ends without an answer."""
    text = ""
    while True:
        piece = await generation.next()
        text += piece.text
        if piece.end is not None:
            return wire.whole(envelope, text, piece.end)
