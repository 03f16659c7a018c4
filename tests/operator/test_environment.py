"""Where a variable's value comes from, and which container gets it."""

from typing import Any

import pytest
from operator_builders import DIGEST, IMAGE, manifest, service, target

from pinrail_operator import environment, pods
from pinrail_operator.environment import PROXIES
from pinrail_operator.errors import SpecError

SECRET = {"secretKeyRef": {"name": "tracing", "key": "headers"}}
MAYBE = {"configMapKeyRef": {"name": "proxy", "key": "url", "optional": True}}
ENV = [
    {"name": "PLAIN", "value": "1"},
    {"name": "OTEL_HEADERS", "valueFrom": SECRET},
    {"name": "HTTPS_PROXY", "valueFrom": MAYBE},
]
WEB = "https://models.test/tiny/"


def containers(**engine: Any) -> dict[str, dict[str, Any]]:
    """The variables of each container, by name."""
    spec = pods.template(service(engine={"env": ENV, **engine}).verified_by(IMAGE), manifest(WEB), IMAGE)["spec"]
    every = (*spec["initContainers"], *spec["containers"])
    return {c["name"]: {v["name"]: v.get("valueFrom", v.get("value")) for v in c["env"]} for c in every}


def test_the_engine_gets_every_variable_as_the_service_names_it() -> None:
    expected = {"HOME": "/tmp", "PLAIN": "1", "OTEL_HEADERS": SECRET, "HTTPS_PROXY": MAYBE}
    assert containers()["engine"] == expected


def test_what_fetches_gets_values_and_proxies_but_no_secret_of_the_engine() -> None:
    assert containers()["fetch"] == {"HOME": "/tmp", "PLAIN": "1", "HTTPS_PROXY": MAYBE}


def test_what_verifies_gets_none_of_them() -> None:
    found = containers(type="vllm", image=IMAGE)
    assert found["verify"] == {"HOME": "/tmp"}
    assert found["engine"]["OTEL_HEADERS"] == SECRET


@pytest.mark.parametrize(
    ("name", "is_one"),
    [("HTTPS_PROXY", True), ("no_proxy", True), ("all_proxy", True), ("Http_Proxy", False), ("MY_HTTP_PROXY", False)],
)
def test_what_counts_as_a_proxy(name: str, is_one: bool) -> None:
    assert (PROXIES.fullmatch(name) is not None) is is_one


def test_a_revision_names_values_as_it_always_did() -> None:
    """The revision of a service with two variables, as it was before any could come from a Secret."""
    env = [{"name": "OMP_NUM_THREADS", "value": "2"}, {"name": "A", "value": ""}]
    assert target(service(engine={"env": env})) == "a68275129c"


def test_a_revision_names_where_a_value_is() -> None:
    def of(source: Any) -> str:
        return target(service(engine={"env": [{"name": "A", "valueFrom": source}]}))

    key = {"name": "tracing", "key": "headers"}
    sources: list[Any] = [SECRET, {"configMapKeyRef": key}, {"secretKeyRef": {**key, "key": "other"}}]
    sources += [{"secretKeyRef": {**key, "name": "other"}}, {"secretKeyRef": {**key, "optional": True}}]
    assert len({of(source) for source in sources}) == len(sources)
    assert of({"secretKeyRef": {**key, "optional": False}}) == of(SECRET)


def test_on_this_machine_the_shell_stands_for_secrets_and_one_that_it_lacks_is_named() -> None:
    variables = service(engine={"env": ENV}).engine.env
    shell = {"OTEL_HEADERS": "x", "PLAIN": "of the shell", "OTHER": "y"}
    assert environment.on_this_machine(variables, shell) == {"PLAIN": "1", "OTEL_HEADERS": "x"}
    with pytest.raises(SpecError) as caught:
        environment.on_this_machine(variables, {})
    assert str(caught.value) == (
        "spec.engine.env[1].valueFrom: got a key of 'tracing', which local mode cannot read, want OTEL_HEADERS in the "
        "shell's environment: `export OTEL_HEADERS=…`"
    )


def test_devices_are_the_engines_alone() -> None:
    claims = [{"name": "gpu", "resourceClaimTemplateName": "one-gpu"}]
    resources = {"claims": [{"name": "gpu", "request": "half"}], "limits": {"memory": "2Gi"}}
    model = {"name": "tiny", "manifestRef": {"name": "tiny-v1"}, "digest": DIGEST}
    engine = {"type": "vllm", "image": IMAGE}
    asked = service(model=model, engine=engine, resourceClaims=claims, resources=resources).verified_by(IMAGE)
    spec = pods.template(asked, manifest(WEB), IMAGE)["spec"]
    assert spec["resourceClaims"] == claims
    assert [c["resources"] for c in spec["initContainers"]] == [{"limits": {"memory": "2Gi"}}] * 2
    assert spec["containers"][0]["resources"] == resources
