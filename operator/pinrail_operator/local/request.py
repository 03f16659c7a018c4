"""What `pinrail up` is asked to run: the documents read, the pin checked, the model's folder found."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pinrail_contract import access, documents
from pinrail_contract.cache import cache
from pinrail_contract.errors import ManifestError
from pinrail_contract.fetch import fetch
from pinrail_contract.pins import KIND as MANIFEST_KIND
from pinrail_contract.pins import ModelManifest, Source
from pinrail_contract.progress import ProgressBar

from .. import environment
from ..engine_fields import EngineType
from ..errors import SpecError
from ..types import KIND, InferenceService


@dataclass(frozen=True, slots=True)
class LocalRun:
    """One service with its pinned manifest."""

    service: InferenceService
    manifest: ModelManifest
    document: Path  # the file that holds the manifest
    variables: Mapping[str, str] = field(repr=False)  # of each replica, beside this process's own


def read(path: Path) -> LocalRun:
    """The one InferenceService of a file and the ModelManifest that it names, whose digest must be the pinned one.

    Raises ManifestError or SpecError that names the field, what was seen and what is wanted.
    """
    found = documents.read(path)
    services = [d for d in found if d.get("kind") == KIND]
    if len(services) != 1:
        raise ManifestError(str(path), f"holds {len(services)} resources of kind {KIND}, want 1")
    service = InferenceService.from_body(services[0])
    if service.engine.type is not EngineType.PINRAIL:
        seen = f"got {str(service.engine.type)!r}, want pinrail in local mode"
        raise SpecError("spec.engine.type", f"{seen}: another engine comes as an image")
    if service.api_key_secret:
        wanted = "want none in local mode, which has no Secrets and listens on 127.0.0.1 alone"
        raise SpecError("spec.security.apiKeySecretRef", f"got {service.api_key_secret!r}, {wanted}")
    named = [
        d
        for d in found
        if d.get("kind") == MANIFEST_KIND and (d.get("metadata") or {}).get("name") == service.model.manifest
    ]
    if len(named) != 1:
        wanted = f"{path} holds {len(named)} {MANIFEST_KIND} of that name, want 1"
        raise SpecError("spec.model.manifestRef.name", f"got {service.model.manifest!r}; {wanted}")
    manifest = documents.manifest_of(named[0], str(path))
    if manifest.digest != service.model.digest:
        raise SpecError("spec.model.digest", f"got {service.model.digest}, the manifest has {manifest.digest}")
    variables = environment.on_this_machine(service.engine.env, os.environ)
    return LocalRun(service, manifest, path, variables)


def model_folder(run: LocalRun, volumes: Path) -> Path:
    """Where the model's files are on this machine; models that pods would fetch are fetched first, into the cache.

    The Secret and the ConfigMap that `spec.model` names are a cluster's: here the shell's own variables stand for them.

    Raises SourceError where fetching fails, ManifestError where the folder is not there.
    """
    source = run.manifest.source
    if source.is_fetched:
        folder = cache() / "models" / run.manifest.files_digest.removeprefix("sha256:")
        with ProgressBar("fetching", run.manifest.total_size) as progress:
            fetch(run.manifest, folder, progress, environment=_environment(run.service, source))
        return folder
    folder = _on_disk(source, volumes)
    if not folder.is_dir():
        raise ManifestError(
            "spec.source.uri", f"{source.uri} is {folder} here, which is no folder; want the model there"
        )
    return folder


def _environment(service: InferenceService, source: Source) -> dict[str, str]:
    endpoint = service.model.access.endpoint
    return {**os.environ, **({access.endpoint_variable(source): endpoint} if endpoint else {})}


def _on_disk(source: Source, volumes: Path) -> Path:
    return volumes / source.location if source.scheme == "pvc" else Path("/") / source.location.lstrip("/")
