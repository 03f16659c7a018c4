"""The model folder, opened once and hashed through the descriptors that everything is then read from.

Nobody can swap a path between the check and the use, because no path is opened a second time; whoever writes into an
open file instead leaves another stamp on it, which is compared when everything has been read.
"""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pinrail_contract import folder
from pinrail_contract.compare import Mismatch
from pinrail_contract.errors import ModelError
from pinrail_contract.folder import Hashed, Progress, no_progress
from pinrail_contract.launch import Verification
from pinrail_contract.metrics import MISMATCHED, VERIFIED
from pinrail_contract.pins import ModelManifest, Role

log = logging.getLogger(__name__)

_SMALL = 64 << 20  # bytes: the largest file that is read whole; weights are mapped instead


@dataclass(frozen=True, slots=True)
class VerifiedModel:
    """Open files with their pins. The descriptors live as long as the `open_verified` that gave them."""

    files: Hashed
    mode: Verification
    manifest: ModelManifest
    digest: str  # of the manifest

    @property
    def mismatches(self) -> tuple[Mismatch, ...]:
        """Empty unless verification only warns."""
        return self.files.mismatches

    @property
    def verdict(self) -> str:
        """How the files compared with the manifest: `verified` or `mismatched`."""
        return MISMATCHED if self.mismatches else VERIFIED

    def read(self, name: str) -> bytes | None:
        """A small file's bytes, or None where there is none; raises ModelError above 64 MiB.

        A file that the manifest does not name counts as not there.
        """
        handle = self.files.handles.get(name)
        if handle is None or name not in {pin.path for pin in self.manifest.files}:
            return None
        size = os.fstat(handle).st_size
        if size > _SMALL:
            raise ModelError(f"{name}: has {size} bytes, want at most {_SMALL} for a file that is read whole")
        return os.pread(handle, size, 0)

    def weights(self) -> dict[str, int]:
        """The descriptors of the weight files, by name."""
        pins = self.manifest.by_role(Role.WEIGHTS)
        handles = self.files.handles
        return {pin.path: handles[pin.path] for pin in pins if pin.path in handles}

    def check_untouched(self) -> None:
        """To be called when all is read: raises ModelError, or warns, where a file was touched meanwhile."""
        touched = self.files.touched()
        if not touched:
            return
        message = f"{', '.join(touched)}: changed while being read, want files that nobody touches"
        if self.mode is Verification.ENFORCE:
            raise ModelError(message)
        log.warning("%s", message)


@contextmanager
def open_verified(
    path: Path, manifest: ModelManifest, mode: Verification, progress: Progress = no_progress
) -> Iterator[VerifiedModel]:
    """Open and hash a model folder.

    Raises ModelError, naming every file that differs, where `mode` is Enforce; Warn logs each one and goes on.
    """
    with folder.verified(path, manifest, progress) as hashed:
        mismatches = hashed.mismatches
        if mismatches and mode is Verification.ENFORCE:
            listed = "; ".join(str(m) for m in mismatches)
            differ = "1 file differs" if len(mismatches) == 1 else f"{len(mismatches)} files differ"
            raise ModelError(f"{differ} from manifest {manifest.digest}: {listed}")
        for mismatch in mismatches:
            log.warning("model file differs from its manifest, served all the same: %s", mismatch)
        yield VerifiedModel(hashed, mode, manifest, manifest.digest)
