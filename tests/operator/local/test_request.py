"""What `pinrail up` accepts: one service, the manifest that it names, the digest that it pins."""

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from pinrail_contract.errors import ManifestError, PinrailError
from pinrail_contract.pins import Source
from pinrail_contract.runtime import Runtime
from pinrail_operator.local import replica, request
from pinrail_operator.local.request import model_folder, read

EXAMPLE = Path(__file__).parents[3] / "crds" / "examples" / "smollm2.yaml"


@pytest.fixture
def documents() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(EXAMPLE.read_text()))


def written(tmp_path: Path, documents: list[dict[str, Any]]) -> Path:
    path = tmp_path / "service.yaml"
    path.write_text(yaml.safe_dump_all(documents))
    return path


def test_the_example_is_read() -> None:
    run = read(EXAMPLE)
    assert run.manifest.digest == run.service.model.digest
    assert run.service.least_replicas == 1


def _variables(d: list[dict[str, Any]], **headers: Any) -> None:
    reference = {"secretKeyRef": {"name": "tracing", "key": "headers", **headers}}
    env = [{"name": "OMP_NUM_THREADS", "value": "2"}, {"name": "OTEL_HEADERS", "valueFrom": reference}]
    d[1]["spec"]["engine"] = {**d[1]["spec"].get("engine", {}), "env": env}


def test_variables_of_secrets_come_from_the_shell(
    documents: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _variables(documents)
    monkeypatch.setenv("OTEL_HEADERS", "canary-of-the-shell")
    run = read(written(tmp_path, documents))
    assert run.variables == {"OMP_NUM_THREADS": "2", "OTEL_HEADERS": "canary-of-the-shell"}
    assert "canary" not in repr(run)


def test_a_variable_of_a_secret_that_may_be_missing_is_left_out(
    documents: list[dict[str, Any]], tmp_path: Path
) -> None:
    _variables(documents, optional=True)
    assert read(written(tmp_path, documents)).variables == {"OMP_NUM_THREADS": "2"}


async def test_an_engine_gets_the_variables_that_the_service_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its log says which, where it is a program that prints them."""
    show = tmp_path / "python"
    show.write_text("#!/bin/sh\necho $OF_THE_SHELL $OF_THE_SERVICE\n")
    show.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(show))
    monkeypatch.setenv("OF_THE_SHELL", "kept")
    started = await replica.start([], 1, tmp_path / "log", {"OF_THE_SERVICE": "added"})
    assert await started.process.wait() == 0
    assert started.log.read_text() == "kept added\n"


def _other_digest(d: list[dict[str, Any]]) -> None:
    d[1]["spec"]["model"]["digest"] = "sha256:" + "0" * 64


def _other_name(d: list[dict[str, Any]]) -> None:
    d[1]["spec"]["model"]["manifestRef"]["name"] = "other"


def _unknown_field(d: list[dict[str, Any]]) -> None:
    d[1]["spec"]["replica"] = 3


def _impossible(d: list[dict[str, Any]]) -> None:
    d[1]["spec"]["scaling"]["minReplicas"] = 3


def _keys(d: list[dict[str, Any]]) -> None:
    d[1]["spec"]["security"] = {"apiKeySecretRef": {"name": "keys"}}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            _variables,
            "spec.engine.env[1].valueFrom: got a key of 'tracing', which local mode cannot read, want OTEL_HEA",
        ),
        (_keys, "spec.security.apiKeySecretRef: got 'keys', want none in local mode"),
        (lambda d: d.pop(), "holds 0 resources of kind InferenceService, want 1"),
        (lambda d: d.append(d[1]), "holds 2 resources of kind InferenceService, want 1"),
        (lambda d: d.pop(0), "holds 0 ModelManifest of that name, want 1"),
        (_other_name, "spec.model.manifestRef.name: got 'other'"),
        (_other_digest, "spec.model.digest: got sha256:0000"),
        (_unknown_field, "spec.replica"),
        (_impossible, "got minReplicas 3 and maxReplicas 2"),
    ],
)
def test_a_wrong_file_is_refused_with_its_field(
    change: Callable[[list[dict[str, Any]]], object], message: str, documents: list[dict[str, Any]], tmp_path: Path
) -> None:
    change(documents)
    with pytest.raises(PinrailError) as caught:
        read(written(tmp_path, documents))
    assert message in str(caught.value)


def test_a_volume_that_is_not_there_names_the_folder(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match=f"{tmp_path}/models/smollm2-135m-instruct here, which is no folder"):
        model_folder(read(EXAMPLE), tmp_path)


def test_a_claim_is_a_folder_of_the_volumes(tmp_path: Path) -> None:
    folder = tmp_path / "models" / "smollm2-135m-instruct"
    folder.mkdir(parents=True)
    assert model_folder(read(EXAMPLE), tmp_path) == folder


def test_a_newly_pinned_engine_version_is_served_from_the_folder_of_the_same_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched: list[Path] = []
    monkeypatch.setenv("PINRAIL_CACHE", str(tmp_path))
    monkeypatch.setattr(request, "fetch", lambda _, folder, *__, **___: fetched.append(folder))
    run = read(EXAMPLE)
    for version in ("", "0.9.0"):
        manifest = replace(run.manifest, source=Source("https://x/"), runtime=Runtime(engine_version=version))
        model_folder(replace(run, manifest=manifest), tmp_path)
    assert fetched[0] == fetched[1]
