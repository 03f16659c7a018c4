"""Every pod of every valid service passes Pod Security's restricted profile, holds no token and leaks no secret."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st
from operator_builders import IMAGE, manifest, service

from pinrail_operator import manifests, pods
from pinrail_operator.errors import SpecError
from pinrail_operator.types import InferenceService

WORDS = st.from_regex(r"[a-z][a-z0-9-]{0,10}[a-z0-9]", fullmatch=True)
PROFILES = (
    "container.apparmor.security.beta.kubernetes.io/engine",
    "seccomp.security.alpha.kubernetes.io/pod",
    "container.seccomp.security.alpha.kubernetes.io/engine",
)  # annotations that took a container's confinement away before there were fields for it
KEYS = WORDS | st.just("prometheus.io/scrape") | WORDS | st.sampled_from(PROFILES)
MAPS = st.dictionaries(KEYS, WORDS | st.just("unconfined"), max_size=2)
VARIABLE = st.fixed_dictionaries({"name": st.sampled_from(["A", "OMP_NUM_THREADS"]), "value": st.text(max_size=20)})
KEY = st.fixed_dictionaries({"name": WORDS, "key": WORDS}, optional={"optional": st.booleans()})
SOURCE = st.fixed_dictionaries({"secretKeyRef": KEY}) | st.fixed_dictionaries({"configMapKeyRef": KEY})
FROM = st.fixed_dictionaries({"name": st.sampled_from(["HTTPS_PROXY", "OTEL_HEADERS"]), "valueFrom": SOURCE})
ENV = st.lists(VARIABLE | FROM, max_size=3)
FIELDS = {
    "engine": st.fixed_dictionaries({"env": ENV}, optional={"backend": st.sampled_from(["auto", "native", "torch"])}),
    "resources": st.sampled_from([{"limits": {"cpu": "1", "nvidia.com/gpu": "1"}}, {"claims": [{"name": "gpu"}]}]),
    "resourceClaims": st.just([{"name": "gpu", "resourceClaimName": "one"}]),
    "disruption": st.fixed_dictionaries({"protectStartup": st.booleans()}),
    "nodeSelector": st.dictionaries(WORDS, WORDS, max_size=3),
    "tolerations": st.lists(st.just({"operator": "Exists"}), max_size=2),
    "affinity": st.just({"nodeAffinity": {}}),
    "topologySpreadConstraints": st.lists(
        st.just({"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}), max_size=2
    ),
    "priorityClassName": WORDS,
    "runtimeClassName": WORDS,
    "imagePullSecrets": st.lists(st.fixed_dictionaries({"name": WORDS}), max_size=2),
    "podLabels": MAPS,
    "podAnnotations": MAPS,
    "drain": st.fixed_dictionaries({"timeoutSeconds": st.integers(0, 3600)}),
    "verification": st.fixed_dictionaries({"mode": st.sampled_from(["Enforce", "Warn"])}),
    "suspend": st.booleans(),
}
SPECS = st.fixed_dictionaries({}, optional=FIELDS)
SOURCES = st.sampled_from(["pvc://models/tiny/v1", "https://models.test/tiny/"])
VOLUMES = {"configMap", "emptyDir", "persistentVolumeClaim", "projected", "secret", "downwardAPI", "csi", "ephemeral"}


def violations(template: Mapping[str, Any]) -> list[str]:
    """What the restricted profile forbids of a pod; https://kubernetes.io/docs/concepts/security/pod-security-standards/"""
    spec, annotations = template["spec"], template["metadata"].get("annotations", {})
    context = spec.get("securityContext", {})
    found = [name for name in ("hostNetwork", "hostPID", "hostIPC") if spec.get(name)]
    found += [f"volume {v['name']}" for v in spec.get("volumes", []) if not v.keys() - {"name"} <= VOLUMES]
    found += [key for key in annotations if "apparmor.security." in key or "seccomp.security." in key]
    found += ["runAsNonRoot"] if context.get("runAsNonRoot") is not True else []
    found += ["runAsUser"] if context.get("runAsUser") == 0 else []
    found += ["seccompProfile"] if context.get("seccompProfile", {}).get("type") != "RuntimeDefault" else []
    for container in (*spec["containers"], *spec.get("initContainers", [])):
        found += [f"{container['name']}: {said}" for said in _of_container(container)]
    return found


def _of_container(container: Mapping[str, Any]) -> list[str]:
    context = container.get("securityContext", {})
    found = ["privileged"] if context.get("privileged") else []
    found += ["allowPrivilegeEscalation"] if context.get("allowPrivilegeEscalation") is not False else []
    found += ["capabilities"] if context.get("capabilities") != {"drop": ["ALL"]} else []
    found += ["hostPort"] if any("hostPort" in p for p in container.get("ports", [])) else []
    found += ["writable root"] if context.get("readOnlyRootFilesystem") is not True else []
    return found


def valid(spec: dict[str, Any]) -> InferenceService:
    """The service, where the operator takes it."""
    try:
        return service(**spec)
    except SpecError:
        reject()


@settings(max_examples=300)
@given(spec=SPECS, uri=SOURCES)
def test_every_pod_of_a_valid_service_is_restricted_and_holds_no_token(spec: dict[str, Any], uri: str) -> None:
    asked = valid(spec)
    template = pods.template(asked, manifest(uri), IMAGE)
    assert violations(template) == []
    assert template["spec"]["automountServiceAccountToken"] is False
    assert "serviceAccountName" not in template["spec"]
    assert not [v for v in template["spec"]["volumes"] if "secret" in v or "projected" in v]


@pytest.mark.parametrize("field", ["hostNetwork", "serviceAccountName", "securityContext", "volumes"])
def test_what_would_widen_a_pods_rights_is_no_field(field: str) -> None:
    with pytest.raises(SpecError, match=f"spec.{field}: is not a known field"):
        service(**{field: {}})


@given(spec=SPECS)
def test_every_object_stays_in_the_services_own_namespace(spec: dict[str, Any]) -> None:
    asked = valid(spec)
    made = manifests.objects_for(asked, manifest(), IMAGE)
    assert {o["metadata"]["namespace"] for o in made} == {asked.key.namespace}
    text = json.dumps([o["spec"] for o in made if "spec" in o])
    assert '"namespace":' not in text


@pytest.mark.parametrize("key", PROFILES)
def test_an_annotation_that_takes_a_profile_away_is_refused(key: str) -> None:
    with pytest.raises(SpecError, match=r"spec\.podAnnotations: got .*, want none of \*apparmor"):
        service(podAnnotations={key: "unconfined"})


def test_a_pod_that_is_less_restricted_is_seen() -> None:
    """The law above can fail: each of these is named."""
    template = pods.template(service(), manifest(), IMAGE)
    wide = {"hostNetwork": True, "securityContext": {}, "volumes": [{"name": "x", "hostPath": {"path": "/"}}]}
    container = {"name": "engine", "securityContext": {"privileged": True}, "ports": [{"hostPort": 80}]}
    found = violations({**template, "spec": {**template["spec"], **wide, "containers": [container]}})
    assert found == [
        "hostNetwork", "volume x", "runAsNonRoot", "seccompProfile", "engine: privileged",
        "engine: allowPrivilegeEscalation", "engine: capabilities", "engine: hostPort", "engine: writable root",
    ]  # fmt: skip
