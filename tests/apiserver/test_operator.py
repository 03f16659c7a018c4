"""The whole operator as a process, with the rights that the chart gives it and no others."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from apiserver_documents import pin, service
from kubernetes import config
from operator_process import CHART, PINRAIL, until

from pinrail_operator import names
from pinrail_operator.api import Api
from pinrail_operator.cluster import Cluster
from pinrail_operator.manifests import quarantined
from pinrail_operator.observed import Pod
from pinrail_operator.plan import Plan
from pinrail_operator.quarantine import Wrong
from pinrail_operator.types import InferenceService

pytestmark = pytest.mark.apiserver


def test_a_created_service_is_reconciled_within_seconds(kube: Any, start: Any) -> None:
    operator = start()
    until(operator.leads, "leading")
    kube.apply(pin(), service())
    until(lambda: kube.exists("deployment", "chat"), "the Deployment", 5)
    until(lambda: "conditions" in kube.get("infs", "chat")["status"], "the status", 5)
    assert operator.health("livez") == (200, {"stuck": {}, "leader": True})
    kube("delete", "deployment", "chat", "--cascade=background")
    until(lambda: kube.exists("deployment", "chat"), "the Deployment's return", 5)
    kube("patch", "infs", "chat", "--type=merge", "-p", '{"spec":{"replicas":4}}')
    until(lambda: kube.get("deployment", "chat")["spec"]["replicas"] == 4, "four replicas", 5)
    assert operator.stop() == 0
    assert kube.get("lease", "p-operator")["spec"].get("holderIdentity", "") == ""
    assert "forbidden" not in operator.log.read_text()


def test_an_operator_that_ends_lets_the_next_one_lead_at_once_however_long_it_led(kube: Any, start: Any) -> None:
    operator = start()
    until(operator.leads, "leading")
    first = kube.get("lease", "p-operator")["spec"]["renewTime"]
    until(lambda: kube.get("lease", "p-operator")["spec"]["renewTime"] != first, "a renewal")
    assert operator.stop() == 0
    assert kube.get("lease", "p-operator")["spec"].get("holderIdentity", "") == ""


def test_a_manifest_that_comes_later_wakes_its_services(kube: Any, start: Any) -> None:
    kube.apply(service())
    until(start().leads, "leading")
    until(lambda: "conditions" in kube.get("infs", "chat")["status"], "the status")
    assert not kube.exists("deployment", "chat")
    kube.apply(pin())
    until(lambda: kube.exists("deployment", "chat"), "the Deployment", 5)


def test_events_of_a_blocked_service_need_no_further_right(kube: Any, start: Any) -> None:
    kube.apply(pin(), service(model={**service()["spec"]["model"], "digest": "sha256:" + "0" * 64}))
    until(start().leads, "leading")
    until(lambda: len(kube.get("events")["items"]) == 1, "the event")


async def test_the_charts_rights_are_enough_to_take_a_pod_out_of_service(kube: Any, rights: Path) -> None:
    """By the label that selects it; what it may not do is asked for below."""
    kube.apply(service())
    asked = InferenceService.from_body(kube.get("infs", "chat"))
    container = {"name": "engine", "image": "x"}
    kube.apply({"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [container]},
                "metadata": {"name": "chat-a", "labels": names.labels(asked)}})  # fmt: skip
    api = Api(config.new_client_from_config(str(rights)), lambda: True)
    wrong = Wrong(Pod.from_body(kube.get("pod", "chat-a")), "sha256:other")
    outcome = await Cluster(api).apply(
        kube.namespace, Plan(quarantine=(quarantined(asked, wrong),), marks=(("chat-a", "false"), ("gone", "true")))
    )
    api.close()
    assert outcome.refused is None
    labels = kube.get("pod", "chat-a")["metadata"]["labels"]
    assert (labels[names.SERVICE], labels[names.SERVING]) == ("chat.quarantine", "false")


def test_the_operator_may_not_touch_what_users_asked_for(kube: Any, rights: Path) -> None:
    kube.apply(pin(), service())
    for words in (("patch", "infs"), ("delete", "infs"), ("create", "infs"), ("patch", "pin"), ("get", "secrets"),
                  ("create", "pods"), ("delete", "deployments"), ("create", "pods/exec")):  # fmt: skip
        assert kube.run("auth", "can-i", *words, kubeconfig=rights).stdout.strip() == "no", words


def test_without_crds_it_says_what_to_install(tmp_path: Path, control_plane: Any) -> None:
    """The CRDs are there; a server that knows no group of ours is one of an unknown path."""
    document = json.loads(control_plane.kubeconfig.read_text())
    document["clusters"][0]["cluster"]["server"] += "/api"
    file = tmp_path / "kubeconfig"
    file.write_text(json.dumps(document))
    done = subprocess.run([*PINRAIL, "operator"], env={**os.environ, "KUBECONFIG": str(file)}, capture_output=True,
                          text=True, timeout=30)  # fmt: skip
    assert done.returncode == 1
    assert "install the CRDs" in done.stderr


def test_a_wrong_setting_ends_it_in_one_sentence(tmp_path: Path) -> None:
    env = {**os.environ, "PINRAIL_TICK_SECONDS": "soon", "KUBECONFIG": str(tmp_path / "none")}
    done = subprocess.run([*PINRAIL, "operator"], env=env, capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "pinrail operator: PINRAIL_TICK_SECONDS: got 'soon', want a number\n"


@pytest.mark.parametrize("values", [{}, {"watchNamespaces": ["OWN"]}, {"priorityClassName": "high"}], ids=str)
def test_the_chart_renders_what_the_api_server_takes(kube: Any, helm: str, tmp_path: Path, values: Any) -> None:
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump(values).replace("OWN", kube.namespace))
    words = ["template", "p", str(CHART), "-n", kube.namespace, "-f", str(file)]
    rendered = subprocess.run([helm, *words], check=True, capture_output=True, text=True).stdout
    kube("apply", "--server-side", "--dry-run=server", "-f", "-", stdin=rendered)
    subprocess.run([helm, "lint", "--strict", str(CHART), "-f", str(file)], check=True, capture_output=True)


@pytest.mark.parametrize(
    ("setting", "word"), [("replica=2", "replica"), ("image.digest=latest", "digest"), ("tickSeconds=0", "tickSeconds")]
)
def test_the_chart_refuses_wrong_values(helm: str, setting: str, word: str) -> None:
    done = subprocess.run([helm, "template", "p", str(CHART), "--set", setting], capture_output=True, text=True)
    assert done.returncode != 0
    assert word in done.stderr
