"""Buckets: signatures as published, addresses in both styles, and a store that recomputes what it is sent."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from https_server import https_server

from pinrail_contract.access import Access
from pinrail_contract.errors import SourceError
from pinrail_contract.fetch import fetch
from pinrail_contract.folder import mismatches
from pinrail_contract.object_store import base_url
from pinrail_contract.pins import ModelManifest, Source
from pinrail_contract.sigv4 import Keys, signed

PUBLISHED = Keys(key="AKIAIOSFODNN7EXAMPLE", secret="wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY")
ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "AKIDTEST",
    "AWS_SECRET_ACCESS_KEY": "canary-key",
    "AWS_SESSION_TOKEN": "canary-session",
}


def test_the_published_example_is_signed_as_published() -> None:
    """Example "GET Object" of the S3 API reference."""
    headers = signed(
        "examplebucket.s3.amazonaws.com",
        "/test.txt",
        PUBLISHED,
        datetime(2013, 5, 24, tzinfo=UTC),
        {"Range": "bytes=0-9"},
    )
    assert headers["Authorization"] == (
        "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request,"
        "SignedHeaders=host;range;x-amz-content-sha256;x-amz-date,"
        "Signature=f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"
    )
    assert PUBLISHED.secret not in str(headers) + repr(PUBLISHED)


@pytest.mark.parametrize(
    ("uri", "environment", "address"),
    [
        ("s3://bucket/a/b", {}, "https://bucket.s3.us-east-1.amazonaws.com/a/b"),
        ("s3://bucket/a/", {"AWS_REGION": "eu-west-1\n"}, "https://bucket.s3.eu-west-1.amazonaws.com/a"),
        ("s3://bucket", {}, "https://bucket.s3.us-east-1.amazonaws.com"),
        ("s3://dot.ted/a", {}, "https://s3.us-east-1.amazonaws.com/dot.ted/a"),
        ("s3://bucket/a b", {"AWS_ENDPOINT_URL": "https://store:9000/"}, "https://store:9000/bucket/a%20b"),
        ("s3://bucket/a", {"AWS_ENDPOINT_URL": "https://bucket.store"}, "https://bucket.store/a"),
        ("s3://bucket", {"AWS_ENDPOINT_URL": "https://store"}, "https://store/bucket"),
    ],
)
def test_where_a_bucket_lies(uri: str, environment: dict[str, str], address: str) -> None:
    assert base_url(Source(uri), Access.of(Source(uri), environment)) == address


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"AWS_ACCESS_KEY_ID": "k"}, "AWS_SECRET_ACCESS_KEY: got none beside AWS_ACCESS_KEY_ID, want both or neither"),
        ({"AWS_SECRET_ACCESS_KEY": "canary"}, "AWS_ACCESS_KEY_ID: got none beside AWS_SECRET_ACCESS_KEY"),
        ({"AWS_SESSION_TOKEN": "canary\nx"}, "AWS_SESSION_TOKEN: holds characters that no header may hold"),
        (
            {"AWS_ENDPOINT_URL": "http://store"},
            "AWS_ENDPOINT_URL: got 'http://store', want an address that begins with",
        ),
    ],
)
def test_what_cannot_be_asked_with_is_refused_by_name(environment: dict[str, str], message: str) -> None:
    with pytest.raises(SourceError) as caught:
        Access.of(Source("s3://bucket/a"), environment)
    assert message in str(caught.value)
    assert "canary" not in str(caught.value)


@dataclass
class Store:
    """One bucket below /models/tiny, for who holds the keys."""

    folder: Path
    elsewhere: bool = False  # redirects to another host first
    asked: list[dict[str, str]] = field(default_factory=list)


class _Handler(BaseHTTPRequestHandler):
    store: Store

    def do_GET(self) -> None:
        host, headers = self.headers["Host"], {name.lower(): value for name, value in self.headers.items()}
        self.store.asked.append(headers)
        if host.startswith("localhost"):
            return self._answer(200 if "x-amz-security-token" not in headers else 400, (), b"x")
        if not self._is_signed(host):
            return self._answer(403, (), b"")
        if self.store.elsewhere:
            port = host.partition(":")[2]
            return self._answer(307, (("Location", f"https://localhost:{port}{self.path}"),), b"")
        data = (self.store.folder / self.path.removeprefix("/models/tiny/")).read_bytes()
        asked = self.headers["Range"]
        return self._answer(206 if asked else 200, (), data[int(asked[6:-1]) if asked else 0 :])

    def _is_signed(self, host: str) -> bool:
        stamp = datetime.strptime(self.headers.get("x-amz-date", "19700101T000000Z"), "%Y%m%dT%H%M%S%z")
        keys = Keys(key="AKIDTEST", secret="canary-key", session="canary-session")
        wanted = signed(host, self.path, keys, stamp)
        is_fresh = abs((datetime.now(UTC) - stamp).total_seconds()) < 900
        return is_fresh and all(self.headers[name] == value for name, value in wanted.items())

    def _answer(self, status: int, headers: tuple[tuple[str, str], ...], data: bytes) -> None:
        self.send_response(status)
        for name, value in (*headers, ("Content-Length", str(len(data)))):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def store(folder: Path, certificate: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[dict[str, str], Store]]:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate / "cert.pem"))
    behaviour = Store(folder)
    with https_server(type("Handler", (_Handler,), {"store": behaviour}), certificate) as port:
        yield {**ENVIRONMENT, "AWS_ENDPOINT_URL": f"https://127.0.0.1:{port}"}, behaviour


def test_a_bucket_is_read_with_its_keys_from_any_offset_on(
    store: tuple[dict[str, str], Store], manifest: ModelManifest, tmp_path: Path
) -> None:
    environment, behaviour = store
    out = tmp_path / "out"
    out.mkdir()
    (out / "model.safetensors.part").write_bytes((behaviour.folder / "model.safetensors").read_bytes()[:4000])
    fetch(replace(manifest, source=Source("s3://models/tiny")), out, environment=environment)
    assert mismatches(out, manifest) == ()
    assert "bytes=4000-" in [headers.get("range") for headers in behaviour.asked]
    assert "canary-key" not in str(behaviour.asked)


@pytest.mark.parametrize(
    "changes",
    [{"AWS_SECRET_ACCESS_KEY": "other"}, {"AWS_REGION": "eu-west-1"}, {"AWS_SESSION_TOKEN": ""}],
    ids=["another key", "another region", "no session"],
)
def test_a_store_refuses_other_signatures_and_that_is_said_at_once(
    store: tuple[dict[str, str], Store], manifest: ModelManifest, tmp_path: Path, changes: dict[str, str]
) -> None:
    waits: list[float] = []
    with pytest.raises(SourceError, match="the source answers 403 Forbidden"):
        fetch(
            replace(manifest, source=Source("s3://models/tiny")),
            tmp_path / "out",
            wait=waits.append,
            environment={**store[0], **changes},
        )
    assert waits == []


def test_a_public_bucket_is_read_without_keys() -> None:
    assert signed("bucket.store", "/x", Keys(), datetime.now(UTC)) == {}


def test_a_session_goes_to_no_other_host(
    store: tuple[dict[str, str], Store], manifest: ModelManifest, tmp_path: Path
) -> None:
    environment, behaviour = store
    behaviour.elsewhere = True
    with pytest.raises(SourceError):  # what is there is another file
        fetch(
            replace(manifest, source=Source("s3://models/tiny")),
            tmp_path / "out",
            lambda _: None,
            lambda _: None,
            environment,
        )
    away = [headers for headers in behaviour.asked if headers["host"].startswith("localhost")]
    assert away
    assert not [name for headers in away for name in headers if name == "authorization" or name.startswith("x-amz-")]
