"""What `pinrail up` accepts: one service, the manifest that it names, the digest that it pins."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from pinrail_contract.errors import ManifestError, PinrailError
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
