"""What the chart's service account may do, as the API server answers, equals a golden file in either mode.

PINRAIL_RENEW_GOLDEN=1 .venv/bin/python -m pytest -m apiserver tests/apiserver/test_chart_rights.py writes them again.
"""

import re
from dataclasses import replace
from typing import Any

import pytest
import yaml
from chart_render import check_golden, objects, rendered

pytestmark = pytest.mark.apiserver

RBAC = {"ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"}


def rights(kube: Any, account: str, namespace: str) -> list[str]:
    """Lines of `kubectl auth can-i --list`, without the width of columns."""
    user = f"system:serviceaccount:{kube.namespace}:{account}"
    groups = [f"system:serviceaccounts:{kube.namespace}", "system:serviceaccounts", "system:authenticated"]
    words = ["auth", "can-i", "--list", f"--as={user}", *(f"--as-group={g}" for g in groups), "-n", namespace]
    return [re.sub(r"\s{2,}", "  ", line.strip()) for line in kube(*words).splitlines()[1:]]


def place(kube: Any, o: dict[str, Any]) -> Any:
    """kubectl in the object's own namespace."""
    return replace(kube, namespace=o["metadata"].get("namespace", kube.namespace))


@pytest.mark.parametrize("mode", ["cluster", "namespaced"])
def test_the_operator_may_do_what_the_golden_file_says(kube: Any, helm: str, mode: str) -> None:
    """In a namespace that it watches, in its own, and in any other; beyond what everybody may do."""
    watched, other = f"{kube.namespace}-watched", f"{kube.namespace}-other"
    for namespace in (watched, other):
        kube("create", "namespace", namespace)
    values = {"watchNamespaces": [watched]} if mode == "namespaced" else {}
    made = [o for o in objects(rendered(helm, kube.namespace, values)) if o["kind"] in RBAC]
    for o in made:
        place(kube, o)("apply", "-f", "-", stdin=yaml.safe_dump(o))
    try:
        everybody = set(rights(kube, "nobody", other))
        found = {
            where: sorted(set(rights(kube, "p-operator", namespace)) - everybody)
            for where, namespace in (("watched", watched), ("own", kube.namespace), ("other", other))
        }
    finally:
        for o in made:
            place(kube, o)("delete", "-f", "-", stdin=yaml.safe_dump(o))
    check_golden(f"rights-{mode}.yaml", yaml.safe_dump(found, width=120))


def test_no_right_is_given_by_a_wildcard_or_over_secrets(helm: str) -> None:
    for o in objects(rendered(helm, "sys", {})):
        for rule in o.get("rules", []):
            assert "*" not in rule["verbs"] + rule["resources"] + rule["apiGroups"]
            assert not {"secrets", "pods/exec", "serviceaccounts/token"} & set(rule["resources"])
