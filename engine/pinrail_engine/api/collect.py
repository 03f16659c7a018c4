"""Gathers an answer that is sent in one piece."""

from typing import Any

from pinrail_engine.text.output import End, Piece

from . import wire
from .generation import Generation
from .wire import Choice, Envelope


async def collect(generation: Generation, envelope: Envelope) -> dict[str, Any]:
    """Raises ApiError where the request ends without an answer."""
    pieces: list[list[Piece]] = [[] for _ in range(generation.choices)]
    ends: dict[int, End] = {}
    while len(ends) < generation.choices:
        choice, piece = await generation.next()
        pieces[choice].append(piece)
        if piece.end is not None:
            ends[choice] = piece.end
    return wire.whole(envelope, [Choice.of(pieces[i], ends[i]) for i in range(generation.choices)])
