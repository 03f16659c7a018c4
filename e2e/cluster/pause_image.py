"""The image of the pause container, written as an archive that `ctr images import` reads: no image tool is needed."""

import hashlib
import io
import json
import tarfile
from pathlib import Path

import parts

NAME = "pinrail.dev/pause:local"


def write(archive: Path) -> Path:
    """Write an image whose one layer holds one static program."""
    layer = _tar({"pause": parts.PAUSE.program("pause").read_bytes()})
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Entrypoint": ["/pause"], "User": "65535:65535"},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [NAME], "Layers": ["layer.tar"]}]
    files = {"config.json": _json(config), "layer.tar": layer, "manifest.json": _json(manifest)}
    archive.write_bytes(_tar(files))
    return archive


def _json(content: object) -> bytes:
    return json.dumps(content).encode()


def _tar(files: dict[str, bytes]) -> bytes:
    """Equal bytes for equal files: names and contents are all that vary."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), 0o755
            tar.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()
