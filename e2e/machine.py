"""The cluster's own programs, to be ended and brought back: only in the cluster that `make e2e` starts."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from cluster import LEDGER
from node import LOGS
from processes import Process
from world import kubectl, wait_for


@contextmanager
def without(name: str) -> Iterator[None]:
    """End a program of the control plane at once; it is started again, with the same words, when the block ends."""
    process = next((p for p in LEDGER.read() if p.name == name and p.is_alive()), None)
    if process is None:
        pytest.skip(f"{name} does not run here: this test needs the cluster of `make e2e`")
    command = process.command()
    process.stop(grace=0.0)
    try:
        yield
    finally:
        LEDGER.add(Process.start(name, command, LOGS / f"{name}-{int(time.time())}.log"))
        wait_for("the API server's readiness", lambda: kubectl("get", "--raw", "/readyz", check=False) == "ok")
