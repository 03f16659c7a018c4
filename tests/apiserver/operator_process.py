"""`pinrail operator` as a process of its own, and waiting for what it does."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from operator_builders import IMAGE

CHART = Path(__file__).parents[2] / "charts" / "pinrail"
PINRAIL = [sys.executable, "-m", "pinrail_contract"]


def until(is_true: Callable[[], bool], what: str, seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not is_true():
        assert time.monotonic() < deadline, f"{what} did not happen within {seconds:.0f} s"
        time.sleep(0.1)


def free_port() -> int:
    """A port of 127.0.0.1 that nothing listened on a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


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
        self.may_trace = False  # a traceback in its log is no bug
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

    def resident(self) -> float:
        """MiB of memory that it holds."""
        lines = Path(f"/proc/{self.child.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024

    def leads(self) -> bool:
        return self.health("readyz") == (200, {"leader": True})

    def stop(self, sign: int = signal.SIGTERM) -> int:
        self.child.send_signal(sign)
        return self.child.wait(timeout=20)
