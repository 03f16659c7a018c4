"""An OpenAI server whose answers a test scripts."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

WAIT = 10.0  # seconds; a test that takes longer hangs

Handler = Callable[[dict[str, Any]], Response]


class Server:
    """Answers completions as the running test says."""

    def __init__(self) -> None:
        self.handler: Handler
        self.bodies: list[dict[str, Any]] = []
        self.models: Any = {}
        self.app = Starlette(
            routes=[Route("/v1/completions", self._complete, methods=["POST"]), Route("/v1/models", self._list)]
        )

    async def _complete(self, request: Request) -> Response:
        body = await request.json()
        self.bodies.append(body)
        return self.handler(body)

    async def _list(self, _: Request) -> Response:
        return JSONResponse(self.models)


def text(piece: str) -> dict[str, Any]:
    return {"choices": [{"index": 0, "text": piece, "finish_reason": None}]}


def end(reason: str = "length") -> dict[str, Any]:
    return {"choices": [{"index": 0, "text": "", "finish_reason": reason}]}


def usage(tokens: int, cached: int | None = None) -> dict[str, Any]:
    details = {} if cached is None else {"prompt_tokens_details": {"cached_tokens": cached}}
    return {"choices": [], "usage": {"prompt_tokens": 8, "completion_tokens": tokens, **details}}


def stream(*chunks: dict[str, Any] | str, pause: float = 0.0) -> Response:
    async def body() -> AsyncIterator[str]:
        for chunk in chunks:
            yield f"data: {chunk if isinstance(chunk, str) else json.dumps(chunk)}\n\n"
            await asyncio.sleep(pause)

    return StreamingResponse(body(), media_type="text/event-stream")


def complete(body: dict[str, Any]) -> Response:
    tokens = body["max_tokens"]
    return stream(*[text("a")] * tokens, end(), usage(tokens, cached=4), "[DONE]")
