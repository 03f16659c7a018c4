"""A pod is held to what its own manifest pins of engine and numerics, wherever that manifest is found."""

import copy
import json
from dataclasses import replace
from typing import Any

import pytest
from operator_builders import MANIFEST_SPEC, live_objects, manifest, observed, pod, service

from pinrail_contract.pins import ModelManifest
from pinrail_contract.runtime import UNSAID, Runtime
from pinrail_operator.observed import Observed, Ref
from pinrail_operator.quarantine import BARRED, MOST, Verdict, judge
from pinrail_operator.runtimes import agreed, pins_of, unreported

PINNED = Runtime(engine_version="0.1.0", weight_dtype="bfloat16")
RIGHT = replace(PINNED, instructions="avx2")
OTHER_VERSION = replace(RIGHT, engine_version="0.2.0")
OTHER_NUMBERS = replace(RIGHT, weight_dtype="int8")


def pinning(pinned: Runtime) -> ModelManifest:
    return ModelManifest.from_spec({**copy.deepcopy(MANIFEST_SPEC), **pinned.to_spec()})


MANIFEST = pinning(PINNED)
MODEL = {"name": "tiny", "manifestRef": {"name": "tiny-v1"}, "digest": MANIFEST.digest}
A, B = pod("chat-a", pin=MANIFEST.digest), pod("chat-b", pin=MANIFEST.digest)
OLD = pod("old", revision="old")  # of a manifest that pins nothing
RIGHT_DIGESTS = {"chat-a": MANIFEST.digest, "chat-b": MANIFEST.digest, "old": OLD.pin}


def seen(*pods: Any, apart: int = 0, **changes: Any) -> Observed:
    gone = tuple(pod(f"gone-{i}", is_quarantined=True) for i in range(apart))
    there: dict[str, Any] = {"manifest": MANIFEST, "quarantined": gone, **changes}
    return observed(there.pop("live", live_objects(service(), pinned=MANIFEST)), pods or (A, B), **there)


def verdict(there: Observed, runtimes: dict[str, Runtime], **spec: Any) -> Verdict:
    return judge(service(model=MODEL, **spec), there, RIGHT_DIGESTS, A.revision, runtimes)


@pytest.mark.parametrize(
    ("there", "runtimes", "released", "barred"),
    [
        pytest.param(seen(), {"chat-a": RIGHT, "chat-b": RIGHT}, [], [], id="as pinned"),
        pytest.param(seen(), {"chat-b": OTHER_VERSION}, ["chat-b"], [], id="another version"),
        pytest.param(seen(), {"chat-b": OTHER_NUMBERS}, ["chat-b"], [], id="other numerics"),
        pytest.param(seen(), {"chat-b": replace(RIGHT, kv_cache_dtype="float32")}, [], [], id="what is not pinned"),
        pytest.param(seen(), {"chat-b": UNSAID}, [], [], id="an engine that reports none of it"),
        pytest.param(seen(), {}, [], [], id="one that has not answered"),
        pytest.param(seen(manifest=manifest()), {"chat-b": OTHER_VERSION}, ["chat-b"], [],
                     id="the manifest is another by now: the pod's own is in its ConfigMap"),
        pytest.param(seen(manifest=None), {"chat-b": OTHER_VERSION}, ["chat-b"], [],
                     id="the manifest is gone: the pod's own is in its ConfigMap"),
        pytest.param(seen(manifest=None, live={}), {"chat-b": OTHER_VERSION}, [], [], id="no manifest is known"),
        pytest.param(seen(OLD, A), {"old": OTHER_VERSION, "chat-a": RIGHT}, [], [],
                     id="an old pod is not held to the new manifest"),
        pytest.param(seen(apart=MOST), {"chat-b": OTHER_VERSION}, [], ["chat-b"], id="past so many"),
        pytest.param(seen(A, replace(B, mark=BARRED), apart=MOST), {"chat-a": RIGHT}, [], ["chat-b"],
                     id="a barred one whose engine is silent stays barred, though its files were verified before"),
        pytest.param(seen(A, replace(B, mark=BARRED), apart=MOST), {"chat-a": RIGHT, "chat-b": UNSAID}, [], ["chat-b"],
                     id="so does one that no longer says what it runs"),
        pytest.param(seen(A, replace(B, mark=BARRED), apart=MOST), {"chat-b": RIGHT}, [], [],
                     id="a barred one that reports its pin serves"),
        pytest.param(seen(replace(A, tolerates=True)), {"chat-a": OTHER_VERSION}, [], [],
                     id="one that was told to serve what differs"),
    ],
)  # fmt: skip
def test_what_becomes_of_a_pod_by_its_engine(
    there: Observed, runtimes: dict[str, Runtime], released: list[str], barred: list[str]
) -> None:
    found = verdict(there, runtimes)
    assert [w.pod.name for w in found.release] == released
    assert [w.pod.name for w in found.barred] == barred


def test_a_message_says_which_field_and_what_is_wanted() -> None:
    (wrong,) = verdict(seen(), {"chat-b": replace(OTHER_VERSION, weight_dtype="int8")}).release
    assert str(wrong) == (
        "pod chat-b reports another engine than its manifest pins: spec.engine.version: got 0.2.0, want 0.1.0; "
        "spec.numerics.weightDtype: got int8, want bfloat16"
    )


def test_verification_that_only_warns_takes_no_other_engine_out() -> None:
    assert verdict(seen(), {"chat-b": OTHER_VERSION}, verification={"mode": "Warn"}) == Verdict()


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"spec": 1}', json.dumps({"spec": {**MANIFEST_SPEC, "numerics": {}}})],
    ids=["empty", "a list", "no spec", "a number", "nothing pinned"],
)
def test_a_configmap_that_somebody_spoilt_is_no_manifest(text: str) -> None:
    spoilt = {Ref("ConfigMap", "chat-0"): {"kind": "ConfigMap", "data": {"manifest.json": text}}}
    assert pins_of(observed(spoilt, manifest=None), {MANIFEST.digest}) == {}


def test_nobody_can_pin_for_a_digest_that_is_not_the_manifests_own() -> None:
    document = {"spec": {**MANIFEST.to_spec(), "engine": {"version": "6.6.6"}}}
    forged = {Ref("ConfigMap", "chat-0"): {"kind": "ConfigMap", "data": {"manifest.json": json.dumps(document)}}}
    assert MANIFEST.digest not in pins_of(observed(forged, manifest=None), {MANIFEST.digest})


def test_configmaps_without_data_are_passed_over() -> None:
    live = {Ref("ConfigMap", "x"): {"kind": "ConfigMap"}, Ref("ConfigMap", "y"): {"kind": "ConfigMap", "data": None}}
    assert pins_of(observed(live, manifest=None), {MANIFEST.digest}) == {}


def test_what_is_pinned_and_not_reported_is_counted() -> None:
    runtimes = {"chat-a": Runtime(engine_version="0.1.0"), "chat-b": RIGHT, "old": UNSAID}
    assert unreported(seen(), (A, B, OLD), runtimes) == (("spec.numerics.weightDtype",), 1)
    assert unreported(seen(), (B,), runtimes) == ((), 0)
    assert unreported(seen(), (A, B), {}) == (("spec.engine.version", "spec.numerics.weightDtype"), 2)


@pytest.mark.parametrize(
    ("runtimes", "wanted"),
    [
        ({"chat-a": RIGHT, "chat-b": RIGHT}, RIGHT),
        ({"chat-a": RIGHT, "chat-b": OTHER_VERSION}, replace(RIGHT, engine_version="")),
        ({"chat-a": RIGHT, "chat-b": UNSAID}, UNSAID),
        ({"chat-a": RIGHT}, RIGHT),
        ({}, UNSAID),
    ],
    ids=["alike", "two versions", "one is silent", "one has not answered", "none has"],
)
def test_only_what_all_report_alike_is_what_runs(runtimes: dict[str, Runtime], wanted: Runtime) -> None:
    assert agreed((A, B), runtimes) == wanted
