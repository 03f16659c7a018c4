"""`pinrail up` as a person runs it: the real model, real engine processes, one endpoint, Ctrl-C."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import httpx
import openai
import pytest
import yaml

from pinrail_contract.cache import volumes
from pinrail_contract.documents import read_manifest
from pinrail_contract.pins import ModelManifest
from pinrail_operator.local.replica import free_port

EXAMPLE = Path(__file__).parents[3] / "crds" / "examples" / "smollm2.yaml"
MODEL = volumes() / "models" / "smollm2-135m-instruct"
LONG = 120.0  # seconds; only waited for in full when the test fails

pytestmark = pytest.mark.model


@dataclass
class Up:
    process: subprocess.Popen[bytes]
    port: int
    output: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def wait_until_ready(self) -> None:
        deadline = time.monotonic() + LONG
        while time.monotonic() < deadline:
            assert self.process.poll() is None, self.output.read_text()
            try:
                if httpx.get(self.url + "/ready", trust_env=False).status_code == 200:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.2)
        pytest.fail(self.output.read_text())

    def engines(self) -> list[int]:
        """The process ids of its children."""
        found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(self.process.pid)], capture_output=True, text=True)
        return [int(pid) for pid in found.stdout.split()]


def start(tmp_path: Path, *words: str, document: Path = EXAMPLE) -> Up:
    port, output = free_port(), tmp_path / "output"
    with output.open("wb") as out:
        command = [sys.executable, "-m", "pinrail_contract", "up", str(document), f"--port={port}", *words]
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, start_new_session=True)
    return Up(process, port, output)


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    running = start(tmp_path_factory.mktemp("up"))
    try:
        running.wait_until_ready()
        yield running
    finally:
        running.process.kill()
        running.process.wait()


def test_it_answers_an_openai_client(up: Up) -> None:
    with openai.OpenAI(base_url=up.url + "/v1", api_key="none", http_client=httpx.Client(trust_env=False)) as client:
        model = client.models.list().data[0]
        assert (model.model_extra or {})["manifest_digest"] == read_manifest(EXAMPLE).digest
        stream = client.chat.completions.create(
            model=model.id,
            messages=[{"role": "user", "content": "What is the capital of France?"}],
            temperature=0,
            stream=True,
        )
        assert "Paris" in "".join(chunk.choices[0].delta.content or "" for chunk in stream)


def test_an_engine_that_dies_is_started_again(up: Up) -> None:
    (before,) = up.engines()
    os.kill(before, signal.SIGKILL)
    deadline = time.monotonic() + LONG
    while up.engines() in ([], [before]) and time.monotonic() < deadline:
        time.sleep(0.1)
    up.wait_until_ready()
    assert up.engines() != [before]


def test_ctrl_c_ends_it_and_its_engines(up: Up) -> None:
    engines = up.engines()
    up.process.send_signal(signal.SIGINT)
    assert up.process.wait(LONG) == 0
    for engine in engines:
        with pytest.raises(ProcessLookupError):
            os.kill(engine, 0)


def test_a_flipped_byte_is_named_and_nothing_serves(tmp_path: Path) -> None:
    folder = tmp_path / "volumes" / "models" / MODEL.name
    shutil.copytree(MODEL, folder)
    with (folder / "model.safetensors").open("r+b") as f:
        f.seek(1_000_000)
        byte = f.read(1)
        f.seek(1_000_000)
        f.write(bytes([byte[0] ^ 1]))
    running = start(tmp_path, f"--volumes={tmp_path / 'volumes'}")
    assert running.process.wait(LONG) == 1
    said = running.output.read_text()
    assert "model.safetensors: changed: has sha256" in said
    assert "Traceback" not in said


def pinning_another_engine(tmp_path: Path, mode: str) -> Path:
    """The example, whose manifest pins a version that this is not."""
    manifest, asked = yaml.safe_load_all(EXAMPLE.read_text())
    manifest["spec"]["engine"] = {"version": "9.9.9"}
    asked["spec"]["model"]["digest"] = ModelManifest.from_spec(manifest["spec"]).digest
    asked["spec"]["verification"] = {"mode": mode}
    path = tmp_path / "pinned.yaml"
    path.write_text(yaml.safe_dump_all([manifest, asked]))
    return path


DIFFERENCE = f"spec.engine.version: got {version('pinrail')}, want 9.9.9"


def test_another_engine_than_the_pinned_one_is_named_once_and_nothing_serves(tmp_path: Path) -> None:
    running = start(tmp_path, document=pinning_another_engine(tmp_path, "Enforce"))
    assert running.process.wait(LONG) == 1
    said = running.output.read_text()
    assert said.count(DIFFERENCE) == 1, "trying again cannot help"
    assert "Traceback" not in said


def test_another_engine_serves_and_is_told_of_where_verification_only_warns(tmp_path: Path) -> None:
    running = start(tmp_path, document=pinning_another_engine(tmp_path, "Warn"))
    try:
        running.wait_until_ready()
        running.process.send_signal(signal.SIGINT)
        assert running.process.wait(LONG) == 0
    finally:
        running.process.kill()
        running.process.wait()
    lines = running.output.read_text().splitlines()
    assert f"differs   {DIFFERENCE}" in lines
    assert [line for line in lines if line.startswith(f"runs      {version('pinrail')}, backend ")]
