"""The lock files, without a network: all is pinned by hash, from nowhere else, needed by what asks for it, and free.

Whether a pinned version has a known fault changes from day to day, so that is asked by `make audit` alone.
"""

import importlib.metadata
import re
import tomllib
from collections.abc import Iterable
from pathlib import Path

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
LOCKS = sorted((ROOT / "requirements").glob("*.txt"))
IMAGES = {"engine-cpu": ["cpu"], "engine-gpu": ["gpu"], "operator": ["operator"]}  # lock -> extras that it is made from
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]

PIN = re.compile(r"[a-z0-9][a-z0-9._-]*==[A-Za-z0-9.!+]+( ; [^\\#]+)?((\s*\\\n)?\s+--hash=sha256:[0-9a-f]{64})+")
FREE = re.compile(
    r"MIT( License)?|(3-Clause )?BSD( License)?|BSD-[23]-Clause|0BSD|Apache-2\.0( WITH LLVM-exception)?|ISC|Zlib"
    r"|BSL-1\.0|Apache Software License|PSF-2\.0|Python Software Foundation License|CC0-1\.0|MPL-2\.0|The Unlicense.*"
    r"|Mozilla Public License 2\.0 \(MPL 2\.0\)"
)
NVIDIAS = re.compile(r"(nvidia|cuda)-.*")  # CUDA's libraries are under NVIDIA's own licence


def faults(text: str) -> list[str]:
    """The lines of a lock that are no pin of one version by its hashes."""
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    joined = re.sub(r"\s*\\\n\s*", " ", "\n".join(lines))
    return [line for line in joined.splitlines() if not PIN.fullmatch(line)]


def pinned(lock: str) -> dict[str, str]:
    """Versions by name."""
    text = (ROOT / "requirements" / f"{lock}.txt").read_text()
    return dict(re.findall(r"^([a-z0-9][a-z0-9._-]*)==([^\s;]+)", text, re.MULTILINE))


def reached(extras: Iterable[str]) -> set[str]:
    """What the extras of pyproject.toml ask for, and what that asks for in turn, as it is installed here."""
    waiting = [Requirement(line) for extra in extras for line in EXTRAS[extra]]
    seen: set[tuple[str, str]] = set()
    while waiting:
        one = waiting.pop()
        name = canonicalize_name(one.name)
        asked = {(name, extra) for extra in ("", *one.extras)} - seen
        seen |= asked
        if name == "pinrail":
            waiting += [Requirement(line) for _, extra in asked if extra for line in EXTRAS[extra]]
            continue
        wanted = [Requirement(line) for line in importlib.metadata.requires(name) or [] if asked]
        waiting += [r for r in wanted for _, extra in asked if r.marker is None or r.marker.evaluate({"extra": extra})]
    return {name for name, _ in seen} - {"pinrail"}


def licences(name: str) -> list[str]:
    """Each that a package is under, or the one of several that it may be taken under."""
    metadata = importlib.metadata.metadata(name)
    kinds = [line.split(" :: ")[-1] for line in metadata.get_all("Classifier") or [] if line.startswith("License")]
    said = metadata.get("License-Expression") or " AND ".join(kinds) or metadata.get("License") or "none"
    return re.split(r" AND ", said.replace("(", "").replace(")", "") if " AND (" in said else said)


def is_free(licence: str) -> bool:
    return any(FREE.fullmatch(choice) for choice in licence.split(" OR "))


@pytest.mark.parametrize("lock", LOCKS, ids=lambda f: f.stem)
def test_every_requirement_is_one_version_by_its_hashes_and_from_the_index_in_use(lock: Path) -> None:
    assert faults(lock.read_text()) == []


@pytest.mark.parametrize(
    "line",
    [
        "jinja2==3.1.6",
        "jinja2>=3.1.6 --hash=sha256:" + "0" * 64,
        "jinja2==3.1.6 --hash=md5:" + "0" * 32,
        "jinja2 @ https://host.test/jinja2.whl --hash=sha256:" + "0" * 64,
        "--index-url https://host.test/simple",
        "--extra-index-url https://host.test/simple",
        "-e .",
        "git+https://host.test/x.git",
    ],
)
def test_what_is_no_pin(line: str) -> None:
    good = "idna==3.20 \\\n    --hash=sha256:" + "0" * 64 + " \\\n    --hash=sha256:" + "1" * 64
    assert faults(f"# a comment\n{good}\n") == []
    assert faults(f"{good}\n{line}\n") == [line]


@pytest.mark.parametrize("lock", IMAGES)
def test_an_image_holds_the_versions_that_are_tested(lock: str) -> None:
    tested = pinned("dev")
    other = {name: version for name, version in pinned(lock).items() if tested.get(name) != version}
    assert other == {}


@pytest.mark.parametrize(("lock", "extras"), IMAGES.items(), ids=IMAGES)
def test_an_image_holds_what_its_extra_needs_and_nothing_else(lock: str, extras: list[str]) -> None:
    assert default_environment()["sys_platform"] == "linux", "the locks are of linux"
    assert set(pinned(lock)) == reached(extras)


@pytest.mark.parametrize("lock", IMAGES)
def test_everything_in_an_image_but_cuda_is_under_a_free_licence(lock: str) -> None:
    names = [name for name in pinned(lock) if not (lock == "engine-gpu" and NVIDIAS.fullmatch(name))]
    closed = {name: told for name in names if not all(map(is_free, told := licences(name)))}
    assert closed == {}


@pytest.mark.parametrize(
    ("licence", "free"),
    [("MIT", True), ("Apache-2.0 OR GPL-3.0-only", True), ("GPL-3.0-only", False), ("MITX", False), ("none", False)],
)
def test_what_is_free(licence: str, free: bool) -> None:
    assert is_free(licence) is free
