"""A real Prometheus on this machine, for as long as a test lasts."""

import json
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from parts import prometheus_program

Object = dict[str, Any]
PATIENCE = 30.0  # seconds that it has to start


@dataclass(frozen=True)
class Prometheus:
    """Its process and its HTTP API."""

    url: str
    child: subprocess.Popen[bytes]

    def api(self, path: str, **query: str) -> Any:
        """The `data` of an answer; a refused query raises AssertionError with Prometheus' own words."""
        url = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as e:
            raise AssertionError(f"{query}: {json.load(e).get('error')}") from None

    def vector(self, expression: str) -> list[Object]:
        """What an instant query finds: `metric` (labels) and `value` (time, text) of each series."""
        found: list[Object] = self.api("query", query=expression)["result"]
        return found

    def rules(self) -> list[Object]:
        """Every alert with its state, health and last error."""
        return [rule for group in self.api("rules")["groups"] for rule in group["rules"]]

    def targets(self) -> list[Object]:
        """What is scraped: `labels`, `health`, `lastError`."""
        return list(self.api("targets")["activeTargets"])

    def is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/-/ready", timeout=2) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False


@contextmanager
def prometheus(
    folder: Path, scrapes: Sequence[Object], rules: Object | None = None, port: int = 0
) -> Iterator[Prometheus]:
    """A server on 127.0.0.1 that keeps its data and its log in `folder`; it is ended with the block.

    Args:
        folder: Empty, or that of an earlier server, whose data this one has then.
        scrapes: Entries of `scrape_configs`.
        rules: A rule file's content.
        port: A free one; 0 takes any.
    """
    folder.mkdir(exist_ok=True)
    port = port or _free_port()
    (folder / "rules.yml").write_text(yaml.safe_dump(rules or {"groups": []}))
    every = {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"}
    config = {"global": every, "rule_files": ["rules.yml"], "scrape_configs": list(scrapes)}
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    words = [f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data", "--log.level=warn",
             f"--web.listen-address=127.0.0.1:{port}", "--storage.tsdb.retention.time=1h"]  # fmt: skip
    with (folder / "log").open("w") as log:
        child = subprocess.Popen([str(prometheus_program("prometheus")), *words], stdout=log, stderr=log)
    try:
        server, deadline = Prometheus(f"http://127.0.0.1:{port}", child), time.monotonic() + PATIENCE
        while not server.is_ready():
            assert child.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < deadline, (folder / "log").read_text()
            time.sleep(0.1)
        yield server
    finally:
        child.send_signal(signal.SIGCONT)
        child.terminate()
        try:
            child.wait(timeout=10)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def _free_port() -> int:
    """One of 127.0.0.1 that nothing listened on a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
