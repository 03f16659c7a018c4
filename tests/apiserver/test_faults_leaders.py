"""Three operators, of which the leader is killed or paused: at no time do two write, by the API server's own log.

PINRAIL_FAULTS=full kills twenty leaders and pauses one for twice the Lease; else one is paused for a little longer
than the Lease, which its successor waits for alike.
"""

import json
import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from apiserver_documents import pin, service
from faults_audit import Audit, Write, credential
from operator_process import Process, until

from pinrail_operator import names
from pinrail_operator.leader import LEASE

pytestmark = pytest.mark.apiserver

IS_FULL = os.environ.get("PINRAIL_FAULTS") == "full"
KILLS = 20 if IS_FULL else 0
PAUSE = 2 * LEASE if IS_FULL else LEASE + 2  # seconds
TAKE_OVER = 45.0  # seconds at most


@dataclass
class Crowd:
    """Three operators, each with a token of its own."""

    kube: Any
    start: Callable[..., Process]
    rights: Path
    running: list[Process] = field(default_factory=list)
    credentials: dict[str, str] = field(default_factory=dict)  # as the audit log names a token -> identity

    def join(self) -> None:
        identity = f"operator-{len(self.credentials)}"
        token = self.kube("create", "token", "p-operator").strip()
        document = json.loads(self.rights.read_text())
        document["users"][0]["user"] = {"token": token}
        file = self.rights.with_name(identity)
        file.write_text(json.dumps(document))
        self.credentials[credential(token)] = identity
        self.running.append(self.start(file, PINRAIL_IDENTITY=identity))

    def leader(self, but: Process | None = None) -> Process:
        """Who leads now, or soon; `but` is not asked."""
        found: list[Process] = []

        def leads() -> bool:
            found[:] = [p for p in self.running if p is not but and p.leads()]
            return bool(found)

        until(leads, "leading", TAKE_OVER)
        return found[0]

    def edit(self, replicas: int) -> None:
        self.kube("patch", "infs", "chat", "--type=merge", "-p", json.dumps({"spec": {"replicas": replicas}}))

    def has(self, replicas: int) -> bool:
        done = self.kube.run("get", "deployment", "chat", "-o", "jsonpath={.spec.replicas}")
        return bool(done.stdout == str(replicas))


def beside_the_leader(writes: list[Write]) -> list[Write]:
    """Those that came from another than who had taken the Lease last."""
    holder, found = "", []
    for write in writes:
        if write.resource == "leases":
            holder = write.credential if write.is_done else holder
        elif write.credential != holder:
            found.append(write)
    return found


def test_a_leader_that_is_killed_or_paused_never_writes_beside_its_successor(
    kube: Any, start: Any, rights: Path, audit: Audit, capsys: pytest.CaptureFixture[str]
) -> None:
    crowd = Crowd(kube, start, rights)
    kube.apply(pin(), service(replicas=1))
    for _ in range(3):
        crowd.join()
    crowd.leader()
    until(lambda: crowd.has(1), "the first Deployment")
    took_over = []
    for replicas in range(2, 2 + KILLS):
        leader = crowd.leader()
        crowd.edit(replicas)
        time.sleep(random.uniform(0.0, 0.4))  # before, in or after what it does about it
        leader.stop(signal.SIGKILL)
        killed = time.monotonic()
        crowd.running.remove(leader)
        crowd.join()
        crowd.leader()
        took_over.append(time.monotonic() - killed)
        until(lambda replicas=replicas: crowd.has(replicas), "what the killed one had to do", 15)  # type: ignore[misc]

    paused = crowd.leader()
    crowd.edit(50)
    paused.child.send_signal(signal.SIGSTOP)
    began = time.monotonic()
    crowd.leader(but=paused)
    took_over.append(time.monotonic() - began)
    crowd.edit(51)
    until(lambda: crowd.has(51), "what the successor has to do", 15)
    time.sleep(max(0.0, PAUSE - (time.monotonic() - began)))
    paused.child.send_signal(signal.SIGCONT)
    crowd.edit(52)
    until(lambda: crowd.has(52), "what comes after", 15)
    time.sleep(3)
    assert paused.health("readyz") == (200, {"leader": False})

    writes = audit.writes(kube.namespace)
    assert {w.credential for w in writes} <= set(crowd.credentials)
    assert beside_the_leader(writes) == []
    counts = [w.body["spec"]["replicas"] for w in writes if w.manager == names.SCALER_FIELD_MANAGER and w.is_done]
    assert len(counts) == len(set(counts)), f"one decision was written twice: {counts}"
    assert max(took_over) <= TAKE_OVER
    with capsys.disabled():
        print(f"\n  T3 {KILLS} leaders killed and one paused for {PAUSE} s: took over within {max(took_over):.1f} s, "
              f"{len(writes)} writes, none beside the leader's", end="", flush=True)  # fmt: skip
