"""Lets in whoever has a key, before a byte of the body is read.

Every path asks for one but those that probes and scrapes use: a route that is added later is closed until it is named
here. The path is the one that routes are chosen by, never one that the client's Host header has a part in.
"""

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from pinrail_contract import endpoints

from . import errors
from .keys import ApiKeys

OPEN = frozenset({endpoints.HEALTH, endpoints.READY, endpoints.METRICS})


class RequireKey:
    def __init__(self, app: ASGIApp, keys: ApiKeys) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in OPEN and (refused := self._refused(scope)) is not None:
            answer = await errors.render(Request(scope), refused)
            await answer(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _refused(self, scope: Scope) -> errors.Unauthorized | None:
        """| Authorization headers     | answer                |
        |---------------------------|-----------------------|
        | none, several, no Bearer  | 401, how to give one  |
        | Bearer, of no key         | 401, it is not valid  |
        | Bearer, of a key          | goes on               |
        """
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        scheme, _, key = given[0].partition(b" ") if len(given) == 1 else (b"", b"", b"")
        if scheme.lower() != b"bearer" or not key.strip():
            return errors.Unauthorized(
                "No API key was given, want the header `Authorization: Bearer KEY`.",
                code="missing_api_key",
                headers={"WWW-Authenticate": 'Bearer realm="pinrail"'},
            )
        if self._keys.allow(key.strip()):
            return None
        return errors.Unauthorized(
            "The API key is not valid.",
            code="invalid_api_key",
            headers={"WWW-Authenticate": 'Bearer realm="pinrail", error="invalid_token"'},
        )
