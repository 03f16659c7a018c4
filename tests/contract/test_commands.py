"""The `pinrail` command as a person meets it: exit codes, one sentence for each error, no traceback."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from pinrail_contract.__main__ import main
from pinrail_contract.documents import read_manifest
from pinrail_contract.pins import ModelManifest


@pytest.fixture
def pinned(folder: Path, tmp_path: Path) -> Path:
    path = tmp_path / "model.yaml"
    assert main(["pin", str(folder), "--name", "tiny", "-o", str(path)]) == 0
    return path


def test_pin_then_verify_says_ok(pinned: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(pinned), str(folder)]) == 0
    assert capsys.readouterr().out.startswith("OK: 3 files, ")


def test_verify_names_every_file_and_exits_with_1(
    pinned: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "tokenizer.json").write_text("{ }")
    (folder / "extra.bin").touch()
    assert main(["verify", str(pinned), str(folder)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == ["extra.bin", "tokenizer.json"]


def test_the_yaml_that_pin_writes_is_the_manifest(pinned: Path, manifest: ModelManifest) -> None:
    document = yaml.safe_load(pinned.read_text())
    assert document["metadata"]["name"] == "tiny"
    assert ModelManifest.from_spec(document["spec"]).digest == manifest.digest
    assert pinned.read_text().startswith(f"# digest: {manifest.digest}\n")


def test_json_and_yaml_manifests_are_the_same(pinned: Path, tmp_path: Path) -> None:
    as_json = tmp_path / "model.json"
    as_json.write_text(json.dumps(yaml.safe_load(pinned.read_text())))
    assert read_manifest(as_json) == read_manifest(pinned)


def test_fetch_fills_a_folder_and_removes_what_is_foreign(pinned: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "other-model.safetensors").write_bytes(b"old")
    assert main(["fetch", "--manifest", str(pinned), "--output", str(out)]) == 0
    assert main(["verify", str(pinned), str(out)]) == 0


def test_fetch_leaves_a_folder_alone_that_holds_other_things(
    pinned: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "config.json").write_text("{}")
    (home / "thesis.tex").write_text("years of work")
    assert main(["fetch", "--manifest", str(pinned), "--output", str(home)]) == 1
    assert f"{home}: holds thesis.tex, want a new folder" in capsys.readouterr().err
    assert sorted(p.name for p in home.iterdir()) == ["config.json", "thesis.tex"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["chat", "hi", "--url", "localhost:8000"], "--url: got 'localhost:8000', want http://"),
        (["nothing"], "pinrail: no command 'nothing'; there are"),
        (["verify", "absent.yaml", "."], "absent.yaml: No such file or directory"),
        (["pin", "absent", "--name", "x"], "absent: No such file or directory, want a folder of model files"),
    ],
)
def test_an_error_is_one_sentence(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) != 0
    captured = capsys.readouterr()
    assert message in captured.err
    assert "Traceback" not in captured.err


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not JSON"),
        ("a: [", "is neither JSON nor YAML"),
        ("kind: Pod\n", "holds 0 resources of kind ModelManifest, want 1"),
        ("- 1\n", "holds a list, want resources"),
        ("kind: ModelManifest\napiVersion: other/v1\n", "apiVersion: got 'other/v1', want pinrail.dev/v1alpha1"),
        ("kind: ModelManifest\napiVersion: pinrail.dev/v1alpha1\n", "spec: got NoneType, want an object"),
    ],
)
def test_a_file_that_holds_no_manifest(
    content: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "m.yaml"
    path.write_text(content)
    assert main(["verify", str(path), str(tmp_path)]) == 1
    assert message in capsys.readouterr().err


def test_pin_names_what_it_will_not_serve(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "modeling_x.py").touch()
    (folder / "model.bin").touch()
    (folder / "config.json").unlink()
    (folder / "config.json").symlink_to("/etc/hostname")
    assert main(["pin", str(folder), "--name", "x"]) == 1
    error = capsys.readouterr().err
    for name in ("modeling_x.py", "model.bin", "config.json (symlink)"):
        assert name in error


def test_pin_refuses_a_name_that_no_manifest_may_hold(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Written down it would be a manifest that nothing reads."""
    (folder / "model copy.safetensors").touch()
    assert main(["pin", str(folder), "--name", "x"]) == 1
    captured = capsys.readouterr()
    assert ".path: got 'model copy.safetensors', want a file name of" in captured.err
    assert captured.out == ""


def test_pin_names_what_is_missing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "tokenizer.json").unlink()
    assert main(["pin", str(folder), "--name", "x"]) == 1
    assert "has no tokenizer.json" in capsys.readouterr().err


def test_help_lists_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    for name in ("pin", "verify", "fetch", "import", "chat"):
        assert f"\n  {name} " in out


def test_the_first_process_of_a_container_ends_when_it_is_told_to(pinned: Path, tmp_path: Path) -> None:
    """In a process namespace of its own, as a container's is: there, a signal without a handler does nothing."""
    alone = ["unshare", "--pid", "--fork", "--kill-child"]
    if subprocess.run([*alone, "true"], capture_output=True).returncode != 0:
        pytest.skip("this user may make no process namespace")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        source = f"https://127.0.0.1:{silent.getsockname()[1]}/"
        document = yaml.safe_load(pinned.read_text())
        document["spec"]["source"] = {"uri": source}
        pinned.write_text(yaml.safe_dump(document))
        command = ["fetch", "--manifest", str(pinned), "--output", str(tmp_path / "out")]
        fetch = [sys.executable, "-m", "pinrail_contract", *command]
        with subprocess.Popen([*alone, *fetch], stderr=subprocess.PIPE) as outer:
            silent.settimeout(30)
            with silent.accept()[0]:  # it fetches, and waits for an answer
                (first,) = Path(f"/proc/{outer.pid}/task/{outer.pid}/children").read_text().split()
                os.kill(int(first), signal.SIGTERM)
                try:
                    assert outer.wait(timeout=10) == 128 + signal.SIGTERM
                finally:
                    outer.kill()
