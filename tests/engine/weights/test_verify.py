"""A folder is opened once; what differs is named; everything is read through the descriptors that were hashed."""

import logging
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from pinrail_contract.errors import ModelError
from pinrail_contract.launch import Verification
from pinrail_contract.pins import ModelManifest
from pinrail_engine.weights.verify import open_verified

MakeModel = Callable[..., tuple[Path, ModelManifest]]


def test_what_is_read_is_what_was_hashed_even_when_the_path_is_swapped(make_model: MakeModel) -> None:
    folder, manifest = make_model()
    with open_verified(folder, manifest, Verification.ENFORCE) as model:
        os.replace(folder / "tokenizer.json", folder / "old")
        (folder / "tokenizer.json").write_bytes(b"evil")
        assert model.read("tokenizer.json") == b"{}"
        assert model.verdict == "verified"
        assert model.digest == manifest.digest


def test_enforce_names_every_file_that_differs(make_model: MakeModel) -> None:
    folder, manifest = make_model()
    (folder / "model.safetensors").write_bytes(b"weightz")
    (folder / "tokenizer.json").unlink()
    (folder / "extra.py").write_bytes(b"")
    with (
        pytest.raises(ModelError) as caught,
        open_verified(folder, manifest, Verification.ENFORCE),
    ):
        pass
    message = str(caught.value)
    assert "3 files differ" in message
    assert all(name in message for name in ("model.safetensors: changed", "tokenizer.json: missing", "extra.py: extra"))


def test_warn_says_so_and_goes_on(make_model: MakeModel, caplog: pytest.LogCaptureFixture) -> None:
    folder, manifest = make_model()
    (folder / "tokenizer.json").write_bytes(b"[]")
    with caplog.at_level(logging.WARNING), open_verified(folder, manifest, Verification.WARN) as model:
        assert model.read("tokenizer.json") == b"[]"
        assert model.verdict == "mismatched"
        assert [str(m.fault) for m in model.mismatches] == ["changed"]
    assert "tokenizer.json: changed" in caplog.text


def test_a_file_that_the_manifest_does_not_name_is_never_read(make_model: MakeModel) -> None:
    folder, manifest = make_model()
    (folder / "chat_template.jinja").write_bytes(b"evil")
    with open_verified(folder, manifest, Verification.WARN) as model:
        assert model.read("chat_template.jinja") is None
        assert list(model.weights()) == ["model.safetensors"]


def rewrite(path: Path, content: bytes) -> None:
    """The same file with other bytes of the same number; again until the file system's clock has ticked."""
    before = path.stat().st_ctime_ns
    while path.stat().st_ctime_ns == before:
        path.write_bytes(content)


def test_a_file_written_to_after_it_was_hashed_is_refused(make_model: MakeModel) -> None:
    folder, manifest = make_model()
    with open_verified(folder, manifest, Verification.ENFORCE) as model:
        model.check_untouched()
        rewrite(folder / "model.safetensors", b"weightz")
        with pytest.raises(ModelError, match=r"^model\.safetensors: changed while being read, want"):
            model.check_untouched()


def test_warn_says_that_a_file_was_written_to_and_goes_on(
    make_model: MakeModel, caplog: pytest.LogCaptureFixture
) -> None:
    folder, manifest = make_model()
    with open_verified(folder, manifest, Verification.WARN) as model:
        rewrite(folder / "tokenizer.json", b"[]")
        model.check_untouched()
    assert "tokenizer.json: changed while being read" in caplog.text
