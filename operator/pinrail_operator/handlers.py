"""Every Kopf entry point, and nothing else: the operator's table of contents.

Kopf only watches: each event names a service whose state may have changed. Timers and daemons are not used, because
one failed status patch ends them for good; nor are change handlers, which put annotations on users' objects.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import kopf

from pinrail_contract.pins import KIND as MANIFEST_KIND

from . import names
from .queue import KeyQueue
from .types import KIND as SERVICE_KIND
from .types import ServiceKey

registry = kopf.OperatorRegistry()

CHILDREN = (
    ("", "v1", "pods"),
    ("", "v1", "services"),
    ("apps", "v1", "deployments"),
    ("networking.k8s.io", "v1", "networkpolicies"),
    ("policy", "v1", "poddisruptionbudgets"),
)
"""Group, version and name of what a service consists of; watched by our label, or every pod of a cluster would come."""

_LIVELY = ("pods", "deployments")
"""Read with each look at a service, whatever changed."""

_GROUP = "pinrail.dev/v1alpha1"


@dataclass(frozen=True, slots=True)
class Watch:
    """What handlers get from Kopf as `memo`."""

    queue: KeyQueue[ServiceKey]
    touch: Callable[[ServiceKey], None]
    """Called for changes that no controller makes, before their key is added."""


@kopf.on.login(registry=registry)
async def log_in(**arguments: Any) -> kopf.ConnectionInfo | None:
    """As the official client does: in a pod by its service account, elsewhere by KUBECONFIG."""
    return kopf.login_via_client(**arguments)


@kopf.index(_GROUP, SERVICE_KIND, registry=registry)
async def services_by_manifest(body: kopf.Body, **_: Any) -> dict[tuple[str, str], str]:
    """(namespace, name of a ModelManifest) -> names of the services that pin it."""
    manifest = body.get("spec", {}).get("model", {}).get("manifestRef", {}).get("name", "")
    return {(_namespace(body), manifest): body["metadata"]["name"]}


@kopf.on.event(_GROUP, SERVICE_KIND, registry=registry)
async def service_changed(body: kopf.Body, memo: Watch, **_: Any) -> None:
    memo.queue.add(ServiceKey(_namespace(body), body["metadata"]["name"]))


@kopf.on.event(_GROUP, MANIFEST_KIND, registry=registry)
async def manifest_changed(body: kopf.Body, memo: Watch, **indices: Any) -> None:
    for service in indices["services_by_manifest"].get((_namespace(body), body["metadata"]["name"]), ()):
        memo.touch(ServiceKey(_namespace(body), service))
        memo.queue.add(ServiceKey(_namespace(body), service))


async def child_changed(body: kopf.Body, memo: Watch, resource: kopf.Resource, **_: Any) -> None:
    """What belongs to a service says so in its label."""
    key = ServiceKey(_namespace(body), names.service_of(body["metadata"]["labels"][names.SERVICE]))
    if resource.plural not in _LIVELY:
        memo.touch(key)
    memo.queue.add(key)


for _child in CHILDREN:
    kopf.on.event(*_child, labels={names.SERVICE: kopf.PRESENT}, registry=registry)(child_changed)


def _namespace(body: kopf.Body) -> str:
    return str(body["metadata"]["namespace"])
