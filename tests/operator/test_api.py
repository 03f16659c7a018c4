"""The table in `_result`'s docstring, row by row, and what a server that is not there becomes."""

import json

import pytest
from kubernetes import client

from pinrail_operator.api import Api, _result
from pinrail_operator.errors import Conflict, Ending, OperatorError, Refused, Unavailable

SAID = json.dumps({"kind": "Status", "message": "as the server says"}).encode()


@pytest.mark.parametrize(
    ("method", "status", "error"),
    [
        ("GET", 200, None),
        ("PATCH", 201, None),
        ("GET", 404, None),
        ("DELETE", 404, None),
        ("PATCH", 404, Refused),
        ("PUT", 409, Conflict),
        ("GET", 401, Unavailable),
        ("GET", 429, Unavailable),
        ("GET", 500, Unavailable),
        ("GET", 503, Unavailable),
        ("PATCH", 403, Refused),
        ("PATCH", 422, Refused),
        ("PATCH", 400, Refused),
    ],
)
def test_result(method: str, status: int, error: type[OperatorError] | None) -> None:
    if error is None:
        assert _result(method, "/x/chat", status, SAID, None) == (None if status == 404 else json.loads(SAID))
        return
    with pytest.raises(error, match="as the server says"):
        _result(method, "/x/chat", status, SAID, None)


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


def test_an_answer_that_is_no_json_is_quoted() -> None:
    with pytest.raises(Refused, match="<html>proxy</html>"):
        _result("PATCH", "/x/chat", 400, b"<html>proxy</html>", None)


async def test_a_server_that_is_not_there_is_unavailable() -> None:
    configuration = client.Configuration(host="http://127.0.0.1:9")
    configuration.retries = False
    api = Api(client.ApiClient(configuration))
    with pytest.raises(Unavailable, match="the Kubernetes API"):
        await api.get("/api/v1/pods")
    api.close()
