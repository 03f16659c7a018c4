"""The table in `_result`'s docstring, row by row, and what a server that is not there becomes."""

import asyncio
import json
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from kubernetes import client

from pinrail_operator.api import Api, _result
from pinrail_operator.errors import Conflict, Ending, Missing, NotLeader, OperatorError, Refused, Unavailable

SAID = json.dumps({"kind": "Status", "message": "as the server says"}).encode()


@pytest.mark.parametrize(
    ("method", "status", "error"),
    [
        ("GET", 200, None),
        ("PATCH", 201, None),
        ("GET", 404, None),
        ("DELETE", 404, None),
        ("PATCH", 404, Missing),
        ("PUT", 409, Conflict),
        ("GET", 401, Unavailable),
        ("GET", 429, Unavailable),
        ("GET", 500, Unavailable),
        ("GET", 503, Unavailable),
        ("PATCH", 403, Refused),
        ("PATCH", 422, Refused),
        ("PATCH", 400, Refused),
        pytest.param("PATCH", 500, Unavailable, id="PATCH-500"),
    ],
)
def test_result(method: str, status: int, error: type[OperatorError] | None) -> None:
    if error is None:
        assert _result(method, "/x/chat", status, SAID, None) == (None if status == 404 else json.loads(SAID))
        return
    with pytest.raises(error, match="as the server says") as caught:
        _result(method, "/x/chat", status, SAID, None)
    assert caught.type is error


@pytest.mark.parametrize(("method", "kind"), [("PATCH", "deployments"), ("POST", "events")])
def test_a_namespace_that_is_being_deleted_takes_nothing_more(method: str, kind: str) -> None:
    causes = [{"reason": "NamespaceTerminating", "message": "namespace x is being terminated", "field": ""}]
    said = json.dumps({"kind": "Status", "message": "being terminated", "details": {"causes": causes}}).encode()
    with pytest.raises(Ending, match="being terminated"):
        _result(method, f"/x/{kind}", 403, said, None)


@pytest.mark.parametrize(("header", "seconds"), [("7", 7.0), (None, 5.0), ("Wed, 21 Oct", 5.0)])
def test_retry_after_is_obeyed(header: str | None, seconds: float) -> None:
    with pytest.raises(Unavailable) as caught:
        _result("GET", "/x", 429, b"", header)
    assert caught.value.retry_after == seconds


@pytest.mark.parametrize(
    "said", ["create typed patch object (x): .spec.foo", "convert new object (x): quantities must"]
)
def test_a_field_that_no_type_fits_is_refused_though_the_server_says_500(said: str) -> None:
    body = json.dumps({"kind": "Status", "message": f"failed to {said}"}).encode()
    with pytest.raises(Refused, match="the API server refuses chat: failed to"):
        _result("PATCH", "/x/chat", 500, body, None)


async def test_a_write_that_waited_for_a_thread_is_not_sent_once_another_leads() -> None:
    leads = [True]
    api = Api(client.ApiClient(client.Configuration(host="http://127.0.0.1:9")), lambda: leads[0])
    api._threads.shutdown()
    waiting = ThreadPoolExecutor(1)
    object.__setattr__(api, "_threads", waiting)
    release = threading.Event()
    waiting.submit(release.wait)
    write = asyncio.create_task(api.create("/api/v1/namespaces/x/events", {}))
    await asyncio.sleep(0)
    leads[0] = False
    release.set()
    with pytest.raises(NotLeader):
        await write
    api.close()


def test_an_answer_that_is_no_json_is_quoted() -> None:
    with pytest.raises(Refused, match="<html>proxy</html>"):
        _result("PATCH", "/x/chat", 400, b"<html>proxy</html>", None)


async def test_a_server_that_is_not_there_is_unavailable() -> None:
    configuration = client.Configuration(host="http://127.0.0.1:9")
    configuration.retries = False
    api = Api(client.ApiClient(configuration), lambda: True)
    with pytest.raises(Unavailable, match="the Kubernetes API"):
        await api.get("/api/v1/pods")
    api.close()
