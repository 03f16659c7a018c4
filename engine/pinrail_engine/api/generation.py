"""One request between the engine's thread and the event loop."""

import asyncio
import logging
from contextlib import suppress
from typing import Self

from pinrail_engine.core.types import Engine, FinishReason, Refused, Sink, TokenEvent
from pinrail_engine.text.output import Output, Piece

from .admission import Ask
from .errors import ClientGone, from_finish, from_refused

_log = logging.getLogger("pinrail.api")
_ANSWERED = (FinishReason.STOP, FinishReason.LENGTH)


class Generation:
    """A submitted request. As a context it makes sure that the engine's work ends with the block.

    Args:
        engine: Where it runs.
        request_id: Unique; the engine's key.
        output: Turns its tokens into text.
    """

    def __init__(self, engine: Engine, request_id: str, output: Output) -> None:
        self.finish = ""  # the reason, once it has ended
        self._engine = engine
        self._id = request_id
        self._output = output
        self._events: asyncio.Queue[TokenEvent | None] = asyncio.Queue()
        self._engine_done = False

    def submit(self, ask: Ask) -> Self:
        """Raises what the engine's refusal means to a client."""
        try:
            self._engine.submit(self._id, ask.prompt, ask.params, self._sink(asyncio.get_running_loop()))
        except Refused as refused:
            raise from_refused(refused) from refused
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._release(FinishReason.ABORT)

    @property
    def completion_tokens(self) -> int:
        return self._output.completion_tokens

    async def next(self) -> Piece:
        """Raises ClientGone after `abort`, and the ApiError of a request that ends without an answer."""
        event = await self._events.get()
        if event is None:
            raise ClientGone("the client left")
        self._engine_done = event.finish is not None
        piece = self._output.push(event)
        if piece.end is not None:
            self.finish = str(piece.end.reason)
            self._release(FinishReason.STOP)  # a stop string: the engine cannot know
            if piece.end.reason not in _ANSWERED:
                _log.warning("request failed id=%s finish=%s error=%r", self._id, self.finish, piece.end.error)
                raise from_finish(piece.end.reason)
        return piece

    def abort(self) -> None:
        """The client has gone: nothing more is computed for it, from this moment."""
        self._release(FinishReason.ABORT)
        self._events.put_nowait(None)

    def _release(self, reason: FinishReason) -> None:
        if not self._engine_done:
            self._engine_done = True
            self.finish = self.finish or str(reason)
            self._engine.finish(self._id, reason)

    def _sink(self, loop: asyncio.AbstractEventLoop) -> Sink:
        def sink(event: TokenEvent) -> None:
            with suppress(RuntimeError):  # the loop is closed: the process is ending
                loop.call_soon_threadsafe(self._events.put_nowait, event)

        return sink
