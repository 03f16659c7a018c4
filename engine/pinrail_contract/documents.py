"""Resource documents in files: JSON here, YAML through whichever reader is installed.

The contract imports the standard library alone, so the YAML reader is an entry point of the group
`pinrail.readers`; images that are only ever handed JSON do without.
"""

from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from .canonical import loads_strict
from .errors import ManifestError
from .pins import API_VERSION, KIND, ModelManifest


def read(path: Path) -> list[dict[str, Any]]:
    """All documents in a file; raises ManifestError where one is not an object, OSError where it cannot be read."""
    data = path.read_bytes()
    try:
        text = data.decode()
    except UnicodeDecodeError as e:
        raise ManifestError(str(path), "is not UTF-8 text") from e
    found = [loads_strict(text, str(path))] if text.lstrip().startswith("{") else _read_yaml(text, path)
    documents = [d for d in found if d is not None]
    for document in documents:
        if not isinstance(document, dict):
            raise ManifestError(str(path), f"holds a {type(document).__name__}, want resources")
    return documents


def read_manifest(path: Path) -> ModelManifest:
    """The one ModelManifest in a file; raises ManifestError where there is none, more than one, or a wrong one."""
    found = [d for d in read(path) if d.get("kind") == KIND]
    if len(found) != 1:
        raise ManifestError(str(path), f"holds {len(found)} resources of kind {KIND}, want 1")
    return manifest_of(found[0], str(path))


def manifest_of(document: dict[str, Any], where: str) -> ModelManifest:
    """Parse a whole ModelManifest resource; raises ManifestError with the field."""
    if document.get("apiVersion") != API_VERSION:
        raise ManifestError(f"{where}: apiVersion", f"got {document.get('apiVersion')!r}, want {API_VERSION}")
    return ModelManifest.from_spec(document.get("spec"), "spec")


def _read_yaml(text: str, path: Path) -> list[Any]:
    readers = [e for e in entry_points(group="pinrail.readers") if e.name == "yaml"]
    try:
        load_all = readers[0].load()
    except (IndexError, ModuleNotFoundError) as e:
        raise ManifestError(str(path), "is not JSON, and no YAML reader is installed: pip install pyyaml") from e
    try:
        return list(load_all(text))
    except Exception as e:  # the reader's own error types are not ours to know
        raise ManifestError(str(path), f"is neither JSON nor YAML: {' '.join(str(e).split())}") from e
