"""Nothing that we ship runs code which comes with data: what ruff's rules of this kind (pyproject.toml) do not know.

A model's folder is data. Whoever writes it must not run anything here, in whatever file.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("engine", "kernels", "operator", "demo", "docs", "e2e", "images")
FILES = sorted(file for folder in FOLDERS for file in (ROOT / folder).rglob("*.py"))

SERIALIZERS = {"pickle", "_pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
TEMPLATES = {"Environment", "NativeEnvironment", "Template", "NativeTemplate"}  # jinja2's, without its sandbox
OPENED = {"trust_remote_code": True, "weights_only": False, "allow_pickle": True}  # arguments that run what is loaded


def findings(source: str) -> list[str]:
    """What a file must not hold, each with its line."""
    return [f"line {node.lineno}: {said}" for node, said in _found(ast.parse(source))]


def _found(tree: ast.Module) -> Iterator[tuple[ast.AST, str]]:
    of_jinja = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "jinja2"
        for alias in node.names
        if alias.name in TEMPLATES
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from ((node, f"imports {name}") for name in _modules(node) if name in SERIALIZERS)
        if isinstance(node, ast.Call):
            yield from ((node, said) for said in _calls(node, of_jinja))
        if isinstance(node, ast.Dict):
            named = zip(node.keys, node.values, strict=True)
            yield from ((node, said) for key, value in named if (said := _opened(_text(key), value)))


def _modules(node: ast.Import | ast.ImportFrom) -> list[str]:
    names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
    return [name.split(".")[0] for name in names]


def _calls(node: ast.Call, of_jinja: set[str]) -> Iterator[str]:
    called = ast.unparse(node.func)
    if called in of_jinja or called in {f"jinja2.{name}" for name in TEMPLATES}:
        yield f"makes jinja2's {called}, want a sandbox of jinja2.sandbox"
    if called == "torch.load" and not any(word.arg == "weights_only" for word in node.keywords):
        yield "calls torch.load without weights_only"
    if called.endswith((".from_pretrained", "hub_download", "snapshot_download")) and not _is_local(node):
        yield f"calls {called} without a revision"
    yield from (said for word in node.keywords if (said := _opened(word.arg, word.value)))


def _is_local(node: ast.Call) -> bool:
    """Or of one revision."""
    return any(word.arg in ("revision", "local_files_only") for word in node.keywords)


def _opened(name: str | None, value: ast.expr) -> str:
    if name not in OPENED or not isinstance(value, ast.Constant) or value.value is not OPENED[name]:
        return ""
    return f"{name}={value.value}"


def _text(key: ast.expr | None) -> str | None:
    return key.value if isinstance(key, ast.Constant) and isinstance(key.value, str) else None


@pytest.mark.parametrize("file", FILES, ids=lambda f: str(f.relative_to(ROOT)))
def test_no_file_runs_code_that_comes_with_data(file: Path) -> None:
    assert findings(file.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("import pickle", "line 1: imports pickle"),
        ("def f():\n    from marshal import loads", "line 2: imports marshal"),
        ("import torch\ntorch.load(f, weights_only=False)", "line 2: weights_only=False"),
        ("torch.load(f)", "line 1: calls torch.load without weights_only"),
        ("AutoModel.from_pretrained('org/name')", "line 1: calls AutoModel.from_pretrained without a revision"),
        ("AutoModel.from_pretrained(x, trust_remote_code=True)", "line 1: trust_remote_code=True"),
        ("options = {'trust_remote_code': True}", "line 1: trust_remote_code=True"),
        ("numpy.load(f, allow_pickle=True)", "line 1: allow_pickle=True"),
        ("import jinja2\njinja2.Environment()", "line 2: makes jinja2's jinja2.Environment, want a sandbox of"),
        ("from jinja2 import Template as T\nT(text)", "line 2: makes jinja2's T, want a sandbox"),
        ("from jinja2.nativetypes import NativeEnvironment\nNativeEnvironment()", "line 2: makes jinja2's Native"),
    ],
    ids=lambda value: value.splitlines()[-1],
)
def test_what_is_found(source: str, said: str) -> None:
    assert [f for f in findings(source) if f.startswith(said)], findings(source)


@pytest.mark.parametrize(
    "source",
    [
        "from jinja2 import Template\ndef f(t: Template) -> None: ...",
        "from jinja2.sandbox import ImmutableSandboxedEnvironment\nImmutableSandboxedEnvironment()",
        "load(trust_remote_code=False, weights_only=True)",
        "Environment()",
        "torch.load(f, weights_only=True)",
        "AutoConfig.from_pretrained(folder, local_files_only=True)",
    ],
)
def test_what_is_left_alone(source: str) -> None:
    assert findings(source) == []


def test_every_package_is_looked_at() -> None:
    found = {file.relative_to(ROOT).parts[:2] for file in FILES}
    packages = {("engine", "pinrail_contract"), ("engine", "pinrail_engine"), ("kernels", "pinrail_kernels")}
    assert packages | {("operator", "pinrail_operator")} <= found
