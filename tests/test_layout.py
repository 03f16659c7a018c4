"""The layout's traps: folders named like Python's own modules, and copies that must stay equal."""

import ast
import operator
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def test_folders_that_hold_packages_are_no_packages() -> None:
    """An operator/__init__.py would replace Python's own `operator` module."""
    for name in ("operator", "engine", "kernels"):
        assert not (ROOT / name / "__init__.py").exists()
    assert not list((ROOT / "tests").rglob("__init__.py"))
    assert not list((ROOT / "e2e").rglob("__init__.py"))


def test_operator_is_pythons_own() -> None:
    assert Path(operator.__file__).is_relative_to(sysconfig.get_path("stdlib"))


@pytest.mark.parametrize("name", ["inferenceservices.yaml", "modelmanifests.yaml"])
def test_the_charts_crds_are_those_of_crds(name: str) -> None:
    assert (ROOT / "charts/pinrail/crds" / name).read_text() == (ROOT / "crds" / name).read_text()


def test_every_module_says_what_it_is_for() -> None:
    silent = [
        str(path.relative_to(ROOT))
        for folder in ("engine", "kernels", "operator", "e2e", "tests", "demo")
        for path in sorted((ROOT / folder).rglob("*.py"))
        if not ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert silent == []


def test_no_lock_file_names_a_host() -> None:
    for path in (ROOT / "requirements").glob("*.txt"):
        assert "://" not in path.read_text()
