"""A live object is what was applied if its stamp is, and if every wanted field is still there."""

import copy
from typing import Any

import pytest
from operator_builders import IMAGE, live_objects, manifest, service

from pinrail_operator.drift import covers, dropped, is_applied
from pinrail_operator.manifests import objects_for
from pinrail_operator.observed import Ref

ASKED = service(resources={"requests": {"cpu": "1000m", "memory": "1024Mi"}})


def pair(kind: str) -> tuple[dict[str, Any], dict[str, Any]]:
    live = live_objects(ASKED)
    ref = next(r for r in live if r.kind == kind)
    return copy.deepcopy(live[ref]), live[ref]


@pytest.mark.parametrize(
    ("live", "wanted", "result"),
    [
        pytest.param({"a": 1, "b": 2}, {"a": 1}, True, id="what the server added does not count"),
        pytest.param({"a": 2}, {"a": 1}, False, id="changed"),
        pytest.param({}, {"a": 1}, False, id="removed"),
        pytest.param(None, {}, True, id="an empty object may be absent"),
        pytest.param("x", {}, False, id="another type"),
        pytest.param([{"a": 1, "b": 2}], [{"a": 1}], True, id="members of lists may grow"),
        pytest.param([1, 2], [1], False, id="lists may not"),
        pytest.param([1, 3], [1, 2], False, id="one member changed"),
        pytest.param(None, [1], False, id="list removed"),
        pytest.param({}, {"a": "", "b": [], "c": {}}, True, id="what is empty may be absent"),
        pytest.param({}, {"a": False}, False, id="false is not empty"),
        pytest.param([{"name": "x"}, {"name": "a", "value": "1"}], [{"name": "a", "value": "1"}], True,
                     id="someone else's named member"),
        pytest.param([{"name": "a", "value": "2"}], [{"name": "a", "value": "1"}], False, id="our member changed"),
        pytest.param([{"name": "b"}], [{"name": "a"}], False, id="our member removed"),
        pytest.param({"resources": {"limits": {"memory": "1Gi"}}}, {"resources": {"limits": {"memory": "1024Mi"}}},
                     True, id="one quantity in two spellings"),
        pytest.param({"resources": {"limits": {"cpu": "2"}}}, {"resources": {"limits": {"cpu": "1000m"}}}, False,
                     id="another quantity"),
        pytest.param({"resources": {"limits": {"cpu": "1"}}}, {"resources": {"limits": {"cpu": 1}}}, True,
                     id="a number and its text"),
        *(
            pytest.param({"resources": {"x": live}}, {"resources": {"x": given}}, True, id=given)
            for given, live in [(".5", "500m"), ("1.", "1"), ("0.5E", "500P"), ("1024Pi", "1Ei"), ("0.0005", "500u"),
                                ("1e3", "1000"), ("1000e3", "1e6")]
        ),
        pytest.param({"env": "1Gi"}, {"env": "1024Mi"}, False, id="a quantity elsewhere is text"),
    ],
)  # fmt: skip
def test_covers(live: Any, wanted: Any, result: bool) -> None:
    assert covers(live, wanted) is result


@pytest.mark.parametrize("kind", ["Deployment", "Service", "ConfigMap", "PodDisruptionBudget"])
def test_what_was_applied_is_recognised(kind: str) -> None:
    wanted, live = pair(kind)
    assert is_applied(wanted, live)
    assert not is_applied(wanted, None)


def test_an_image_that_someone_set_is_drift() -> None:
    wanted, live = pair("Deployment")
    live = copy.deepcopy(live)
    live["spec"]["template"]["spec"]["containers"][0]["image"] = "someone/else"
    assert not is_applied(wanted, live)


def test_a_field_that_is_no_longer_wanted_is_drift() -> None:
    before = live_objects(service(nodeSelector={"disk": "ssd"}))
    after = {Ref.of(o): o for o in objects_for(service(), manifest(), IMAGE)}
    ref = Ref("Deployment", "chat")
    assert not is_applied(after[ref], before[ref])


@pytest.mark.parametrize(
    ("wanted", "live", "fields"),
    [
        ({"resourceClaims": [{"name": "gpu"}]}, {}, ("spec.template.spec.resourceClaims",)),
        ({"resourceClaims": [{"name": "gpu"}]}, {"resourceClaims": [{"name": "other"}]}, ()),
        ({"affinity": {}, "enableServiceLinks": False}, {}, ()),
        ({}, {"dnsPolicy": "ClusterFirst"}, ()),
    ],
    ids=["left out", "changed by somebody", "nothing is asked for", "the API server's own"],
)
def test_what_an_api_server_dropped(wanted: Any, live: Any, fields: tuple[str, ...]) -> None:
    def deployment(pod: Any) -> dict[str, Any]:
        return {"spec": {"template": {"spec": pod}}}

    assert dropped(deployment(wanted), deployment(live)) == fields
    assert dropped({"data": {}}, deployment(live)) == dropped({"spec": {"replicas": 3}}, {}) == ()
