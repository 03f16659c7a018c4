"""What does not match its pin never serves, says so by name, and never takes down what does."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from world import SERVICE, Service, wait_for


@pytest.fixture(scope="module")
def service(make_service: Callable[..., Service]) -> Service:
    service = make_service("pinned", scaling=None, replicas=1)
    service.wait_until("Ready", "True")
    return service


def flip_a_byte(path: Path) -> None:
    """In a new file under the old name: a pod that has the old one open keeps it."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    new = path.with_name("new")
    new.write_bytes(data)
    new.chmod(0o644)
    os.replace(new, path)


def test_a_flipped_byte_stops_the_new_pod_and_leaves_the_old_one(service: Service, volume: Any) -> None:
    (old,) = service.pods()
    flip_a_byte(volume.folder / "model.safetensors")
    service.patch({"limits": {**SERVICE["spec"]["limits"], "maxQueued": 99}})
    condition = service.wait_until("ModelVerified", "False")
    assert condition["reason"] == "ModelMismatch"
    assert "model.safetensors: changed" in condition["message"]
    event = wait_for(
        "an event that names the file",
        lambda: next((e for e in service.events() if "model.safetensors" in (e.message or "")), None),
        show=service.describe,
    )
    assert event.type == "Warning"
    new = [p for p in service.pods() if p.metadata.name != old.metadata.name]
    assert new
    assert not any(c.ready for p in new for c in p.status.container_statuses or [])
    assert "Paris" in service.ask("What is the capital of France?")


def test_where_verification_only_warns_it_serves_and_says_so(
    service: Service, make_service: Callable[..., Service]
) -> None:
    warned = make_service("warned", scaling=None, replicas=1, verification={"mode": "Warn"})
    assert warned.wait_until("Ready", "True")["reason"] == "ServingUnverified"
    assert warned.condition("ModelVerified")["reason"] == "FilesDiffer"
    assert warned.status()["model"]["verifiedReplicas"] == 0
    assert warned.ask("What is the capital of France?")


def test_another_digest_never_starts_a_pod(make_service: Callable[..., Service]) -> None:
    model = {**SERVICE["spec"]["model"], "digest": "sha256:" + "0" * 64}
    service = make_service("other", scaling=None, replicas=1, model=model)
    stalled = service.wait_until("Stalled", "True")
    assert "spec.model.digest" in stalled["message"] or "digest" in stalled["message"].lower()
    assert service.condition("ModelVerified")["status"] == "False"
    assert service.pods() == []


def test_a_missing_manifest_never_starts_a_pod(make_service: Callable[..., Service]) -> None:
    model = {**SERVICE["spec"]["model"], "manifestRef": {"name": "nowhere"}}
    service = make_service("missing", scaling=None, replicas=1, model=model)
    assert "nowhere" in service.wait_until("Stalled", "True")["message"]
    assert service.condition("ModelVerified")["status"] == "False"
    assert service.pods() == []
