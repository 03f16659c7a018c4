"""The table in `first_blocker`'s docstring, row by row; each message names what was seen and the next step."""

import pytest
from operator_builders import DIGEST, IMAGE, live_objects, manifest, observed, service

from pinrail_operator import names
from pinrail_operator.checks import Blocked, first_blocker
from pinrail_operator.observed import Observed, Ref

OTHER = manifest(weights="9" * 64)
FOREIGN = {Ref("Deployment", "chat"): {"kind": "Deployment", "metadata": {"name": "chat"}}}
STALE = {
    Ref("Service", "chat"): {"kind": "Service", "metadata": {"name": "chat", "ownerReferences": [{"uid": "gone"}]}}
}

ROWS = [
    pytest.param(observed(manifest=None), IMAGE, Blocked.MANIFEST_MISSING,
                 ["ModelManifest tiny-v1 does not exist in namespace team", "pinrail pin"], id="missing"),
    pytest.param(observed(manifest=None, manifest_problem="spec.files: want a list"), IMAGE, Blocked.MANIFEST_INVALID,
                 ["spec.files: want a list", "create another one"], id="invalid"),
    pytest.param(observed(manifest=OTHER), IMAGE, Blocked.DIGEST_MISMATCH,
                 [f"spec.model.digest: got {DIGEST}", OTHER.digest, "set it to that"], id="digest"),
    pytest.param(observed(manifest=manifest("file:///models")), IMAGE, Blocked.SOURCE_UNSUPPORTED,
                 ["got file:///models", "want pvc://claim/path, https://base/, hf://organisation/name, oci://",
                  "pin the folder again"], id="source"),
    pytest.param(observed(), "", Blocked.IMAGE_MISSING,
                 ["spec.engine.image: got none", "PINRAIL_ENGINE_IMAGE"], id="no image"),
    pytest.param(observed(), "engine:latest", Blocked.IMAGE_NOT_PINNED,
                 ["got engine:latest", "@sha256:"], id="image by tag"),
    pytest.param(observed(live=FOREIGN), IMAGE, Blocked.NAME_TAKEN,
                 ["Deployment chat exists and belongs to something else", "rename"], id="taken"),
    pytest.param(observed(live=STALE), IMAGE, Blocked.NAME_TAKEN, ["Service chat exists"], id="an earlier service's"),
]  # fmt: skip


@pytest.mark.parametrize(("seen", "image", "reason", "words"), ROWS)
def test_first_blocker(seen: Observed, image: str, reason: Blocked, words: list[str]) -> None:
    blocker = first_blocker(service(), seen, image)
    assert blocker is not None
    assert blocker.reason is reason
    for word in words:
        assert word in blocker.message


def test_nothing_blocks_a_service_that_is_whole() -> None:
    assert first_blocker(service(), observed(), IMAGE) is None
    assert first_blocker(service(), observed(live=live_objects(service())), IMAGE) is None


def test_a_config_map_of_somebody_else_that_bears_our_label_blocks_nothing() -> None:
    theirs = {Ref("ConfigMap", "theirs"): {"kind": "ConfigMap", "metadata": {"name": "theirs"}}}
    assert first_blocker(service(), observed(live=theirs), IMAGE) is None
    ours = names.config_map(service(), manifest())
    taken = {Ref("ConfigMap", ours): {"kind": "ConfigMap", "metadata": {"name": ours}}}
    blocker = first_blocker(service(), observed(live=taken), IMAGE)
    assert blocker is not None
    assert blocker.message.startswith(f"ConfigMap {ours} exists")


def test_the_first_check_wins() -> None:
    blocker = first_blocker(service(), observed(manifest=OTHER, live=FOREIGN), "")
    assert blocker is not None
    assert blocker.reason is Blocked.DIGEST_MISMATCH


def test_a_web_source_and_a_warning_service_pass() -> None:
    assert first_blocker(service(), observed(manifest=manifest("https://models.test/x/")), IMAGE) is None
    assert first_blocker(service(verification={"mode": "Warn"}), observed(), "engine:dev") is None


def test_every_row_is_a_reason_that_a_check_gives() -> None:
    assert {row.values[2] for row in ROWS} == set(Blocked) - {
        Blocked.REFUSED,
        Blocked.INVALID_SPEC,
        Blocked.CACHE_NOT_ALLOWED,
    }
