"""Fetching over a real https server on loopback: resumed where it stopped, checked, and refused in words."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from https_server import https_server

from pinrail_contract import fetch as fetching
from pinrail_contract.access import CA_FILE, HUB_TOKEN, TOKEN, Access
from pinrail_contract.errors import SourceError
from pinrail_contract.fetch import ATTEMPTS, fetch
from pinrail_contract.folder import mismatches
from pinrail_contract.pins import API_VERSION, KIND, ModelManifest, Source
from pinrail_contract.web import trusting


@dataclass
class Behaviour:
    """How the server treats model.safetensors."""

    folder: Path
    cut_after: int = 0  # bytes of each answer; 0: all
    ranges: bool = True
    redirect: str = ""  # of what is not at that address already
    asked: list[str] = field(default_factory=list)  # Range headers, in order
    together: threading.Barrier | None = None  # requests that must come at the same time
    paths: list[str] = field(default_factory=list)
    tokens: dict[str, str] = field(default_factory=dict)  # host -> the last Authorization header


class _Handler(BaseHTTPRequestHandler):
    behaviour: Behaviour

    def do_GET(self) -> None:
        b = self.behaviour
        path = b.folder / self.path.rsplit("/", 1)[1]
        b.paths.append(self.path)
        if b.together:
            b.together.wait()
        b.tokens[self.headers["Host"]] = self.headers["Authorization"] or ""
        if b.redirect and not b.redirect.endswith(self.headers["Host"]):
            self.send_response(302)
            self.send_header("Location", b.redirect + self.path)
            self.end_headers()
            return
        if not path.exists():
            self.send_error(404)
            return
        data = path.read_bytes()
        start = int(self.headers["Range"].split("=")[1].rstrip("-")) if self.headers["Range"] and b.ranges else 0
        b.asked.append(self.headers["Range"] or "")
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(data) - start))
        self.end_headers()
        body = data[start:]
        self.wfile.write(body[: b.cut_after] if b.cut_after and path.suffix == ".safetensors" else body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server(folder: Path, certificate: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, Behaviour]]:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate / "cert.pem"))
    behaviour = Behaviour(folder)
    handler = type("Handler", (_Handler,), {"behaviour": behaviour})
    with https_server(handler, certificate) as port:
        yield f"https://127.0.0.1:{port}/tiny", behaviour


def test_a_model_is_fetched_and_verified(
    server: tuple[str, Behaviour], manifest: ModelManifest, tmp_path: Path
) -> None:
    url, _ = server
    out, done = tmp_path / "out", []
    fetch(replace(manifest, source=Source(url)), out, done.append)
    assert mismatches(out, manifest) == ()
    assert sum(done) == manifest.total_size


@pytest.mark.parametrize("ranges", [True, False])
def test_a_transfer_that_breaks_off_goes_on_where_it_stopped(
    server: tuple[str, Behaviour], manifest: ModelManifest, tmp_path: Path, ranges: bool
) -> None:
    url, behaviour = server
    behaviour.ranges = ranges
    out, part = tmp_path / "out", tmp_path / "out" / "model.safetensors.part"
    out.mkdir()
    part.write_bytes((behaviour.folder / "model.safetensors").read_bytes()[:4000])
    fetch(replace(manifest, source=Source(url)), out)
    assert "bytes=4000-" in behaviour.asked
    assert mismatches(out, manifest) == ()


def test_a_part_of_other_bytes_is_not_held_against_the_source(
    server: tuple[str, Behaviour], manifest: ModelManifest, tmp_path: Path
) -> None:
    """As when a source is mended after a transfer broke off."""
    url, behaviour = server
    out = tmp_path / "out"
    out.mkdir()
    (out / "model.safetensors.part").write_bytes(b"x" * 4000)
    fetch(replace(manifest, source=Source(url)), out)
    assert behaviour.asked.count("bytes=4000-") == 1
    assert mismatches(out, manifest) == ()


def test_a_part_of_a_file_that_is_right_is_removed(manifest: ModelManifest, tmp_path: Path) -> None:
    """An engine refuses a folder with anything beside the model."""
    fetch(manifest, tmp_path / "out")
    (tmp_path / "out" / "model.safetensors.part").write_bytes(b"x")
    fetch(manifest, tmp_path / "out")
    assert mismatches(tmp_path / "out", manifest) == ()


def test_short_answers_are_continued(server: tuple[str, Behaviour], manifest: ModelManifest, tmp_path: Path) -> None:
    url, behaviour = server
    behaviour.cut_after = 6000  # of 10,240 bytes
    waits: list[float] = []
    fetch(replace(manifest, source=Source(url)), tmp_path / "out", wait=waits.append)
    assert "bytes=6000-" in behaviour.asked
    assert waits == [2.0]


def test_a_source_that_keeps_failing_is_given_up_in_words(
    server: tuple[str, Behaviour], manifest: ModelManifest, tmp_path: Path
) -> None:
    url, behaviour = server
    behaviour.cut_after = 100
    with pytest.raises(SourceError, match=f"model.safetensors: gave up after {ATTEMPTS} attempts"):
        fetch(replace(manifest, source=Source(url)), tmp_path / "out", wait=lambda _: None)


def test_other_bytes_are_refused_and_not_kept(
    server: tuple[str, Behaviour], manifest: ModelManifest, tmp_path: Path
) -> None:
    url, behaviour = server
    data = bytearray((behaviour.folder / "model.safetensors").read_bytes())
    data[5] ^= 1
    (behaviour.folder / "model.safetensors").write_bytes(data)
    with pytest.raises(SourceError, match=r"model.safetensors: the source has sha256 [0-9a-f]{64}, want"):
        fetch(replace(manifest, source=Source(url)), tmp_path / "out")
    assert not list((tmp_path / "out").glob("model*"))


def test_a_missing_file_is_named(server: tuple[str, Behaviour], manifest: ModelManifest, tmp_path: Path) -> None:
    url, behaviour = server
    (behaviour.folder / "tokenizer.json").unlink()
    with pytest.raises(SourceError, match=r"tokenizer.json: the source answers 404"):
        fetch(replace(manifest, source=Source(url)), tmp_path / "out")


def test_a_redirect_away_from_https_is_refused(
    server: tuple[str, Behaviour], manifest: ModelManifest, tmp_path: Path
) -> None:
    url, behaviour = server
    behaviour.redirect = "http://127.0.0.1:1"
    with pytest.raises(SourceError, match=r"redirects to http://127.0.0.1:1/tiny/\S+, want https://"):
        fetch(replace(manifest, source=Source(url)), tmp_path / "out")


def test_a_commit_of_a_hub_is_read_with_the_token_which_goes_nowhere_else(
    server: tuple[str, Behaviour], manifest: ModelManifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hubs send those who ask for large files to another host."""
    url, behaviour = server
    hub = url.removesuffix("/tiny")
    store = hub.replace("127.0.0.1", "localhost")
    behaviour.redirect = store
    monkeypatch.setenv("HF_ENDPOINT", hub)
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    commit = "0123456789abcdef" * 2 + "01234567"
    fetch(replace(manifest, source=Source("hf://org/tiny.1", commit)), tmp_path / "out")
    assert mismatches(tmp_path / "out", manifest) == ()
    assert set(behaviour.paths) == {f"/org/tiny.1/resolve/{commit}/{pin.path}" for pin in manifest.files}
    assert behaviour.tokens == {hub.removeprefix("https://"): "Bearer hf_secret", store.removeprefix("https://"): ""}


def test_a_hub_without_tls_is_refused(manifest: ModelManifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    with pytest.raises(SourceError, match=r"HF_ENDPOINT: got 'http://127.0.0.1:1', want an address that begins with"):
        fetch(replace(manifest, source=Source("hf://org/name", "0" * 40)), tmp_path / "out")


def test_files_are_fetched_at_once(server: tuple[str, Behaviour], manifest: ModelManifest, tmp_path: Path) -> None:
    url, behaviour = server
    behaviour.together = threading.Barrier(len(manifest.files), timeout=10)  # breaks where one waits for another
    fetch(replace(manifest, source=Source(url)), tmp_path / "out", wait=lambda _: None)
    assert mismatches(tmp_path / "out", manifest) == ()
    assert len(behaviour.paths) == len(manifest.files)


def test_a_file_that_has_failed_ends_the_others_at_their_next_chunk() -> None:
    done: list[int] = []
    shared = fetching.Shared(done.append)
    shared(3)
    shared.end()
    with pytest.raises(fetching.Abandoned):
        shared(4)
    assert done == [3]


def test_a_source_that_cannot_be_trusted_is_refused_at_once(
    server: tuple[str, Behaviour], manifest: ModelManifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SSL_CERT_FILE")
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path))
    waits: list[float] = []
    with pytest.raises(SourceError, match=r"^\S+: the source cannot be trusted: self-signed certificate"):
        fetch(replace(manifest, source=Source(server[0])), tmp_path / "out", wait=waits.append)
    assert waits == []


def test_a_volume_is_mounted_and_never_fetched(manifest: ModelManifest, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="is mounted, not fetched"):
        fetch(replace(manifest, source=Source("pvc://models/tiny")), tmp_path / "out")


def test_a_second_fetch_reads_nothing(manifest: ModelManifest, tmp_path: Path, folder: Path) -> None:
    fetch(manifest, tmp_path / "out")
    for path in folder.iterdir():
        path.unlink()
    fetch(manifest, tmp_path / "out")
    assert mismatches(tmp_path / "out", manifest) == ()


def test_a_web_servers_token_goes_to_that_host_alone(
    server: tuple[str, Behaviour], manifest: ModelManifest, tmp_path: Path
) -> None:
    url, behaviour = server
    host = url.removesuffix("/tiny").removeprefix("https://")
    behaviour.redirect = "https://" + host.replace("127.0.0.1", "localhost")
    fetch(replace(manifest, source=Source(url)), tmp_path / "out", environment={TOKEN: "canary\n", HUB_TOKEN: "other"})
    assert behaviour.tokens == {host: "Bearer canary", host.replace("127.0.0.1", "localhost"): ""}


def test_certificates_of_a_company_are_trusted_besides_the_usual_ones(
    server: tuple[str, Behaviour],
    manifest: ModelManifest,
    tmp_path: Path,
    certificate: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    usual = {c["subject"] for c in trusting("").get_ca_certs()}
    monkeypatch.delenv("SSL_CERT_FILE")
    ca = certificate / "cert.pem"
    fetch(replace(manifest, source=Source(server[0])), tmp_path / "out", environment={CA_FILE: str(ca)})
    assert mismatches(tmp_path / "out", manifest) == ()
    monkeypatch.setenv("SSL_CERT_FILE", str(ca))
    assert usual <= {c["subject"] for c in trusting(str(ca)).get_ca_certs()}


def test_certificates_that_are_not_there_are_named(manifest: ModelManifest, tmp_path: Path) -> None:
    source, empty = replace(manifest, source=Source("https://127.0.0.1:1/")), tmp_path / "empty.crt"
    with pytest.raises(SourceError, match=r"gone.crt does not exist, want a file in PEM: in a pod, .*caConfigMapRef"):
        fetch(source, tmp_path / "out", environment={CA_FILE: str(tmp_path / "gone.crt")})
    empty.touch()
    with pytest.raises(SourceError, match=r"empty.crt cannot be read, want certificates in PEM"):
        fetch(source, tmp_path / "out", environment={CA_FILE: str(empty)})


@pytest.mark.parametrize("behaviour", ["whole", "redirect", "plain", "missing", "cut in two lines"])
def test_no_token_is_ever_written_down(
    server: tuple[str, Behaviour], manifest: ModelManifest, tmp_path: Path, behaviour: str
) -> None:
    """Whatever the source does, of the command's own output and the folder."""
    url, source = server
    host = url.removesuffix("/tiny")
    source.redirect = {"redirect": host.replace("127.0.0.1", "localhost"), "plain": "http://x/?sig=canary"}.get(
        behaviour, ""
    )
    if behaviour == "missing":
        (source.folder / "config.json").unlink()
    document = {"apiVersion": API_VERSION, "kind": KIND, "spec": {**manifest.to_spec(), "source": {"uri": url}}}
    path, out = tmp_path / "manifest.json", tmp_path / "out"
    path.write_text(json.dumps(document))
    token = "canary\ncanary" if behaviour == "cut in two lines" else "canary"
    done = subprocess.run(
        [sys.executable, "-m", "pinrail_contract", "fetch", "--manifest", path, "--output", out],
        env={**os.environ, TOKEN: token}, capture_output=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == (0 if behaviour in ("whole", "redirect") else 1), done.stderr
    written = [p.read_bytes() for p in out.glob("*")] if out.exists() else []
    assert b"canary" not in b"".join([done.stdout, done.stderr, *written])


@pytest.mark.parametrize("token", ["two\nlines", "caf\u00e9", "bell\a"])
def test_a_token_that_no_header_may_hold_is_refused_without_showing_it(manifest: ModelManifest, token: str) -> None:
    with pytest.raises(SourceError, match=r"^PINRAIL_SOURCE_TOKEN: holds characters that no header may hold") as caught:
        Access.of(Source("https://models.test/"), {TOKEN: token})
    assert token not in str(caught.value)
    assert "canary" not in repr(Access.of(Source("https://models.test/"), {TOKEN: "canary"}))
