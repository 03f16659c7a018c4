"""The Kubernetes API as JSON over HTTP: one call, and its failures as ours. I/O.

The official client brings authentication, certificates and connections; objects stay the JSON that they are.
"""

import asyncio
import json
import re
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import urllib3
from kubernetes import client, config

from .errors import Conflict, Ending, Missing, NotLeader, Refused, Unavailable

APPLY = "application/apply-patch+yaml"
MERGE = "application/merge-patch+json"
JSON = "application/json"
READ_TIMEOUT = (5.0, 15.0)  # seconds to connect, and between two bytes
WRITE_TIMEOUT = (1.0, 8.0)  # together less than what a Lease lasts after the last write may begin
CONCURRENCY = 16  # requests at once

Body = Mapping[str, Any]

_MISTYPED = re.compile("failed to (create typed patch object|convert new object)")
"""How server-side apply says, as an error of the server, that a field is unknown or its value cannot be read."""


def connect(told: Callable[[str, str, int], None] = lambda *_: None) -> client.ApiClient:
    """A client for the cluster that this runs in, or for the one that KUBECONFIG names.

    Args:
        told: Called after each request with method, URL and status; 0 where no answer came.
    """
    try:
        try:
            config.load_incluster_config()  # type: ignore[no-untyped-call]
        except config.ConfigException:
            config.load_kube_config()  # type: ignore[no-untyped-call]
    except config.ConfigException as e:
        raise Unavailable(f"a Kubernetes cluster ({e})") from e
    configuration = client.Configuration.get_default_copy()
    configuration.connection_pool_maxsize = CONCURRENCY + 1  # and one for the Lease
    configuration.retries = False  # the queue retries, with back-off
    return _Telling(configuration, told)


class _Telling(client.ApiClient):
    """Tells of each request, the Lease's as well."""

    def __init__(self, configuration: client.Configuration, told: Callable[[str, str, int], None]) -> None:
        super().__init__(configuration)
        self._told = told

    def call_api(self, method: str, url: str, *rest: Any, **named: Any) -> Any:
        status = 0
        try:
            answer = super().call_api(method, url, *rest, **named)
            status = answer.status
            return answer
        except client.ApiException as e:
            status = e.status or 0
            raise
        finally:
            self._told(method, url, status)


@dataclass(frozen=True, slots=True)
class Api:
    """Requests, a bounded number at once, each in a thread."""

    http: client.ApiClient
    may_write: Callable[[], bool]
    """Whether this process is the leader; asked in the thread that sends, since a write may have waited for one."""

    _threads: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(CONCURRENCY, "api"))
    """Of its own, so that a renewal of the Lease never waits behind reconciles."""

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        self.http.close()  # type: ignore[no-untyped-call]

    async def get(self, path: str, **query: str) -> Body | None:
        """The object or list, or None where there is none."""
        return await self._call("GET", path, query, None, JSON)

    async def apply(self, path: str, body: Body, manager: str) -> Body:
        """Server-side apply: `manager` takes every field of `body`, and gives up those that it no longer names.

        Returns the object as it is now.
        """
        query = {"fieldManager": manager, "force": "true"}
        return await self._call("PATCH", path, query, body, APPLY) or {}

    async def merge(self, path: str, body: Body, manager: str) -> None:
        """Change the fields of `body` in an object that exists; Missing where it does not."""
        await self._call("PATCH", path, {"fieldManager": manager}, body, MERGE)

    async def replace(self, path: str, body: Body, manager: str) -> Body:
        """What differs becomes `manager`'s; raises Conflict unless `body` holds the newest resourceVersion.

        Returns the object as it is now.
        """
        return await self._call("PUT", path, {"fieldManager": manager}, body, JSON) or {}

    async def create(self, path: str, body: Body) -> None:
        """Raises Conflict where it exists."""
        await self._call("POST", path, {}, body, JSON)

    async def delete(self, path: str) -> None:
        """What is gone already is as good as deleted."""
        await self._call("DELETE", path, {}, None, JSON)

    async def _call(
        self, method: str, path: str, query: Mapping[str, str], body: Body | None, content_type: str
    ) -> Body | None:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self._request, method, path, query, body, content_type)

    def _request(
        self, method: str, path: str, query: Mapping[str, str], body: Body | None, content_type: str
    ) -> Body | None:
        parts = self.http.param_serialize(
            method,
            path,
            query_params=list(query.items()),
            header_params={"Content-Type": content_type, "Accept": JSON},
            auth_settings=["BearerToken"],
        )
        data = None if body is None else json.dumps(body)
        payload: Any = body if content_type in (JSON, MERGE) else data
        if method != "GET" and not self.may_write():
            raise NotLeader("another operator leads")
        timeout = READ_TIMEOUT if method == "GET" else WRITE_TIMEOUT
        try:
            answer: Any = self.http.call_api(*parts[:3], payload, _request_timeout=timeout)
            return _result(method, path, answer.status, answer.read(), answer.getheader("Retry-After"))
        except (client.ApiException, urllib3.exceptions.HTTPError, OSError) as e:
            raise Unavailable(f"the Kubernetes API ({type(e).__name__}: {e})") from e


def _result(method: str, path: str, status: int, data: bytes, retry_after: str | None) -> Body | None:
    """The answer's object; failures become errors.

    | status                          | result                         |
    |---------------------------------|--------------------------------|
    | 2xx                             | the object                     |
    | 404, GET or DELETE              | None                           |
    | 404, other                      | Missing, in the server's words |
    | 409                             | Conflict                       |
    | 500, a field has no such type   | Refused, in the server's words |
    | 429, 5xx, 401                   | Unavailable, after Retry-After |
    | 403, namespace is being deleted | Ending                         |
    | other                           | Refused, in the server's words |
    """
    if 200 <= status < 300:
        answer: Body = json.loads(data)
        return answer
    if status == 404 and method in ("GET", "DELETE"):
        return None
    message = _message(data) or f"status {status}"
    if status == 409:
        raise Conflict(f"{method} {path}: {message}")
    if status in (401, 429) or (status >= 500 and not _MISTYPED.match(message)):
        wait = float(retry_after) if retry_after and retry_after.isdigit() else 5.0
        raise Unavailable(f"the Kubernetes API ({status} for {method} {path}: {message})", retry_after=wait)
    if status == 403 and _is_ending(data):
        raise Ending(message)
    kind = Missing if status == 404 else Refused
    raise kind(f"the API server refuses {path.rpartition('/')[2]}: {message}")


def _is_ending(data: bytes) -> bool:
    try:
        causes = json.loads(data)["details"]["causes"]
        return any(cause["reason"] == "NamespaceTerminating" for cause in causes)
    except (ValueError, KeyError, TypeError):
        return False


def _message(data: bytes) -> str:
    try:
        return str(json.loads(data)["message"])
    except (ValueError, KeyError, TypeError):
        return data[:200].decode(errors="replace")
