"""A request's body: read under limits, parsed strictly."""

import asyncio
import json
from collections.abc import Iterable
from typing import Any, NoReturn

from starlette.requests import ClientDisconnect, Request

from .errors import BadRequest, ClientGone, TooLarge, TooSlow

MAX_BYTES = 4 * 2**20
MAX_DEPTH = 64  # objects and lists inside each other
READ_SECONDS = 30.0
_LINGER_BYTES = 4 * MAX_BYTES  # read and thrown away, so that a client still sending can see the refusal


async def read_body(request: Request) -> bytes:
    """Raises TooLarge, TooSlow, ClientGone."""
    try:
        async with asyncio.timeout(READ_SECONDS):
            return await _read(request)
    except TimeoutError:
        raise TooSlow(f"The body did not arrive within {READ_SECONDS:g} seconds.", headers=_CLOSE) from None
    except ClientDisconnect:
        raise ClientGone("the client left while it sent the body") from None


_CLOSE = {"Connection": "close"}


async def _read(request: Request) -> bytes:
    body = bytearray()
    received = 0
    async for chunk in request.stream():
        received += len(chunk)
        if received <= MAX_BYTES:
            body += chunk
        elif received > _LINGER_BYTES:
            break
    if received > MAX_BYTES:
        raise TooLarge(f"The body is larger than {MAX_BYTES} bytes.", code="body_too_large", headers=_CLOSE)
    return bytes(body)


def parse_object(data: bytes) -> dict[str, Any]:
    """A JSON object without NaN, infinities, lone surrogates or deep nesting; raises BadRequest."""
    try:
        value = json.loads(data.decode(), parse_constant=_refuse_constant, parse_float=_finite)
    except UnicodeDecodeError:
        raise BadRequest("body: is not UTF-8") from None
    except json.JSONDecodeError as e:
        raise BadRequest(f"body: is not JSON: {e.msg} at character {e.pos}") from None
    except RecursionError:
        raise _too_deep() from None
    except ValueError:
        raise BadRequest("body: holds a number of too many digits") from None
    if not isinstance(value, dict):
        raise BadRequest("body: want a JSON object")
    _check_depth(value)
    if b"\\u" in data:
        _check_surrogates(value)
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise BadRequest(f"body: holds {name}, want finite numbers")


def _finite(digits: str) -> float:
    value = float(digits)
    if value in (float("inf"), float("-inf")):
        _refuse_constant(digits[:40])
    return value


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [item for parent in level for item in _items(parent) if isinstance(item, dict | list)]
        if not level:
            return
    raise _too_deep()


def _items(parent: Any) -> Iterable[Any]:
    return parent.values() if isinstance(parent, dict) else parent


def _too_deep() -> BadRequest:
    return BadRequest(f"body: is nested deeper than {MAX_DEPTH} levels")


def _check_surrogates(value: Any) -> None:
    """`"\\ud800"` is JSON, but half a character: no tokenizer and no answer can hold it."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise BadRequest("body: holds half of a surrogate pair, want whole characters") from None
