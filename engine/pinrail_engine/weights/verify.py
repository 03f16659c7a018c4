"""The model folder, opened once and hashed through the descriptors that everything is then read from.

Nobody can swap a path between the check and the use, because no path is opened a second time.
"""

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pinrail_contract import folder
from pinrail_contract.compare import Mismatch
from pinrail_contract.errors import ModelError
from pinrail_contract.folder import Progress, no_progress
from pinrail_contract.launch import Verification
from pinrail_contract.pins import ModelManifest, Role

log = logging.getLogger(__name__)

_SMALL = 64 << 20  # bytes: the largest file that is read whole; weights are mapped instead


@dataclass(frozen=True, slots=True)
class VerifiedModel:
    """Open files with their pins. The descriptors live as long as the `open_verified` that gave them."""

    handles: Mapping[str, int]  # file name -> descriptor
    mismatches: tuple[Mismatch, ...]  # empty unless verification only warns
    manifest: ModelManifest
    digest: str  # of the manifest

    @property
    def verdict(self) -> str:
        """How the files compared with the manifest: `verified` or `mismatched`."""
        return "mismatched" if self.mismatches else "verified"

    def read(self, name: str) -> bytes | None:
        """A small file's bytes, or None where there is none; raises ModelError above 64 MiB.

        A file that the manifest does not name counts as not there.
        """
        handle = self.handles.get(name)
        if handle is None or name not in {pin.path for pin in self.manifest.files}:
            return None
        size = os.fstat(handle).st_size
        if size > _SMALL:
            raise ModelError(f"{name}: has {size} bytes, want at most {_SMALL} for a file that is read whole")
        return os.pread(handle, size, 0)

    def weights(self) -> dict[str, int]:
        """The descriptors of the weight files, by name."""
        pins = self.manifest.by_role(Role.WEIGHTS)
        return {pin.path: self.handles[pin.path] for pin in pins if pin.path in self.handles}


@contextmanager
def open_verified(
    path: Path, manifest: ModelManifest, mode: Verification, progress: Progress = no_progress
) -> Iterator[VerifiedModel]:
    """Open and hash a model folder.

    Raises ModelError, naming every file that differs, where `mode` is Enforce; Warn logs each one and goes on.
    """
    with folder.verified(path, manifest, progress) as (handles, mismatches):
        if mismatches and mode is Verification.ENFORCE:
            listed = "; ".join(str(m) for m in mismatches)
            differ = "1 file differs" if len(mismatches) == 1 else f"{len(mismatches)} files differ"
            raise ModelError(f"{differ} from manifest {manifest.digest}: {listed}")
        for mismatch in mismatches:
            log.warning("model file differs from its manifest, served all the same: %s", mismatch)
        yield VerifiedModel(handles, mismatches, manifest, manifest.digest)
