"""Requests need a key of a Secret; keys come and go as the kubelet brings them, and no pod restarts."""

import base64
from collections.abc import Callable
from typing import Any

import openai
import pytest
from load import LIMITS
from world import SERVICE, Service, apply, wait_for

OLD, NEW = "sk-of-the-old-days", "sk-of-these-days"
SECRET = "chat-keys"


def write_keys(namespace: str, **keys: str) -> None:
    data = {name: base64.b64encode(key.encode()).decode() for name, key in keys.items()}
    document = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": SECRET}, "data": data}
    apply(document, namespace=namespace)


@pytest.fixture(scope="module")
def service(volume: Any, make_service: Callable[..., Service]) -> Service:
    write_keys(volume.namespace, old=OLD)
    security = {"apiKeySecretRef": {"name": SECRET}}
    service = make_service("locked", scaling=None, replicas=1, limits=LIMITS, security=security)
    service.wait_until("Ready", "True")
    return service


def lets_in(client: openai.OpenAI, key: str) -> bool:
    try:
        client.with_options(api_key=key).completions.create(
            model=SERVICE["spec"]["model"]["name"], prompt="x", max_tokens=1
        )
    except openai.AuthenticationError:
        return False
    return True


def test_keys_are_added_and_taken_away_while_the_pod_serves(service: Service) -> None:
    """Probes and the operator's own questions need none: the service is ready and verified."""
    client = service.openai()
    (pod,) = service.pods()
    assert (lets_in(client, OLD), lets_in(client, NEW), lets_in(client, "none")) == (True, False, False)
    write_keys(service.namespace, old=OLD, new=NEW)
    wait_for("the new key", lambda: lets_in(client, NEW), show=service.describe)
    assert lets_in(client, OLD)
    write_keys(service.namespace, new=NEW)
    wait_for("the old key's end", lambda: not lets_in(client, OLD), show=service.describe)
    assert lets_in(client, NEW)
    (after,) = service.pods()
    assert (after.metadata.uid, after.status.container_statuses[0].restart_count) == (pod.metadata.uid, 0)
    assert service.condition("ModelVerified")["status"] == "True"


def test_without_a_key_no_pod_starts_and_the_condition_says_what_to_do(make_service: Callable[..., Service]) -> None:
    security = {"apiKeySecretRef": {"name": "nowhere"}}
    service = make_service("keyless", scaling=None, replicas=1, limits=LIMITS, security=security)
    stalled = service.wait_until("Stalled", "True")
    assert stalled["reason"] == "ApiKeysMissing"
    assert "spec.security.apiKeySecretRef" in stalled["message"]
