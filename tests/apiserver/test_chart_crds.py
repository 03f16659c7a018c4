"""The life of the CRDs beside a release: Helm makes them, each documented way renews them, and nothing deletes them."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from apiserver_documents import pin, service
from chart_render import CHART
from control_plane import ControlPlane

pytestmark = pytest.mark.apiserver

CRD = "inferenceservices.pinrail.dev"
PAGE = CHART.parents[1] / "docs" / "gitops.md"


@pytest.fixture
def bare(kube: Any, tmp_path: Path) -> Iterator[Any]:
    """kubectl on an API server that has no CRD yet."""
    with ControlPlane.start(tmp_path / "apiserver") as started:
        yield type(kube)(started.kubeconfig)


class Helm:
    """helm, with a home of its own."""

    def __init__(self, program: str, kube: Any, home: Path) -> None:
        self.program, self.kube = program, kube
        homes = ("HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME")
        self.env = {**os.environ, **dict.fromkeys(homes, str(home / "helm"))}

    def __call__(self, *words: str) -> str:
        command = [self.program, *words, "--kubeconfig", str(self.kube.kubeconfig), "-n", self.kube.namespace]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=self.env)
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture
def older(tmp_path: Path) -> Path:
    """The chart as it might have been: a column of another name."""
    chart = tmp_path / "older"
    shutil.copytree(CHART, chart)
    file = chart / "crds" / "inferenceservices.yaml"
    text = file.read_text()
    assert "{name: Reason," in text
    file.write_text(text.replace("{name: Reason,", "{name: Why,"))
    return chart


def columns(kube: Any) -> list[str]:
    return [c["name"] for c in kube.get("crd", CRD)["spec"]["versions"][0]["additionalPrinterColumns"]]


def renew_as_documented(kube: Any, said: str) -> None:
    """The page's command, which Helm says too."""
    (command,) = set(re.findall(r"kubectl (apply --server-side [^`]*? -f charts/pinrail/crds/)", PAGE.read_text()))
    assert command in said
    kube(*command.replace("charts/pinrail", str(CHART)).split())


def test_a_chart_that_was_uninstalled_is_installed_again_beside_the_services_of_before(
    bare: Any, helm: str, tmp_path: Path
) -> None:
    """With nobody taking ownership of anything: what an uninstall leaves is none of the release's."""
    run = Helm(helm, bare, tmp_path)
    run("install", "p", str(CHART))
    bare.wait_for_crds()
    bare.apply(pin(), service())
    uid = bare.get("infs", "chat")["metadata"]["uid"]
    for _ in range(2):
        run("uninstall", "p")
        assert not bare.exists("deployment", "p-operator")
        assert not bare.exists("clusterrole", "p-operator")
        assert bare.get("infs", "chat")["metadata"]["uid"] == uid
        assert "deletionTimestamp" not in bare.get("crd", CRD)["metadata"]
        run("install", "p", str(CHART))
        assert bare.exists("deployment", "p-operator")
    assert bare.get("infs", "chat")["metadata"]["uid"] == uid


def test_crds_are_renewed_as_the_page_says_and_outlive_the_release(
    bare: Any, helm: str, older: Path, tmp_path: Path
) -> None:
    run, owned = Helm(helm, bare, tmp_path), ("--set", "crds.install=true", "--take-ownership")
    run("install", "p", str(older))
    bare.wait_for_crds()
    bare.apply(pin(), service())
    assert "Why" in columns(bare)
    said = run("upgrade", "p", str(CHART))
    assert "Why" in columns(bare), "Helm renews CRDs now: the page and the chart's notes are wrong"
    renew_as_documented(bare, said)
    assert "Why" not in columns(bare)

    run("upgrade", "p", str(older), *owned)
    assert "Why" in columns(bare)
    assert "Helm does not renew CRDs" not in run("upgrade", "p", str(CHART), *owned[:2])
    assert "Why" not in columns(bare)

    run("uninstall", "p")
    assert not bare.exists("deployment", "p-operator")
    assert (bare.exists("crd", CRD), bare.exists("infs", "chat"), bare.exists("pin", "tiny-v1")) == (True, True, True)
    run("install", "another", str(CHART), "--skip-crds", *owned)
