"""Everything the API refuses or fails with on purpose, and the one place that renders it.

ApiError              one JSON body in OpenAI's shape: {"error": {message, type, param, code}}
├── BadRequest   400  the request is wrong; `param` is the field
├── Unauthorized 401  no API key, or one that is not valid
├── NotFound     404  no such model or path
├── NotAllowed   405  the path has other methods
├── TooSlow      408  the body did not arrive in time
├── TooLarge     413  the body is over the limit
├── ClientGone   499  nobody is left to answer; never seen on the wire
├── Broken       500  our fault; the log has the cause, the answer has not
├── Overloaded   429  the queue is full, or the request was sent away from it
└── Unavailable  503  this server cannot serve now: loading, draining, failed

Bodies hold no paths of this machine, no reprs and no tracebacks.
"""

import json
import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from pinrail_engine.core.types import FinishReason, Refused
from pinrail_engine.text.output import End

MAX_SHOWN = 200  # characters of a client's value that an answer repeats
MAX_LISTED = 10  # faults of one body, or of one field, that an answer lists

_PREAMBLE = re.compile(r"^\w+ should (be|have) | after validation, not \d+$")  # of pydantic's sentences


class ApiError(Exception):
    """Base of the errors above; anything else that escapes is a bug and becomes a bare 500.

    Args:
        message: One sentence for the client.
        param: The request's field, where one is at fault.
        code: A word that programs can compare.
        headers: Added to the answer.
    """

    status = 500
    type = "server_error"

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.param = param
        self.code = code
        self.headers = dict(headers or {})

    def body(self) -> dict[str, Any]:
        return {"error": {"message": str(self), "type": self.type, "param": self.param, "code": self.code}}


class BadRequest(ApiError):
    status = 400
    type = "invalid_request_error"


class Unauthorized(ApiError):
    status = 401
    type = "authentication_error"


class NotFound(ApiError):
    status = 404
    type = "invalid_request_error"


class NotAllowed(ApiError):
    status = 405
    type = "invalid_request_error"


class TooSlow(ApiError):
    status = 408
    type = "invalid_request_error"


class TooLarge(ApiError):
    status = 413
    type = "invalid_request_error"


class ClientGone(ApiError):
    status = 499


class Broken(ApiError):
    pass


class Overloaded(ApiError):
    status = 429
    type = "rate_limit_error"


class Unavailable(ApiError):
    status = 503
    type = "service_unavailable_error"


def shown(value: Any) -> str:
    """A client's value as an answer repeats it: scalars as JSON, cut; of containers the size alone."""
    if isinstance(value, list):
        return f"a list of {len(value)}"
    if isinstance(value, dict):
        return f"an object of {len(value)}"
    text = json.dumps(value[:MAX_SHOWN] if isinstance(value, str) else value, ensure_ascii=False, default=lambda _: "?")
    return text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + "…"


def from_validation(error: ValidationError) -> BadRequest:
    """Field, value seen and value wanted, of the first faults of a body."""
    faults = error.errors(include_url=False)
    lines = [_fault(fault) for fault in faults[:MAX_LISTED]]
    if len(faults) > MAX_LISTED:
        lines.append(f"and {len(faults) - MAX_LISTED} more")
    return BadRequest("; ".join(lines), param=str(faults[0]["loc"][0]) if faults[0]["loc"] else None)


def _fault(fault: Any) -> str:
    field = ".".join(map(str, fault["loc"])) or "body"
    if fault["type"] == "missing":
        return f"{field}: is required"
    return f"{field}: got {shown(fault['input'])}, want {_wanted(fault)}"


def _wanted(fault: Any) -> str:
    if fault["type"] == "value_error":
        return str(fault["ctx"]["error"])
    return "an object" if fault["type"] == "model_type" else _PREAMBLE.sub("", fault["msg"])


def from_state(state: str) -> Unavailable:
    """The engine is not `ready`."""
    if state == "draining":
        return draining()
    retry = {"Retry-After": "5"} if state == "loading" else {}
    return Unavailable(f"This server is not ready: its state is {state}.", code=f"server_{state}", headers=retry)


def draining() -> Unavailable:
    return Unavailable(
        "This server is shutting down; another one should be asked.",
        code="server_draining",
        headers={"Retry-After": "1", "Connection": "close"},
    )


def from_refused(refused: Refused) -> ApiError:
    """| overloaded | retry_after | answer                    |
    |------------|-------------|---------------------------|
    | True       | any         | 429                       |
    | False      | None        | 400: it can never fit     |
    | False      | seconds     | 503                       |
    """
    headers = _retry(refused.retry_after)
    if refused.overloaded:
        return Overloaded(str(refused), code="queue_full", headers=headers)
    if refused.retry_after is None:
        return BadRequest(str(refused))
    return Unavailable(str(refused), headers=headers)


def from_end(end: End) -> ApiError:
    """A request that ended without an answer; what exactly went wrong in a step is for the log.

    | reason   | answer                                    |
    |----------|-------------------------------------------|
    | ERROR    | 500                                       |
    | REJECTED | 429 with the engine's sentence            |
    | ABORT    | 503: the drain time was over              |
    """
    if end.reason is FinishReason.ERROR:
        return Broken("The step that computed this request failed.", code="step_failed")
    if end.reason is FinishReason.REJECTED:
        return Overloaded(end.error, code="sent_away_from_queue", headers=_retry(end.retry_after))
    return draining()


def _retry(after: int | None) -> dict[str, str]:
    return {} if after is None else {"Retry-After": str(after)}


async def render(_request: Request, error: Exception) -> Response:
    """The exception handler of the app, for every error there is."""
    if isinstance(error, HTTPException):
        error = _from_http(_request, error)
    if not isinstance(error, ApiError):
        error = Broken("The server failed on this request.", code="internal_error", headers={"Connection": "close"})
    return JSONResponse(error.body(), error.status, error.headers)


def _from_http(request: Request, error: HTTPException) -> ApiError:
    asked = f"{request.method} {request.scope['path'][:MAX_SHOWN]}"
    if error.status_code == HTTPStatus.NOT_FOUND:
        return NotFound(f"{asked} does not exist.", code="unknown_path")
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        allowed = (error.headers or {}).get("Allow", "")
        return NotAllowed(f"{asked} is not allowed, want {allowed}.", code="method_not_allowed", headers=error.headers)
    return BadRequest(HTTPStatus(error.status_code).phrase)
