"""Models from a real registry, and from a strict one of our own that does what large services do."""

import base64
import hashlib
import io
import json
import shutil
import socket
import ssl
import subprocess
import tarfile
import threading
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from https_server import https_server

from pinrail_contract import oci_layout
from pinrail_contract.access import TOKEN
from pinrail_contract.errors import SourceError
from pinrail_contract.fetch import fetch
from pinrail_contract.folder import mismatches
from pinrail_contract.oci_layout import Challenge, Credentials, Layer
from pinrail_contract.pins import ModelManifest, Source

ORAS = "application/vnd.oci.image.layer.v1.tar"  # what `oras push` calls a file, although it is no tar
MODEL = "application/vnd.cncf.model.weight.v1"
USERS = "user:$2y$05$abcdefghijklmnopqrstuuRprvAQdy7TukEWRpyjPPFyNaLWFtNea\n"  # bcrypt of `canary`, cost 5


def sha256(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def tar(name: str, data: bytes, mode: str = "w") -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode) as archive:  # type: ignore[call-overload]
        member = tarfile.TarInfo(name)
        member.size = len(data)
        archive.addfile(member, io.BytesIO(data))
    return out.getvalue()


Pack = Callable[[str, bytes], tuple[str, str, bytes]]
"""(file name, its bytes) -> the layer's media type, the annotation of its name, the blob."""

LAYOUTS: dict[str, Pack] = {
    "oras": lambda _, data: (ORAS, "org.opencontainers.image.title", data),
    "raw": lambda _, data: (f"{MODEL}.raw", "org.cncf.model.filepath", data),
    "tar": lambda name, data: (f"{MODEL}.tar", "org.cncf.model.filepath", tar(name, data)),
    "tar+gzip": lambda name, data: (f"{MODEL}.tar+gzip", "org.cncf.model.filepath", tar(name, data, "w:gz")),
}


def packed(folder: Path, pack: Pack) -> tuple[bytes, dict[str, bytes]]:
    """A folder as a manifest and its blobs."""
    blobs, layers = {sha256(b"{}"): b"{}"}, []
    for path in sorted(folder.iterdir()):
        kind, annotation, blob = pack(path.name, path.read_bytes())
        blobs[sha256(blob)] = blob
        described = {"mediaType": kind, "digest": sha256(blob), "size": len(blob)}
        layers.append({**described, "annotations": {annotation: path.name}})
    config = {"mediaType": "application/vnd.oci.empty.v1+json", "digest": sha256(b"{}"), "size": 2}
    whole = {"schemaVersion": 2, "mediaType": oci_layout.MANIFEST_TYPE, "config": config, "layers": layers}
    return json.dumps(whole).encode(), blobs


@dataclass(frozen=True)
class Distribution:
    """The program `docker-registry`, over TLS."""

    host: str
    trust: ssl.SSLContext
    headers: dict[str, str]

    def push(self, folder: Path, pack: Pack) -> Source:
        """Upload as the distribution specification says; returns where it lies."""
        document, blobs = packed(folder, pack)
        base = f"https://{self.host}/v2/team/tiny"
        for digest, blob in blobs.items():
            started = self._send("POST", f"{base}/blobs/uploads/", b"")
            self._send("PUT", f"{started}&digest={digest}", blob, "application/octet-stream")
        self._send("PUT", f"{base}/manifests/v1", document, oci_layout.MANIFEST_TYPE)
        return Source(f"oci://{self.host}/team/tiny@{sha256(document)}")

    def _send(self, method: str, url: str, data: bytes, kind: str = "") -> str:
        headers = {**self.headers, **({"Content-Type": kind} if kind else {})}
        request = urllib.request.Request(url, data, headers, method=method)
        with urllib.request.urlopen(request, context=self.trust, timeout=10) as answer:
            return str(answer.headers["Location"])


def basic(user: str) -> str:
    return "Basic " + base64.b64encode(user.encode()).decode()


@pytest.fixture(params=["anyone", "users"])
def registry(request: pytest.FixtureRequest, certificate: Path, tmp_path: Path) -> Iterator[Distribution]:
    """Open to anyone, or to the user `user` with the password `canary` alone."""
    program = shutil.which("docker-registry")
    if program is None:
        pytest.skip("needs the program docker-registry")
    with socket.create_server(("127.0.0.1", 0)) as free:
        host = f"127.0.0.1:{free.getsockname()[1]}"
    (tmp_path / "users").write_text(USERS)
    tls = {"certificate": str(certificate / "cert.pem"), "key": str(certificate / "key.pem")}
    is_open = request.param == "anyone"
    auth = {} if is_open else {"auth": {"htpasswd": {"realm": "test", "path": str(tmp_path / "users")}}}
    stored = {"storage": {"filesystem": {"rootdirectory": str(tmp_path / "registry")}}}
    config = {"version": "0.1", **stored, **auth, "http": {"addr": host, "tls": tls, "secret": "x"}}
    (tmp_path / "registry.yml").write_text(json.dumps(config))
    command = [program, "serve", str(tmp_path / "registry.yml")]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        seen = next((line for line in process.stderr if "listening on" in line), "")
        drain = threading.Thread(target=process.stderr.read)
        drain.start()
        trust = ssl.create_default_context(cafile=certificate / "cert.pem")
        try:
            assert seen, "docker-registry did not start"
            yield Distribution(host, trust, {} if is_open else {"Authorization": basic("user:canary")})
        finally:
            process.kill()
            drain.join()


@pytest.fixture(autouse=True)
def trusted(certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate / "cert.pem"))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_model_in_a_registry_is_fetched_and_verified(
    registry: Distribution, folder: Path, manifest: ModelManifest, tmp_path: Path, layout: str
) -> None:
    """From any offset on, in both layouts."""
    source, out = registry.push(folder, LAYOUTS[layout]), tmp_path / "out"
    out.mkdir()
    (out / "model.safetensors.part").write_bytes((folder / "model.safetensors").read_bytes()[:4000])
    done: list[int] = []
    fetch(replace(manifest, source=source), out, done.append, environment={TOKEN: "user:canary"})
    assert mismatches(out, manifest) == ()
    assert (done[0], sum(done[1:])) == (4000, manifest.total_size - 4000), "what was there is not fetched again"


@pytest.mark.parametrize("registry", ["users"], indirect=True)
@pytest.mark.parametrize(
    ("token", "message"),
    [
        ("", "the source answers 401 Unauthorized"),
        ("user:wrong", "the source answers 401 Unauthorized"),
        (
            '{"auths": {"elsewhere": {"auth": "dXNlcjpjYW5hcnk="}}}',
            "credentials: config.json has no entry for 127.0.0.1:",
        ),
    ],
    ids=["nobody", "wrong password", "another registry"],
)
def test_who_may_not_read_is_told_so(
    registry: Distribution, folder: Path, manifest: ModelManifest, tmp_path: Path, token: str, message: str
) -> None:
    source, waits = registry.push(folder, LAYOUTS["oras"]), list[float]()
    with pytest.raises(SourceError, match=message):
        fetch(replace(manifest, source=source), tmp_path / "out", wait=waits.append, environment={TOKEN: token})
    assert waits == []


@pytest.mark.parametrize("registry", ["users"], indirect=True)
def test_a_pull_secret_opens_its_registry(
    registry: Distribution, folder: Path, manifest: ModelManifest, tmp_path: Path
) -> None:
    source = registry.push(folder, LAYOUTS["oras"])
    config = json.dumps({"auths": {registry.host: {"username": "user", "password": "canary"}}}, indent=2)
    fetch(replace(manifest, source=source), tmp_path / "out", environment={TOKEN: config})
    assert mismatches(tmp_path / "out", manifest) == ()


def test_a_file_that_no_layer_holds_is_named(
    registry: Distribution, folder: Path, manifest: ModelManifest, tmp_path: Path
) -> None:
    (folder / "tokenizer.json").unlink()
    source = registry.push(folder, LAYOUTS["oras"])
    with pytest.raises(SourceError, match=r"tokenizer.json: oci://\S+ has no such file, only config.json, model"):
        fetch(replace(manifest, source=source), tmp_path / "out", environment={TOKEN: "user:canary"})


@dataclass
class Hosted:
    """A registry as large services have it: tokens from a server, blobs from a store on another host."""

    folder: Path
    document: bytes
    blobs: dict[str, bytes]
    uses: int = 1000  # requests that one token is good for
    store_refuses: bool = False
    realm: str = "https"
    left: dict[str, int] = field(default_factory=dict)  # token -> uses
    asked: list[tuple[str, str]] = field(default_factory=list)  # (part, Authorization)
    lock: threading.Lock = field(default_factory=threading.Lock)


class _Handler(BaseHTTPRequestHandler):
    hosted: Hosted

    def do_GET(self) -> None:
        path, query = (*self.path.split("?"), "")[:2]
        part = path.split("/")[1] if not path.startswith("/v2/") else "manifest" if "/manifests/" in path else "blob"
        who = self.headers["Authorization"] or ""
        with self.hosted.lock:
            self.hosted.asked.append((part, who))
            self._send(*{"token": self._token, "store": self._stored}.get(part, self._registry)(path, query, who))

    def _token(self, _: str, query: str, who: str) -> tuple[int, dict[str, str], bytes]:
        assert query == "service=registry.test&scope=repository%3Ateam%2Ftiny%3Apull"
        if who not in ("", basic("user:canary")):
            return 401, {}, b""
        token = f"token-{len(self.hosted.left)}"
        self.hosted.left[f"Bearer {token}"] = self.hosted.uses
        return 200, {}, json.dumps({"token": token}).encode()

    def _registry(self, path: str, _: str, who: str) -> tuple[int, dict[str, str], bytes]:
        host = self.headers["Host"]
        if self.hosted.left.get(who, 0) == 0:
            scope = 'service="registry.test",scope="repository:team/tiny:pull"'
            return 401, {"WWW-Authenticate": f'Bearer realm="{self.hosted.realm}://{host}/token",{scope}'}, b""
        self.hosted.left[who] -= 1
        if "/manifests/" in path:
            assert self.headers["Accept"] == oci_layout.MANIFEST_TYPE
            return 200, {}, self.hosted.document
        store = host.replace("127.0.0.1", "localhost")
        return 307, {"Location": f"https://{store}/store/{path.rsplit('/', 1)[1]}?signature=canary"}, b""

    def _stored(self, path: str, _: str, who: str) -> tuple[int, dict[str, str], bytes]:
        """Stores of signed addresses refuse a second way of saying who one is."""
        if who or self.hosted.store_refuses:
            return 401, {"WWW-Authenticate": "Basic"}, b""
        data, asked = self.hosted.blobs[path.rsplit("/", 1)[1]], self.headers["Range"]
        start = int(asked.split("=")[1].rstrip("-")) if asked else 0
        return 206 if asked else 200, {}, data[start:]

    def _send(self, status: int, headers: dict[str, str], data: bytes) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hosted(folder: Path, certificate: Path) -> Iterator[tuple[Source, Hosted]]:
    document, blobs = packed(folder, LAYOUTS["raw"])
    behaviour = Hosted(folder, document, blobs)
    with https_server(type("Handler", (_Handler,), {"hosted": behaviour}), certificate) as port:
        yield Source(f"oci://127.0.0.1:{port}/team/tiny@{sha256(document)}"), behaviour


@pytest.mark.parametrize("token", ["", "user:canary"], ids=["anyone", "a user"])
def test_a_token_server_is_told_who_asks_and_a_store_is_not(
    hosted: tuple[Source, Hosted], manifest: ModelManifest, tmp_path: Path, token: str
) -> None:
    source, behaviour = hosted
    fetch(replace(manifest, source=source), tmp_path / "out", environment={TOKEN: token})
    assert mismatches(tmp_path / "out", manifest) == ()
    said = {part: {who for p, who in behaviour.asked if p == part} for part, _ in behaviour.asked}
    assert said["token"] == {basic(token) if token else ""}
    assert said["store"] == {""}
    assert not {who for part in ("manifest", "blob") for who in said[part] if who.startswith("Basic")}


def test_a_token_that_ends_is_asked_for_again(
    hosted: tuple[Source, Hosted], manifest: ModelManifest, tmp_path: Path
) -> None:
    """Here after each answer, as with a layer that takes longer than a token lives."""
    source, behaviour = hosted
    behaviour.uses = 1
    one = replace(manifest, source=source)
    fetch(one, tmp_path / "out", wait=lambda _: None)
    assert mismatches(tmp_path / "out", manifest) == ()
    assert len(behaviour.left) > 1


def test_a_store_that_refuses_is_not_answered_with_the_registrys_credentials(
    hosted: tuple[Source, Hosted], manifest: ModelManifest, tmp_path: Path
) -> None:
    source, behaviour = hosted
    behaviour.store_refuses = True
    with pytest.raises(SourceError, match="the source answers 401") as caught:
        fetch(replace(manifest, source=source), tmp_path / "out", environment={TOKEN: "user:canary"})
    assert {who for part, who in behaviour.asked if part == "store"} == {""}
    assert "canary" not in str(caught.value)


def test_a_token_server_without_tls_is_refused(
    hosted: tuple[Source, Hosted], manifest: ModelManifest, tmp_path: Path
) -> None:
    source, behaviour = hosted
    behaviour.realm = "http"
    with pytest.raises(SourceError, match=r"tokens come from 'http://127.0.0.1:\d+/token', want https://"):
        fetch(replace(manifest, source=source), tmp_path / "out", environment={TOKEN: "user:canary"})
    assert {part for part, _ in behaviour.asked} == {"manifest"}


def test_another_manifest_than_the_one_named_is_refused(
    hosted: tuple[Source, Hosted], manifest: ModelManifest, tmp_path: Path
) -> None:
    source, behaviour = hosted
    behaviour.document += b" "
    with pytest.raises(SourceError, match=r"the registry's manifest has sha256:[0-9a-f]{64}, want sha256:"):
        fetch(replace(manifest, source=source), tmp_path / "out")


def layer(kind: str = ORAS, digest: str = "sha256:" + "1" * 64, **annotations: str) -> dict[str, Any]:
    notes = {{"title": "org.opencontainers.image.title", "path": "org.cncf.model.filepath",
              "unpack": "io.deis.oras.content.unpack"}[key]: value for key, value in annotations.items()}  # fmt: skip
    return {"mediaType": kind, "digest": digest, "size": 1, "annotations": notes}


def read(document: Any) -> dict[str, Layer]:
    data = json.dumps(document).encode()
    return oci_layout.layers(data, sha256(data), "oci://r/x")


@pytest.mark.parametrize(
    ("described", "name", "is_tar"),
    [
        pytest.param(layer(title="a.json"), "a.json", False, id="ORAS"),
        pytest.param(layer(f"{MODEL}.raw", path="./a.json"), "a.json", False, id="ModelPack raw"),
        pytest.param(layer(f"{MODEL}.tar", path="a.json"), "a.json", True, id="ModelPack tar"),
        pytest.param(layer(f"{MODEL}.tar+gzip", path="a.json", title="b"), "a.json", True, id="both annotations"),
    ],
)
def test_a_layer_is_a_file(described: dict[str, Any], name: str, is_tar: bool) -> None:
    assert read({"layers": [layer(), described]}) == {name: Layer("sha256:" + "1" * 64, is_tar)}


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"layers": [layer()]}, "no layer has a file's name, want the annotation"),
        ({"layers": [layer(title="folder", unpack="true")]}, "no layer has a file's name"),
        ({"layers": [layer(title="a", digest="md5:1")]}, "layer a has digest 'md5:1', want sha256:"),
        ({"layers": [layer(f"{MODEL}.tar+zstd", path="a")]}, "layer a is application/vnd.cncf.model.weight.v1.tar"),
        ({"manifests": []}, "is an index of manifests, want the digest of one of them"),
        ({"layers": ["x"]}, "is no manifest of layers"),
        ([], "is no manifest of layers"),
    ],
    ids=str,
)
def test_a_manifest_that_holds_no_files_is_refused(document: Any, message: str) -> None:
    with pytest.raises(SourceError) as caught:
        read(document)
    assert str(caught.value).startswith("oci://r/x: ")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("secret", "host", "credentials"),
    [
        ("", "r", Credentials()),
        ("user:pass:word", "r", Credentials(user="user:pass:word")),
        ("ghp_1", "r", Credentials(bearer="ghp_1")),
        ('{"auths": {"r": {"auth": "dTpw"}}}', "r", Credentials(user="u:p")),
        ('{"auths": {"https://r": {"username": "u", "password": "p"}}}', "r", Credentials(user="u:p")),
        ('{"auths": {"https://index.hub.test/v1/": {"auth": "dTpw"}}}', "registry-1.hub.test", Credentials(user="u:p")),
    ],
    ids=str,
)
def test_credentials_are_read_as_people_keep_them(secret: str, host: str, credentials: Credentials) -> None:
    assert Credentials.parse(secret, host) == credentials


@pytest.mark.parametrize("secret", ['{"auths": {"r": {"auth": "canary!"}}}', '{"auths": {"r": "canary"}}', '{"canary'])
def test_credentials_that_cannot_be_read_are_not_shown(secret: str) -> None:
    with pytest.raises(SourceError, match=r"^credentials: got a config.json that cannot be read, want") as caught:
        Credentials.parse(secret, "r")
    assert "canary" not in str(caught.value)
    assert "canary" not in repr(Credentials.parse("user:canary", "r"))


def test_a_challenge_is_read_in_any_order() -> None:
    header = 'BEARER scope="repository:a/b:pull,push",realm="https://t/x?y=1", service="s"'
    assert Challenge.parse(header) == Challenge("bearer", "https://t/x?y=1", "s", "repository:a/b:pull,push")
    assert Challenge.parse("") == Challenge("", "", "", "")
