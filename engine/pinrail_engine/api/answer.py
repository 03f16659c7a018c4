"""The response of one completion: watches the client while the engine works, logs how it ended."""

import asyncio
import logging
import time
from contextlib import suppress

from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from .admission import Ask
from .collect import collect
from .errors import ApiError, ClientGone
from .generation import Generation
from .stream import stream
from .wire import Envelope

_log = logging.getLogger("pinrail.api")


class Answer:
    """An ASGI response. A client that leaves ends the engine's work at once, stream or not.

    Starlette alone would notice only while a stream is being sent.
    """

    def __init__(self, generation: Generation, ask: Ask, envelope: Envelope) -> None:
        self._generation = generation
        self._ask = ask
        self._envelope = envelope
        self._began = time.monotonic()
        self._headers = {"x-pinrail-ignored-fields": ", ".join(ask.ignored)} if ask.ignored else {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises ApiError, before anything is sent."""
        watcher = asyncio.create_task(self._watch(receive))
        status = 200
        try:
            with self._generation:
                await self._respond(scope, receive, send)
        except ClientGone as gone:
            status = gone.status
        except ApiError as error:
            status = error.status
            raise
        finally:
            self._log(status)
            watcher.cancel()
            with suppress(asyncio.CancelledError):
                await watcher

    async def _respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._ask.stream:
            await stream(self._generation, self._envelope, send, self._headers)
        else:
            body = await collect(self._generation, self._envelope)
            await JSONResponse(body, headers=self._headers)(scope, receive, send)

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._generation.abort()

    def _log(self, status: int) -> None:
        _log.info(
            "request finished id=%s status=%d stream=%s finish=%s prompt_tokens=%d completion_tokens=%d seconds=%.3f",
            self._envelope.id,
            status,
            str(self._ask.stream).lower(),
            self._generation.finish,
            len(self._envelope.prompt),
            self._generation.completion_tokens,
            time.monotonic() - self._began,
        )
