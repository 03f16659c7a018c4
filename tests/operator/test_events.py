"""The table in `events_for`'s docstring, row by row."""

from typing import Any

import pytest
from operator_builders import DIGEST, manifest, service

from pinrail_operator.autoscale import Decision, Inputs, Reason
from pinrail_operator.events import Event, EventType, events_for, unused_event
from pinrail_operator.plan import Plan


def status(
    ready: str = "False", stalled: str = "False", reason: str = "ModelMismatch", rollout: str = "RollingOut"
) -> dict[str, Any]:
    return {
        "conditions": [
            {"type": "RolloutComplete", "status": "False", "reason": rollout, "message": "one goes first"},
            {"type": "Ready", "status": ready, "reason": "Serving", "message": "serves"},
            {"type": "Stalled", "status": stalled, "reason": reason, "message": f"because of {reason}"},
        ]
    }


SCALE = Plan(scale={"metadata": {"name": "chat"}, "spec": {"replicas": 3}})
INPUTS = Inputs(
    current=2, ready=2, starting=0, reporting=2, demand_blocks=9.0, supply_blocks=10.0, requests=1, slots=0,
    deepest_queue=0,
)  # fmt: skip
DECISION = Decision(3, Reason.CACHE_DEMAND, "more is needed", INPUTS, ())
STALLED = Event(EventType.WARNING, "ModelMismatch", "because of ModelMismatch")
REPLACING = Event(EventType.WARNING, "Replacing", "one goes first")
READY = Event(EventType.NORMAL, "Serving", "serves")
SCALED = Event(EventType.NORMAL, "Scaled", "from 2 to 3 replicas: more is needed")


@pytest.mark.parametrize(
    ("previous", "fresh", "plan", "decision", "events"),
    [
        pytest.param({}, status(), Plan(), None, [], id="new"),
        pytest.param({}, status(stalled="True"), Plan(), None, [STALLED], id="new and stalled"),
        pytest.param(status(), status(stalled="True"), Plan(), None, [STALLED], id="stalls"),
        pytest.param(status(stalled="True"), status(stalled="True"), Plan(), None, [], id="still stalled"),
        pytest.param(status(stalled="True", reason="NameTaken"), status(stalled="True"), Plan(), None, [STALLED],
                     id="stalled for another reason"),
        pytest.param(status(stalled="True"), status(), Plan(), None, [], id="no longer stalled"),
        pytest.param(status(), status(rollout="Replacing"), Plan(), None, [REPLACING], id="a pod's place is taken"),
        pytest.param(status(rollout="Replacing"), status(rollout="Replacing"), Plan(), None, [], id="still taken"),
        pytest.param(status(), status(ready="True"), Plan(), None, [READY], id="becomes ready"),
        pytest.param(status(ready="True"), status(ready="True"), Plan(), None, [], id="still ready"),
        pytest.param(status(), status(), SCALE, DECISION, [SCALED], id="the scaler writes"),
        pytest.param(status(), status(), SCALE, None, [], id="a fixed number is written"),
        pytest.param(status(), status(), Plan(), DECISION, [], id="the scaler holds"),
    ],
)  # fmt: skip
def test_events_for(previous: Any, fresh: Any, plan: Plan, decision: Decision | None, events: list[Event]) -> None:
    assert list(events_for(previous, fresh, plan, decision)) == events


TOKEN = {"tokenSecretRef": {"name": "hub", "key": "token"}}
KEYS = {"credentialsSecretRef": {"name": "store"}}
CA = {"caConfigMapRef": {"name": "ca", "key": "ca.crt"}}
ENDPOINT = {"endpoint": "https://mirror.test"}


@pytest.mark.parametrize(
    ("given", "uri", "unused"),
    [
        ({}, "pvc://models/tiny", ""),
        (TOKEN, "pvc://models/tiny", "spec.model.tokenSecretRef"),
        (TOKEN | CA, "pvc://models/tiny", "spec.model.tokenSecretRef, spec.model.caConfigMapRef"),
        (TOKEN | CA, "https://models.test/tiny", ""),
        (TOKEN | KEYS | CA | ENDPOINT, "s3://bucket/tiny", "spec.model.tokenSecretRef"),
        (KEYS | ENDPOINT, "https://models.test/tiny", "spec.model.credentialsSecretRef, spec.model.endpoint"),
    ],
)
def test_fields_that_the_source_makes_no_use_of_are_told(given: dict[str, Any], uri: str, unused: str) -> None:
    asked = service(model={"name": "tiny", "manifestRef": {"name": "tiny-v1"}, "digest": DIGEST, **given})
    event = unused_event(asked, manifest(uri))
    assert (event is not None) is bool(unused)
    if event is not None:
        assert (event.type, event.reason) == (EventType.WARNING, "FieldUnused")
        scheme = uri.partition(":")[0]
        assert event.message.startswith(f"{unused}: no effect on a source of {scheme}://; next: take ")


def test_without_a_manifest_no_field_is_said_to_be_unused() -> None:
    model = {"name": "tiny", "manifestRef": {"name": "tiny-v1"}, "digest": DIGEST, **TOKEN}
    assert unused_event(service(model=model), None) is None
