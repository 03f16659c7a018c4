"""A folder against its manifest: every difference is named, all in one run, on the bytes behind the descriptor."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from pinrail_contract.compare import Entry, Fault, compare
from pinrail_contract.errors import ModelError
from pinrail_contract.folder import mismatches, sha256_hex, verified
from pinrail_contract.pins import ModelManifest


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def _link(path: Path) -> None:
    path.rename(path.parent.parent / "elsewhere")
    path.symlink_to(path.parent.parent / "elsewhere")


def _fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize(
    ("damage", "fault"),
    [
        (Path.unlink, Fault.MISSING),
        (_truncate, Fault.TRUNCATED),
        (lambda p: p.write_bytes(p.read_bytes() + b"x"), Fault.LONGER),
        (_flip, Fault.CHANGED),
        (_link, Fault.SYMLINK),
        (_fifo, Fault.SPECIAL),
        (_folder, Fault.SPECIAL),
    ],
)
def test_each_kind_of_damage_is_named(
    folder: Path, manifest: ModelManifest, damage: Callable[[Path], object], fault: Fault
) -> None:
    damage(folder / "model.safetensors")
    assert [(m.path, m.fault) for m in mismatches(folder, manifest)] == [("model.safetensors", fault)]


def test_an_untouched_folder_has_no_mismatch(folder: Path, manifest: ModelManifest) -> None:
    assert mismatches(folder, manifest) == ()


def test_everything_wrong_is_named_in_one_run(folder: Path, manifest: ModelManifest) -> None:
    (folder / "modeling_evil.py").write_text("")
    (folder / "tokenizer.json").unlink()
    _flip(folder / "config.json")
    found = {m.path: m.fault for m in mismatches(folder, manifest)}
    assert found == {
        "modeling_evil.py": Fault.EXTRA,
        "tokenizer.json": Fault.MISSING,
        "config.json": Fault.CHANGED,
    }


@pytest.mark.parametrize("name", ["modeling_x.py", ".git/config", "sub/model.bin", ".hidden", "__init__.py"])
def test_what_no_manifest_names_is_told_wherever_it_lies(folder: Path, manifest: ModelManifest, name: str) -> None:
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text("import os")
    (found,) = mismatches(folder, manifest)
    assert (found.fault, found.path.rstrip("/")) in ((Fault.EXTRA, name), (Fault.EXTRA, name.partition("/")[0]))


def test_a_file_swapped_after_the_check_is_not_what_the_descriptor_reads(folder: Path, manifest: ModelManifest) -> None:
    with verified(folder, manifest) as hashed:
        assert hashed.mismatches == ()
        (folder / "new").write_bytes(b"other bytes")
        (folder / "new").rename(folder / "model.safetensors")
        pin = next(f for f in manifest.files if f.path == "model.safetensors")
        assert sha256_hex(hashed.handles["model.safetensors"]) == pin.sha256


def test_descriptors_are_closed_at_the_end(folder: Path, manifest: ModelManifest) -> None:
    with verified(folder, manifest) as hashed:
        handle = hashed.handles["config.json"]
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(handle)


def test_progress_counts_every_byte_once(folder: Path, manifest: ModelManifest) -> None:
    seen: list[int] = []
    mismatches(folder, manifest, seen.append)
    assert sum(seen) == manifest.total_size


def test_a_folder_that_is_not_there_is_one_clear_error(tmp_path: Path, manifest: ModelManifest) -> None:
    with pytest.raises(ModelError, match="nowhere: No such file or directory, want a folder of model files"):
        mismatches(tmp_path / "nowhere", manifest)


def test_an_empty_folder_lacks_every_file(manifest: ModelManifest) -> None:
    assert {m.fault for m in compare(manifest, {})} == {Fault.MISSING}


def test_a_file_that_cannot_be_read_says_why(manifest: ModelManifest) -> None:
    entries = {"config.json": Entry(fault=Fault.UNREADABLE, reason="Permission denied")}
    (found,) = [m for m in compare(manifest, entries) if m.path == "config.json"]
    assert str(found) == "config.json: unreadable: Permission denied, want a regular file that can be read"
