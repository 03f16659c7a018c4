"""Where Pinrail keeps what it can make again: PINRAIL_CACHE, or ~/.cache/pinrail."""

import os
from pathlib import Path


def cache() -> Path:
    return Path(os.environ.get("PINRAIL_CACHE") or Path.home() / ".cache" / "pinrail")


def volumes() -> Path:
    """The folder that stands for persistent volumes in local mode: pvc://claim/path is volumes()/claim/path."""
    return cache() / "volumes"
