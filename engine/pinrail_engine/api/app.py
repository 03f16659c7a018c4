"""The routes; each completion: read, admit, submit, answer."""

import re
import secrets
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import anyio.to_thread
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pinrail_contract import endpoints
from pinrail_contract.runtime import UNSAID, Runtime
from pinrail_engine.core.types import Engine
from pinrail_engine.text.output import Output
from pinrail_engine.text.pipeline import TextPipeline

from . import errors, terms, wire
from .admission import Admission, Ask, Kind, unknown_model
from .answer import Answer
from .auth import RequireKey
from .body import read_body
from .generation import Generation
from .keys import ApiKeys
from .terms import Caller
from .wire import Envelope

_INLINE_BYTES = 4096  # a body up to this is parsed and tokenised at once, a larger one off the event loop
_COUNT = re.compile(r"[0-9]{1,18}")
_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerInfo:
    """What the server says of itself."""

    model_name: str  # that requests give in `model`
    manifest_digest: str  # sha256:…
    verification: str  # how files and engine compared with the manifest
    mismatches: tuple[str, ...] = ()  # what differed, where that was only a warning
    runtime: Runtime = UNSAID  # the engine and its numerics
    created: int = 0  # seconds since 1970
    cache_events: bool = False  # whether it shows what the prefix cache holds


def create_app(engine: Engine, text: TextPipeline, info: ServerInfo, keys: ApiKeys | None = None) -> Starlette:
    """The application; without `keys` it answers whoever reaches it."""
    api = _Api(engine, text, info)
    app = Starlette(
        routes=[
            Route(endpoints.CHAT_COMPLETIONS, api.chat, methods=["POST"]),
            Route(endpoints.COMPLETIONS, api.completions, methods=["POST"]),
            Route(endpoints.MODELS, api.models, methods=["GET"]),
            Route(endpoints.MODELS + "/{model:path}", api.model, methods=["GET"]),
            Route(endpoints.HEALTH, api.health, methods=["GET"]),
            Route(endpoints.READY, api.ready, methods=["GET"]),
            Route(endpoints.METRICS, api.metrics, methods=["GET"]),
            *([Route(endpoints.CACHE_EVENTS, api.cache_events, methods=["GET"])] if info.cache_events else []),
        ],
        exception_handlers={errors.ApiError: errors.render, HTTPException: errors.render, Exception: errors.render},
        middleware=[Middleware(_EchoRequestId), *([Middleware(RequireKey, keys)] if keys is not None else [])],
    )
    app.router.redirect_slashes = False  # a redirect is made of the Host header, which is the client's
    return app


class _Api:
    def __init__(self, engine: Engine, text: TextPipeline, info: ServerInfo) -> None:
        self._engine = engine
        self._text = text
        self._info = info

    async def chat(self, request: Request) -> ASGIApp:
        return await self._complete(request, Kind.CHAT)

    async def completions(self, request: Request) -> ASGIApp:
        return await self._complete(request, Kind.TEXT)

    async def _complete(self, request: Request, kind: Kind) -> ASGIApp:
        caller = terms.caller(request.headers, time.monotonic())
        data = await read_body(request)
        self._require_serving()
        ask = await self._admit(kind, data, caller)
        envelope = self._envelope(ask)
        generation = Generation(self._engine, envelope.id, [self._output(ask) for _ in range(ask.choices)])
        return Answer(generation.submit(ask), ask, envelope)

    def _require_serving(self) -> None:
        state = self._engine.state
        if state != "ready":
            raise errors.from_state(state)

    async def _admit(self, kind: Kind, data: bytes, caller: Caller) -> Ask:
        admission = Admission(self._info.model_name, self._text, self._engine.max_model_len, self._engine.policy)
        seed = secrets.randbits(63)
        return await _off_loop(len(data) > _INLINE_BYTES, lambda: admission.admit(kind, data, caller, seed))

    def _output(self, ask: Ask) -> Output:
        return Output(self._text.detokenizer(), ask.stops, self._text.eos_token_ids, ask.params.min_tokens)

    def _envelope(self, ask: Ask) -> Envelope:
        return Envelope(
            id=wire.new_id(ask.kind, uuid.uuid4().hex),
            kind=ask.kind,
            model=self._info.model_name,
            created=int(time.time()),
            prompt=ask.prompt,
            token_of=self._text.token,
            include_usage=ask.include_usage,
            prompt_logprobs=ask.params.prompt_logprobs is not None,
        )

    async def models(self, _request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [self._model()]})

    async def model(self, request: Request) -> Response:
        name = request.path_params["model"]
        if name != self._info.model_name:
            raise unknown_model(name)
        return JSONResponse(self._model())

    def _model(self) -> dict[str, Any]:
        ready, numerics = self._engine.state in ("ready", "draining"), self._info.runtime.labels()
        return {
            "id": self._info.model_name,
            "object": "model",
            "created": self._info.created,
            "owned_by": "pinrail",
            "root": self._info.model_name,
            "parent": None,
            "max_model_len": self._engine.max_model_len if ready else None,  # known once the cache is laid out
            "manifest_digest": self._info.manifest_digest,
            "verification": self._info.verification,
            "mismatches": list(self._info.mismatches),
            "engine_version": numerics.pop("engine_version"),
            "numerics": numerics,
        }

    async def health(self, _request: Request) -> Response:
        state = self._engine.state
        alive = state == "loading" or self._engine.is_healthy()
        return JSONResponse({"healthy": alive, "state": state}, 200 if alive else 503)

    async def ready(self, _request: Request) -> Response:
        state = self._engine.state
        return JSONResponse({"state": state}, 200 if state == "ready" else 503)

    async def metrics(self, _request: Request) -> Response:
        return Response(self._engine.metrics_page(), headers={"content-type": _METRICS_TYPE})

    async def cache_events(self, request: Request) -> Response:
        after = request.query_params.get("after", "0")
        if not _COUNT.fullmatch(after):
            raise errors.BadRequest(f"after: got {errors.shown(after)}, want a whole number, 0 or above", param="after")
        found = self._engine.cache_events(int(after))
        events = [event._asdict() for event in found.events]
        return JSONResponse({"last": found.last, "complete": found.complete, "events": events})


async def _off_loop(big: bool, work: Callable[[], T]) -> T:
    return await anyio.to_thread.run_sync(work) if big else work()


class _EchoRequestId:
    """Answers carry the client's X-Request-Id, where it is plain; nothing here is ever keyed by it."""

    _PLAIN = re.compile(r"[A-Za-z0-9._\-]{1,64}")

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        given = Request(scope).headers.get("x-request-id", "") if scope["type"] == "http" else ""
        await self._app(scope, receive, self._echoing(given, send) if self._PLAIN.fullmatch(given) else send)

    def _echoing(self, given: str, send: Send) -> Send:
        async def echo(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["x-request-id"] = given
            await send(message)

        return echo
