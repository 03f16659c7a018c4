"""kubectl, as a user has it."""

import json
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from parts import KUBERNETES


@dataclass(frozen=True)
class Kube:
    """Its answers in one namespace."""

    kubeconfig: Path
    namespace: str = "default"

    def run(self, *words: str, stdin: str = "", kubeconfig: Path | None = None) -> subprocess.CompletedProcess[str]:
        kubectl = KUBERNETES.program("kubectl")
        command = [str(kubectl), "--kubeconfig", str(kubeconfig or self.kubeconfig), "-n", self.namespace, *words]
        return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=60)

    def __call__(self, *words: str, stdin: str = "") -> str:
        """Standard output; a failure fails the test."""
        done = self.run(*words, stdin=stdin)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def get(self, *words: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self("get", *words, "-o", "json"))
        return found

    def exists(self, *words: str) -> bool:
        return self.run("get", *words).returncode == 0

    def apply(self, *documents: Mapping[str, Any]) -> str:
        return self("apply", "-f", "-", stdin=yaml.safe_dump_all([dict(d) for d in documents]))

    def refusal(self, document: Mapping[str, Any]) -> str:
        """What the API server says to a document that it must not take."""
        done = self.run("apply", "-f", "-", stdin=yaml.safe_dump(dict(document)))
        assert done.returncode != 0, f"was taken: {done.stdout}"
        return done.stderr

    def wait_for_crds(self) -> None:
        """`kubectl wait` fails at once for one that has no conditions yet: it is asked again, for half a minute."""
        deadline = time.monotonic() + 30
        words = ("wait", "--for=condition=Established", "crd", "--all", "--timeout=30s")
        while (done := self.run(*words)).returncode != 0:
            assert time.monotonic() < deadline, done.stderr
            time.sleep(0.1)

    def patch_status(self, kind: str, name: str, status: Mapping[str, Any]) -> None:
        patch = json.dumps({"status": status})
        self("patch", kind, name, "--subresource=status", "--type=merge", "-p", patch)
