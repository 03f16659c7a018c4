"""Engine and numerics, as each pod's own manifest pins them and as the pod reports them. Pure.

A pod is held to the manifest that it was told to serve, never to a newer one: it is found by its digest, which covers
what it pins, as the ModelManifest or in the ConfigMap that pods of it mount.
"""

from collections.abc import Collection, Iterator, Mapping
from types import MappingProxyType

from pinrail_contract.canonical import loads_strict
from pinrail_contract.errors import ManifestError
from pinrail_contract.pins import ModelManifest
from pinrail_contract.runtime import UNSAID, Runtime

from . import pods
from .observed import Observed, Pod

Runtimes = Mapping[str, Runtime]  # by pod, of those that answered; UNSAID where one named none

UNHEARD: Runtimes = MappingProxyType({})


def pins_of(observed: Observed, digests: Collection[str]) -> Mapping[str, Runtime]:
    """What the manifests of these digests pin, as far as they are known."""
    current = observed.manifest
    pins = {current.digest: current.runtime} if current is not None else {}
    if pins.keys() >= set(digests):
        return pins
    return {m.digest: m.runtime for m in _mounted(observed)} | pins


def unreported(observed: Observed, ready: Collection[Pod], runtimes: Runtimes) -> tuple[tuple[str, ...], int]:
    """The fields that manifests pin and pods do not report, and how many of the pods: those are not verified."""
    pins = pins_of(observed, {p.pin for p in ready})
    silent = [pins.get(p.pin, UNSAID).unreported(runtimes.get(p.name, UNSAID)) for p in ready]
    return tuple(dict.fromkeys(field for fields in silent for field in fields)), sum(map(bool, silent))


def agreed(ready: Collection[Pod], runtimes: Runtimes) -> Runtime:
    """What all of these pods report that were heard, field by field; '' where they differ, or one does not say."""
    said = [runtimes[p.name].labels() for p in ready if p.name in runtimes]
    values = {name: {labels[name] for labels in said} for name in UNSAID.labels()}
    return Runtime(**{name: found.pop() if len(found) == 1 else "" for name, found in values.items()})


def _mounted(observed: Observed) -> Iterator[ModelManifest]:
    """Those of the service's ConfigMaps; one that somebody spoilt is passed over, since no digest can be its own."""
    for ref, body in observed.live.items():
        text = (body.get("data") or {}).get(pods.MANIFEST_FILE) if ref.kind == "ConfigMap" else None
        if text is None:
            continue
        try:
            document = loads_strict(text, ref.name)
            yield ModelManifest.from_spec(document.get("spec") if isinstance(document, dict) else document)
        except ManifestError:
            continue
