"""`spec.model.cache`: a volume of fetched models that pods share, in place of each pod's own. Pure.

The container that fetches has the whole volume, and so has a sidecar that keeps the pod's model from being removed for
as long as the pod lives; the engine sees its own model's folder alone, and cannot write to it.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Self

from pinrail_contract.launch import parse_bytes
from pinrail_contract.model_cache import folder_name
from pinrail_contract.pins import ModelManifest

from .errors import SpecError
from .fields import Fields

DIR = "/model-cache"
"""Where the containers that fetch and hold have the volume."""

HOLD = "hold"
HOLDER = "/tmp/pinrail-holder"
"""A file in the pod's own /tmp, locked by the sidecar: the fetch waits for it."""

HOLD_RESOURCES = {"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"cpu": "100m", "memory": "64Mi"}}
"""Equal, so that a pod whose engine has equal ones stays of the class Guaranteed."""

_LEAST, _MOST = 2**24, 2**48  # bytes
_LONGEST_PATH = 255  # characters
_PATH = r"(/(?!\.{1,2}(/|$))[A-Za-z0-9._-]+)+"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCache:
    """Either a claim or a folder of the node."""

    claim: str  # name of a PersistentVolumeClaim in the service's namespace; empty: `host_path`
    host_path: str  # folder on each node; empty: `claim`
    max_size: int  # bytes that all models in it may take together

    @classmethod
    def parse(cls, f: Fields) -> Self | None:
        """None where `spec.model` has no cache."""
        if not f.has("cache"):
            return None
        cache = f.child("cache", {"persistentVolumeClaim", "hostPath", "maxSize"})
        if cache.has("persistentVolumeClaim") == cache.has("hostPath"):
            seen = "both" if cache.has("hostPath") else "neither"
            wanted = "want exactly one of persistentVolumeClaim and hostPath"
            raise SpecError(f.path("cache"), f"got {seen}, {wanted}")
        return cls(claim=_claim(cache), host_path=_host_path(cache), max_size=_max_size(cache))

    def identity(self) -> dict[str, Any]:
        """What a revision names of it."""
        return {"modelCache": {"volume": self.volume(), "maxSize": self.max_size}}

    def volume(self) -> dict[str, Any]:
        """As in a pod's `volumes`, without the name.

        A folder that is not there is made, and is root's: the fetch then says that it cannot write, where a kubelet
        would only wait for it.
        """
        if self.claim:
            return {"persistentVolumeClaim": {"claimName": self.claim}}
        return {"hostPath": {"path": self.host_path, "type": "DirectoryOrCreate"}}

    def fetch_args(self) -> list[str]:
        return ["--cache", DIR, f"--max-size={self.max_size}", "--holder", HOLDER]

    def hold_args(self) -> list[str]:
        return ["--cache", DIR, "--holder", HOLDER]

    def problem(self, manifest: ModelManifest) -> str:
        """Why the cache can never hold the model; empty where it can."""
        if manifest.total_size <= self.max_size:
            return ""
        wanted = f"want {manifest.total_size} or above, which the files of the manifest take"
        return f"spec.model.cache.maxSize: got {self.max_size} bytes, {wanted}"

    def refusal(self, allowed: Collection[str]) -> str:
        """Why the operator does not take it, where it allows these folders of nodes; empty where it does."""
        if not self.host_path or self.host_path in allowed:
            return ""
        wanted = f"want one of {', '.join(sorted(allowed))}" if allowed else "want none: this operator allows none"
        step = "name a claim in persistentVolumeClaim, or have the folder added to engine.hostPathCaches of the chart"
        return f"spec.model.cache.hostPath.path: got {self.host_path}, {wanted}; {step} (PINRAIL_HOST_PATH_CACHES)"


def folder(manifest: ModelManifest) -> str:
    """The model's folder within the volume; `pinrail fetch` makes it."""
    return folder_name(manifest.files_digest)


def _claim(f: Fields) -> str:
    name = "persistentVolumeClaim"
    return f.child(name, {"claimName"}).reference("claimName") if f.has(name) else ""


def _host_path(f: Fields) -> str:
    wanted = f"an absolute path of at most {_LONGEST_PATH} letters, digits and ._-/ without . and .. as names"
    if not f.has("hostPath"):
        return ""
    return f.child("hostPath", {"path"}).text("path", pattern=_PATH, wanted=wanted, most=_LONGEST_PATH)


def _max_size(f: Fields) -> int:
    wanted = "16Mi to 256Ti, such as 500Gi"
    text = f.text("maxSize", pattern=r"[1-9][0-9]*(k|M|G|T|Ki|Mi|Gi|Ti)?", wanted=wanted, most=20)
    size = parse_bytes(text)
    if not _LEAST <= size <= _MOST:
        raise SpecError(f.path("maxSize"), f"got {text!r}, want {wanted}")
    return size
