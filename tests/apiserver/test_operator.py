"""The whole operator as a process, with the rights that the chart gives it and no others."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from apiserver_documents import pin, service
from operator_builders import IMAGE

pytestmark = pytest.mark.apiserver

CHART = Path(__file__).parents[2] / "charts" / "pinrail"
PINRAIL = [sys.executable, "-m", "pinrail_contract"]


def until(is_true: Callable[[], bool], what: str, seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not is_true():
        assert time.monotonic() < deadline, f"{what} did not happen within {seconds:.0f} s"
        time.sleep(0.1)


class Process:
    """`pinrail operator`, with its log in a file."""

    def __init__(self, kubeconfig: Path, namespace: str, log: Path, port: int, **env: str) -> None:
        settings = {
            "KUBECONFIG": str(kubeconfig),
            "PINRAIL_NAMESPACES": namespace,
            "PINRAIL_LEASE_NAMESPACE": namespace,
            "PINRAIL_LEASE_NAME": "p-operator",
            "PINRAIL_ENGINE_IMAGE": IMAGE,
            "PINRAIL_HEALTH_PORT": str(port),
            "PINRAIL_TICK_SECONDS": "0.5",
            **env,
        }
        self.log, self.port = log, port
        with log.open("w") as output:
            self.child = subprocess.Popen(
                [*PINRAIL, "operator"], env={**os.environ, **settings}, stdout=output, stderr=subprocess.STDOUT
            )

    def health(self, path: str) -> tuple[int, Any]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/{path}", timeout=5) as answer:
                return answer.status, json.load(answer)
        except (urllib.error.URLError, OSError):
            return 0, {}

    def leads(self) -> bool:
        return self.health("readyz") == (200, {"leader": True})

    def stop(self, sign: int = signal.SIGTERM) -> int:
        self.child.send_signal(sign)
        return self.child.wait(timeout=20)


@pytest.fixture
def rights(kube: Any, helm: str, tmp_path: Path) -> Iterator[Path]:
    """A kubeconfig that holds a token of the chart's service account, and nothing else."""
    values = ["--set", f"watchNamespaces={{{kube.namespace}}}", "--set", "replicas=0"]
    rendered = subprocess.run(
        [helm, "template", "p", str(CHART), "-n", kube.namespace, *values], check=True, capture_output=True, text=True
    )
    kube("apply", "-f", "-", stdin=rendered.stdout)
    token = kube("create", "token", "p-operator").strip()
    document = json.loads(kube.kubeconfig.read_text())
    document["users"][0]["user"] = {"token": token}
    file = tmp_path / "kubeconfig"
    file.write_text(json.dumps(document))
    yield file
    kube("delete", "--ignore-not-found", "-f", "-", stdin=rendered.stdout)  # other tests look for operators everywhere


@pytest.fixture
def start(kube: Any, rights: Path, tmp_path: Path, free_port: Callable[[], int]) -> Iterator[Callable[..., Process]]:
    """Starts operators; what still runs at the end is ended, and its log must hold no traceback."""
    started: list[Process] = []

    def one(**env: str) -> Process:
        log = tmp_path / f"operator-{len(started)}.log"
        started.append(Process(rights, kube.namespace, log, free_port(), **env))
        return started[-1]

    yield one
    for process in started:
        if process.child.poll() is None:
            process.stop()
        assert "Traceback" not in process.log.read_text(), process.log.read_text()[-3000:]


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


def test_a_manifest_that_comes_later_wakes_its_services(kube: Any, start: Any) -> None:
    kube.apply(service())
    until(start().leads, "leading")
    until(lambda: "conditions" in kube.get("infs", "chat")["status"], "the status")
    assert not kube.exists("deployment", "chat")
    kube.apply(pin())
    until(lambda: kube.exists("deployment", "chat"), "the Deployment", 5)


def test_a_hundred_services_are_there_before_it_starts(kube: Any, start: Any) -> None:
    """More than any queue inside Kopf holds; afterwards nothing is written again."""
    many = [service() | {"metadata": {"name": f"chat-{i}"}} for i in range(100)]
    kube.apply(pin(), *many)
    start()
    until(
        lambda: len(kube.get("deployments", "-l", "pinrail.dev/service")["items"]) == 100, "a hundred Deployments", 60
    )
    until(lambda: all("conditions" in i["status"] for i in kube.get("infs")["items"]), "a hundred statuses")


def test_events_of_a_blocked_service_need_no_further_right(kube: Any, start: Any) -> None:
    kube.apply(service())
    until(start().leads, "leading")
    until(lambda: len(kube.get("events")["items"]) == 1, "the event")


def test_the_second_operator_takes_over_from_one_that_was_killed(kube: Any, start: Any) -> None:
    first = start(PINRAIL_IDENTITY="first")
    until(first.leads, "leading")
    second = start(PINRAIL_IDENTITY="second")
    until(lambda: second.health("readyz")[0] == 200, "the second's answer")
    assert second.health("readyz")[1] == {"leader": False}
    first.stop(signal.SIGKILL)
    kube.apply(pin(), service())
    until(second.leads, "the take-over", 30)
    until(lambda: kube.exists("deployment", "chat"), "the Deployment", 10)


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
