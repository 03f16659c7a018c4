"""The chart's ValidatingAdmissionPolicies in a real API server: what is bad is denied, and what is good is taken."""

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from apiserver_documents import pin, service
from chart_render import DIGEST, objects, only, rendered

pytestmark = pytest.mark.apiserver

GOOD = f"registry.test/pinrail/engine@{DIGEST}"
ELSEWHERE = f"registry.test/pinrails/engine@{DIGEST}"
TAGGED = "registry.test/pinrail/engine:1.0"
CONTROLLER = "--as=system:serviceaccount:kube-system:replicaset-controller"
WARN = {"verification": {"mode": "Warn"}}
LABEL = "pinrail.dev/service"


def served_by(image: str | None, **spec: Any) -> dict[str, Any]:
    return service(**({"engine": {"image": image}} if image else {}), **spec)


def pod(name: str = "chat-1", **labels: str) -> dict[str, Any]:
    container = {"name": "engine", "image": GOOD}
    spec = {"containers": [container], "initContainers": [{"name": "fetch", "image": GOOD}]}
    metadata = {"name": name, "labels": labels}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


OURS = {LABEL: "chat"}


def apply_as_controller(kube: Any, document: dict[str, Any]) -> None:
    kube("create", CONTROLLER, "-f", "-", stdin=json.dumps(document))


@pytest.fixture
def policies(kube: Any, helm: str) -> Iterator[Any]:
    """Installs them for the test's namespace, by values; what stood before is not looked at again."""
    installed: list[str] = []

    def install(**values: Any) -> None:
        whole = {"watchNamespaces": [kube.namespace], "policies": {"enabled": True, **values}}
        text = yaml.safe_dump_all(
            o for o in objects(rendered(helm, kube.namespace, whole)) if o["kind"].startswith("ValidatingAdmission")
        )
        installed.append(text)
        kube("apply", "-f", "-", stdin=text)
        deadline = time.monotonic() + 30
        for probe in (served_by(TAGGED, **WARN) | {"metadata": {"name": "probe"}}, pod("probe", **OURS)):
            while kube.run("create", "--dry-run=server", "-f", "-", stdin=json.dumps(probe)).returncode == 0:
                assert time.monotonic() < deadline, "the policies did not come into force within 30 s"
                time.sleep(0.2)

    yield install
    for text in installed:
        kube("delete", "-f", "-", stdin=text)


def test_a_service_names_its_engine_by_digest_and_from_an_allowed_registry(kube: Any, policies: Any) -> None:
    policies(allowedRegistries=["registry.test/pinrail", "mirror.test"])
    kube.apply(pin(), served_by(GOOD))
    for image, wanted in (
        (TAGGED, f"spec.engine.image: got {TAGGED}, want a reference that ends in @sha256:<64 hex digits>"),
        (ELSEWHERE, f"spec.engine.image: got {ELSEWHERE}, want one of registry.test/pinrail, mirror.test"),
        (None, "spec.engine.image: got none, want a reference that ends in @sha256:<64 hex digits>"),
    ):
        for name in ("chat", "other"):  # changed, and created
            assert wanted in kube.refusal(served_by(image, **WARN) | {"metadata": {"name": name}})
    kube.apply(served_by(f"mirror.test/x@{DIGEST}"))


def test_a_service_without_an_image_gets_the_operators_which_is_pinned(kube: Any, helm: str) -> None:
    """The policy knows the default that the same chart gives to the operator."""
    values = {"policies": {"enabled": True}, "engine": {"image": GOOD}}
    policy = only(rendered(helm, kube.namespace, values), "ValidatingAdmissionPolicy")[0]
    assert f"'{GOOD}'" in next(v["expression"] for v in policy["spec"]["variables"] if v["name"] == "image")


def test_what_stood_before_the_policy_can_still_be_scaled_labelled_and_deleted(kube: Any, policies: Any) -> None:
    kube.apply(pin(), served_by(TAGGED, **WARN))
    policies()
    kube("label", "infs", "chat", "team=a")
    kube("scale", "infs/chat", "--replicas=3")
    kube.patch_status("infs", "chat", {"replicas": 1})
    assert "spec.engine.image" in kube.refusal(served_by(TAGGED + "1", **WARN))
    kube("delete", "infs", "chat")


CHANGES = {
    "an image": (("set", "image", "pod/chat-1", "engine=evil.test/x"), "may not change an image"),
    "an init container's image": (("set", "image", "pod/chat-1", "fetch=evil.test/x"), "may not change an image"),
    "the label": (("label", "pod", "chat-1", f"{LABEL}=other", "--overwrite"), "may not change that label"),
    "no label any more": (("label", "pod", "chat-1", f"{LABEL}-"), "may not change that label"),
    "that label on another pod": (("label", "pod", "stranger", f"{LABEL}=chat"), "may not change that label"),
    "a container to look around with": (
        ("patch", "pod", "chat-1", "--subresource=ephemeralcontainers", "--type=strategic", "-p",
         '{"spec":{"ephemeralContainers":[{"name":"look","image":"busybox"}]}}'),
        "may not add an ephemeral container",
    ),
}  # fmt: skip


def test_pods_of_engines_are_their_controllers_to_make_and_change(kube: Any, policies: Any) -> None:
    kube.apply(pod("stranger"))
    policies()
    apply_as_controller(kube, pod(**OURS))
    for what, (words, wanted) in CHANGES.items():
        done = kube.run(*words)
        assert done.returncode != 0, what
        assert wanted in done.stderr, what
    assert "may not create one" in kube.refusal(pod("chat-2", **OURS))
    kube("annotate", "pod", "chat-1", "controller.kubernetes.io/pod-deletion-cost=5")
    kube.patch_status("pod", "chat-1", {"phase": "Running"})
    kube("set", "image", "pod/stranger", "engine=elsewhere.test/x")
    kube("delete", "pod", "chat-1", "--grace-period=0", "--force")


def test_the_operator_may_take_a_wrong_pod_out_of_service_all_the_same(kube: Any, policies: Any) -> None:
    policies()
    apply_as_controller(kube, pod("chat-a", **OURS))
    kube("create", "rolebinding", "all", "--clusterrole=cluster-admin", f"--serviceaccount={kube.namespace}:p-operator",
         f"--serviceaccount={kube.namespace}:other")  # fmt: skip
    words = ("label", "pod", "chat-a", f"{LABEL}=chat.quarantine", "--overwrite")
    other, ours = (f"--as=system:serviceaccount:{kube.namespace}:{name}" for name in ("other", "p-operator"))
    assert "may not change that label" in kube.run(*words, other).stderr
    kube(*words, ours)
    assert kube.get("pod", "chat-a")["metadata"]["labels"] == {LABEL: "chat.quarantine"}


def test_policies_fail_closed_and_deny(helm: str) -> None:
    text = rendered(helm, "sys", {"policies": {"enabled": True}})
    found = only(text, "ValidatingAdmissionPolicy")
    assert [p["spec"]["failurePolicy"] for p in found] == ["Fail", "Fail"]
    bindings = only(text, "ValidatingAdmissionPolicyBinding")
    assert [(b["spec"]["policyName"], b["spec"]["validationActions"]) for b in bindings] == [
        (p["metadata"]["name"], ["Deny"]) for p in found
    ]


def test_policies_reach_no_namespace_that_is_not_watched(kube: Any, policies: Any, helm: str) -> None:
    policies()
    elsewhere = f"{kube.namespace}-else"
    kube("create", "namespace", elsewhere)
    done = kube.run("create", "--dry-run=server", "-n", elsewhere, "-f", "-", stdin=json.dumps(pod(**OURS)))
    assert done.returncode == 0, done.stderr
