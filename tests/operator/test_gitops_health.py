"""What Argo CD's scripts and kstatus make of every status: they agree, and none is ready before it is."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from gitops_situations import CASES
from kstatus import Verdict, verdict
from lupa.lua51 import LuaRuntime, lua_type  # the version that Argo CD's interpreter speaks

ROOT = Path(__file__).parents[2]
RULES = ROOT / "docs" / "gitops"
SCRIPTS = RULES / "argocd" / "pinrail.dev"
ARGO = {Verdict.FAILED: "Degraded", Verdict.IN_PROGRESS: "Progressing", Verdict.CURRENT: "Healthy"}
CLOSED = ("string", "io", "os", "debug", "math", "require", "dofile", "loadfile")
"""What Argo CD takes from a health script."""

params = [pytest.param(seen, wanted, id=name) for name, seen, wanted in CASES]


def health(kind: str, seen: dict[str, Any]) -> tuple[str, str]:
    """Status and message, as Argo CD's interpreter would have them."""
    lua = LuaRuntime(unpack_returned_tuples=True)
    for name in CLOSED:
        lua.globals()[name] = None
    lua.globals()["obj"] = _table(lua, seen)
    answer = lua.execute((SCRIPTS / kind / "health.lua").read_text())
    assert lua_type(answer) == "table"
    return answer["status"], answer["message"]


def _table(lua: Any, value: Any) -> Any:
    if isinstance(value, dict):
        return lua.table_from({key: _table(lua, child) for key, child in value.items()})
    if isinstance(value, list | tuple):
        return lua.table_from([_table(lua, child) for child in value])
    return value


@pytest.mark.parametrize(("seen", "wanted"), params)
def test_kstatus_reads_every_status_as_it_is_meant(seen: dict[str, Any], wanted: Verdict) -> None:
    assert verdict(seen) == wanted


@pytest.mark.parametrize(("seen", "wanted"), params)
def test_argo_cd_agrees_with_kstatus(seen: dict[str, Any], wanted: Verdict) -> None:
    """But for a roll-out that `paused` holds back: Argo CD has a word for it."""
    held = seen["spec"].get("paused") and wanted is Verdict.IN_PROGRESS
    status, message = health("InferenceService", seen)
    assert status == ("Suspended" if held else ARGO[wanted])
    assert message


def test_a_service_that_waits_for_a_person_says_the_next_step_in_argo_cd() -> None:
    seen = next(seen for name, seen, _ in CASES if name == "a roll-out meets wrong files")
    status, message = health("InferenceService", seen)
    assert (status, message.partition(":")[0]) == ("Degraded", "ModelMismatch")
    assert "next: repair the source" in message


def test_an_object_without_any_status_is_not_healthy_in_argo_cd() -> None:
    """As an API server has it whose CRD is older than the default."""
    seen = {key: value for key, value in CASES[0][1].items() if key != "status"}
    assert health("InferenceService", seen)[0] == "Progressing"


def test_a_suspended_service_lets_a_sync_go_on() -> None:
    """What was asked for is there; a wave that waits for Healthy would wait for ever."""
    suspended = next(seen for name, seen, _ in CASES if name == "suspended")
    assert health("InferenceService", suspended)[0] == "Healthy"


def test_a_manifest_is_healthy_as_soon_as_it_exists() -> None:
    manifest = {
        "apiVersion": "pinrail.dev/v1alpha1",
        "kind": "ModelManifest",
        "metadata": {"name": "m", "generation": 1},
    }
    assert health("ModelManifest", manifest)[0] == "Healthy"
    assert verdict(manifest) is Verdict.CURRENT


def test_there_is_a_script_for_each_resource() -> None:
    crds = [yaml.safe_load(file.read_text()) for file in (ROOT / "crds").glob("*.yaml")]
    assert {crd["spec"]["names"]["kind"] for crd in crds} == {folder.name for folder in SCRIPTS.iterdir()}


def test_a_new_service_is_not_taken_for_a_ready_one() -> None:
    """The CRD's default stands where the operator has not written yet."""
    crd = yaml.safe_load((ROOT / "crds" / "inferenceservices.yaml").read_text())
    default = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]["default"]
    assert verdict({"metadata": {"generation": 1}, "status": default}) is Verdict.IN_PROGRESS
    assert verdict({"metadata": {"generation": 1}}) is Verdict.CURRENT
