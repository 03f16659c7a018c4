"""`pinrail serve`: what it refuses before anything is loaded, with which exit code; then one real service."""

import json
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import pytest

from pinrail_contract import metrics
from pinrail_contract.canonical import sha256_of
from pinrail_contract.pins import Architecture, FilePin, ModelManifest, Role, Source
from pinrail_contract.render import manifest_yaml
from pinrail_contract.runtime import UNSAID, Runtime
from pinrail_contract.termination import ExitCode, Reason, Termination
from pinrail_engine import serve_command
from pinrail_engine.serve_command import command

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 8,
    "intermediate_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "vocab_size": 10,
    "max_position_embeddings": 32,
}


@pytest.fixture
def pinned(tmp_path: Path) -> tuple[Path, Path, str]:
    """A folder, its manifest file and digest; nothing in it can be served."""
    return write_model(tmp_path, CONFIG)


def write_model(tmp_path: Path, config: dict[str, object], runtime: Runtime = UNSAID) -> tuple[Path, Path, str]:
    folder, file = tmp_path / "model", tmp_path / "manifest.yaml"
    folder.mkdir()
    contents = {"config.json": json.dumps(config).encode(), "model.safetensors": b"w", "tokenizer.json": b"{}"}
    roles = {"config.json": Role.CONFIG, "model.safetensors": Role.WEIGHTS, "tokenizer.json": Role.TOKENIZER}
    pins = []
    for name, data in contents.items():
        (folder / name).write_bytes(data)
        pins.append(FilePin(name, len(data), sha256_of(data).removeprefix("sha256:"), roles[name]))
    manifest = ModelManifest.of(pins, Architecture.from_config(CONFIG), Source("file:///model"), runtime)
    file.write_text(manifest_yaml("m", manifest))
    return folder, file, manifest.digest


def serve(folder: Path, manifest: Path, *more: str) -> int:
    return command.run([f"--model-dir={folder}", f"--manifest={manifest}", *more])


def test_another_manifest_than_the_pinned_one(
    pinned: tuple[Path, Path, str], capsys: pytest.CaptureFixture[str]
) -> None:
    folder, manifest, digest = pinned
    assert serve(folder, manifest, "--digest=sha256:0") == ExitCode.MANIFEST_MISMATCH
    assert f"has digest {digest}, want sha256:0" in capsys.readouterr().err


def test_another_file_than_the_pinned_one(pinned: tuple[Path, Path, str], capsys: pytest.CaptureFixture[str]) -> None:
    folder, manifest, digest = pinned
    (folder / "tokenizer.json").write_bytes(b"[]")
    assert serve(folder, manifest, f"--digest={digest}") == ExitCode.MODEL_MISMATCH
    error = capsys.readouterr().err.splitlines()[-1]
    assert f"1 file differs from manifest {digest}: tokenizer.json: changed" in error


def test_a_network_that_is_not_computed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, manifest, _ = write_model(tmp_path, CONFIG | {"hidden_act": "gelu"})
    assert serve(folder, manifest) == ExitCode.FAILED
    assert "config.json: hidden_act: got 'gelu', want 'silu'" in capsys.readouterr().err


def test_another_shape_than_the_manifest_records(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, manifest, _ = write_model(tmp_path, CONFIG | {"num_hidden_layers": 2})
    assert serve(folder, manifest) == ExitCode.MODEL_MISMATCH
    assert "layers is 2, want 1" in capsys.readouterr().err


def refusal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pinned: Runtime, *flags: str) -> Termination:
    """What the kubelet hears of files that are right and an engine that is not; torch computes."""
    said: list[Termination] = []
    monkeypatch.setattr(serve_command, "write", said.append)
    folder, manifest, _ = write_model(tmp_path, CONFIG, pinned)
    assert serve(folder, manifest, "--backend=torch", *flags) == ExitCode.ENGINE_MISMATCH
    (ended,) = said
    return ended


def test_another_version_than_the_pinned_one_is_refused_with_the_next_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = refusal(tmp_path, monkeypatch, Runtime(engine_version="9.9.9"))
    assert ended.reason is Reason.ENGINE_MISMATCH
    assert f"spec.engine.version: got {version('pinrail')}, want 9.9.9; run the version and the flags" in ended.message


@pytest.mark.parametrize(
    ("pinned", "flag", "said"),
    [
        (Runtime(weight_dtype="bfloat16"), "--dtype=float32", "spec.numerics.weightDtype: got float32, want bfloat16"),
        (Runtime(weight_dtype="int8"), "--dtype=bfloat16", "spec.numerics.weightDtype: got bfloat16, want int8"),
        (Runtime(compute_dtype="float16"), "--dtype=float32", "spec.numerics.computeDtype: got float32, want float16"),
        (Runtime(kv_cache_dtype="float32"), "--dtype=bfloat16", "kvCacheDtype: got bfloat16, want float32"),
        (Runtime(backend="native"), "--dtype=float32", "spec.numerics.backend: got torch, want native"),
        (Runtime(instructions="abacus"), "--dtype=float32", ", want abacus"),
    ],
    ids=str,
)
def test_other_numerics_than_the_pinned_ones_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pinned: Runtime, flag: str, said: str
) -> None:
    assert said in refusal(tmp_path, monkeypatch, pinned, flag).message


def test_all_that_differs_of_an_engine_is_named_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pinned = Runtime(engine_version="9.9.9", weight_dtype="bfloat16", kv_cache_dtype="float32")
    message = refusal(tmp_path, monkeypatch, pinned, "--dtype=float32").message
    assert "spec.engine.version" in message
    assert "spec.numerics.weightDtype" in message
    assert "kvCacheDtype" not in message, "it is as it was pinned"


def test_an_engine_that_is_as_pinned_gets_as_far_as_the_weights(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pinned = Runtime(engine_version=version("pinrail"), backend="torch", weight_dtype="float32")
    folder, manifest, _ = write_model(tmp_path, CONFIG, pinned)
    assert serve(folder, manifest, "--backend=torch", "--dtype=float32") == ExitCode.FAILED
    said = capsys.readouterr().err
    assert "tokenizer.json" in said or "model.safetensors" in said
    assert "pins another engine" not in said


def test_a_manifest_that_is_not_there_is_said_to_the_kubelet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[Termination] = []
    monkeypatch.setattr(serve_command, "write", said.append)
    assert serve(tmp_path, tmp_path / "absent.yaml") == ExitCode.FAILED
    assert said == [Termination(Reason.FAILED, f"{tmp_path / 'absent.yaml'}: No such file or directory")]


def test_a_flag_out_of_bounds(pinned: tuple[Path, Path, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert serve(*pinned[:2], "--port=0") == ExitCode.USAGE
    assert "--port: got 0, want 1 to 65535" in capsys.readouterr().err


@pytest.mark.parametrize(("folder", "problem"), [("absent", "cannot be read"), ("model/empty", "holds no key")])
def test_without_a_key_it_does_not_start_and_the_kubelet_hears_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str, problem: str
) -> None:
    said: list[Termination] = []
    monkeypatch.setattr(serve_command, "write", said.append)
    model, manifest, _ = write_model(tmp_path, CONFIG)
    (model / "empty").mkdir()
    assert serve(model, manifest, f"--api-keys-dir={tmp_path / folder}") == ExitCode.FAILED
    (ended,) = said
    assert ended.reason is Reason.API_KEYS_MISSING
    assert f"--api-keys-dir: {tmp_path / folder} {problem}" in ended.message


@pytest.mark.model
@pytest.mark.parametrize(
    "program",
    [
        pytest.param(["-m", "pinrail_contract"], id="as it is installed"),
        pytest.param([str(Path(__file__).parent / "without_torch.py")], id="no torch", marks=pytest.mark.native),
    ],
)
def test_the_real_model_over_http(
    program: list[str],
    real_model: tuple[Path, ModelManifest],
    example: Path,
    free_port: Callable[[], int],
    tmp_path: Path,
) -> None:
    folder, manifest = real_model
    words = [f"--model-dir={folder}", f"--manifest={example}", f"--digest={manifest.digest}"]
    log, port = tmp_path / "log", free_port()
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys" / "alice").write_text("s3cret-of-alice")
    words.append(f"--api-keys-dir={tmp_path / 'keys'}")
    with log.open("w") as stderr:
        process = subprocess.Popen(
            [sys.executable, *program, "serve", *words, f"--port={port}", "--max-model-len=256"],
            stderr=stderr,
        )
    try:
        wait_until_ready(f"http://127.0.0.1:{port}", process, log)
        body = {"model": "model", "prompt": "The capital of France is", "max_tokens": 4, "temperature": 0}
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/v1/completions", json.dumps(body).encode(), {"content-type": "application/json"}
        )
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(request, timeout=60)
        request.add_header("Authorization", "Bearer s3cret-of-alice")
        with urllib.request.urlopen(request, timeout=60) as response:
            assert "Paris" in json.load(response)["choices"][0]["text"]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as response:
            assert re.search(r'request_success_total{.*finished_reason="length".*} 1\.0', response.read().decode())
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == ExitCode.OK, log.read_text()
        assert "s3cret" not in log.read_text()
    finally:
        process.kill()
        process.wait()


@pytest.mark.model
def test_another_engine_than_the_pinned_one_serves_and_says_so_where_verification_only_warns(
    real_model: tuple[Path, ModelManifest], free_port: Callable[[], int], tmp_path: Path
) -> None:
    folder, plain = real_model
    pinned = replace(plain, runtime=Runtime(engine_version="9.9.9", kv_cache_dtype="bfloat16"))
    manifest, log, port = tmp_path / "manifest.yaml", tmp_path / "log", free_port()
    manifest.write_text(manifest_yaml("m", pinned))
    words = [f"--model-dir={folder}", f"--manifest={manifest}", f"--digest={pinned.digest}", "--verification=Warn"]
    words += [f"--port={port}", "--max-model-len=64", "--dtype=bfloat16", "--kv-cache-memory=8Mi"]
    with log.open("w") as stderr:
        process = subprocess.Popen([sys.executable, "-m", "pinrail_contract", "serve", *words], stderr=stderr)
    try:
        url = f"http://127.0.0.1:{port}"
        wait_until_ready(url, process, log)
        with urllib.request.urlopen(f"{url}/v1/models", timeout=10) as response:
            (entry,) = json.load(response)["data"]
        difference = f"spec.engine.version: got {version('pinrail')}, want 9.9.9"
        assert (entry["verification"], entry["mismatches"]) == (metrics.ENGINE_DIFFERS, [difference])
        assert (entry["engine_version"], entry["numerics"]["kv_cache_dtype"]) == (version("pinrail"), "bfloat16")
        with urllib.request.urlopen(f"{url}/metrics", timeout=10) as response:
            page = response.read().decode()
        assert metrics.digest_of(metrics.read(page)) == pinned.digest
        said = metrics.runtime_of(metrics.read(page))
        assert {"engine_version": said.engine_version, **entry["numerics"]} == said.labels()
        assert pinned.runtime.differences(said)
        assert difference in log.read_text()
    finally:
        process.kill()
        process.wait()


def wait_until_ready(url: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    ends = time.monotonic() + 120
    while time.monotonic() < ends and process.poll() is None:
        try:
            with urllib.request.urlopen(f"{url}/ready", timeout=5):
                return
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.1)  # another process: there is nothing to wait on but time
    pytest.fail(log.read_text())
