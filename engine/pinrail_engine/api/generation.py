"""One request's choices between the engine's thread and the event loop."""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from typing import Self

from pinrail_engine.core.types import Engine, FinishReason, Refused, Sink, TokenEvent
from pinrail_engine.text.output import Output, Piece

from .admission import Ask
from .errors import ClientGone, from_end, from_refused

_log = logging.getLogger("pinrail.api")
_ANSWERED = (FinishReason.STOP, FinishReason.LENGTH)


class Generation:
    """All choices of one request, each a request of the engine's. They are let in together, and fail together.

    As a context it makes sure that the engine's work ends with the block.

    Args:
        engine: Where it runs.
        request_id: Unique; the engine's key, with `-0`, `-1` … behind it where there are several choices.
        outputs: One for each choice: turns its tokens into text.
    """

    def __init__(self, engine: Engine, request_id: str, outputs: Sequence[Output]) -> None:
        self.choices = len(outputs)
        self._engine = engine
        self._id = request_id
        self._keys = [f"{request_id}-{i}" for i in range(self.choices)] if self.choices > 1 else [request_id]
        self._outputs = outputs
        self._events: asyncio.Queue[tuple[int, TokenEvent] | None] = asyncio.Queue()
        self._live: set[int] = set()  # choices that the engine works on
        self._reasons: dict[int, FinishReason] = {}  # why the others ended

    def submit(self, ask: Ask) -> Self:
        """Raises what the engine's refusal of any of them means to a client."""
        loop = asyncio.get_running_loop()
        try:
            for choice, key in enumerate(self._keys):
                self._engine.submit(key, ask.prompt, ask.params_of(choice), self._sink(loop, choice), ask.terms)
                self._live.add(choice)
        except Refused as refused:
            self._release_all()
            raise from_refused(refused) from refused
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._release_all()

    @property
    def completion_tokens(self) -> int:
        return sum(output.completion_tokens for output in self._outputs)

    @property
    def finish(self) -> str:
        """For the log: the different reasons of the choices that have ended."""
        return ",".join(dict.fromkeys(self._reasons[choice] for choice in sorted(self._reasons)))

    async def next(self) -> tuple[int, Piece]:
        """The next piece of any choice that has not ended, with the choice's index.

        Raises ClientGone after `abort`, and the ApiError of a choice that ends without an answer.
        """
        while (item := await self._events.get()) is not None:
            choice, event = item
            if choice in self._live:
                return choice, self._piece(choice, event)
        raise ClientGone("the client left")

    def _piece(self, choice: int, event: TokenEvent) -> Piece:
        if event.finish is not None:
            self._live.discard(choice)
        piece = self._outputs[choice].push(event)
        if piece.end is None:
            return piece
        self._reasons[choice] = piece.end.reason
        self._release(choice, FinishReason.STOP)  # a stop string: the engine cannot know
        if piece.end.reason not in _ANSWERED:
            self._release_all()
            _log.warning("request failed id=%s finish=%s error=%r", self._id, piece.end.reason, piece.end.error)
            raise from_end(piece.end)
        return piece

    def abort(self) -> None:
        """The client has gone: nothing more is computed for it, from this moment."""
        self._release_all()
        self._events.put_nowait(None)

    def _release_all(self) -> None:
        for choice in sorted(self._live):
            self._release(choice, FinishReason.ABORT)

    def _release(self, choice: int, reason: FinishReason) -> None:
        if choice in self._live:
            self._live.discard(choice)
            self._reasons.setdefault(choice, reason)
            self._engine.finish(self._keys[choice], reason)

    def _sink(self, loop: asyncio.AbstractEventLoop, choice: int) -> Sink:
        def sink(event: TokenEvent) -> None:
            with suppress(RuntimeError):  # the loop is closed: the process is ending
                loop.call_soon_threadsafe(self._events.put_nowait, (choice, event))

        return sink
