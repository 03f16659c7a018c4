"""Whether there may be an accelerator, found out without torch: importing it takes seconds, and half a gigabyte."""

import os
from importlib.util import find_spec
from pathlib import Path


def has_torch() -> bool:
    """It is installed; it is not imported."""
    try:
        return find_spec("torch") is not None
    except ImportError:  # of an import hook that keeps it away
        return False


def has_nvidia(root: Path = Path("/")) -> bool:
    """The kernel's driver is there, or a device of it: what a container runtime hands in, too."""
    if (root / "proc/driver/nvidia").exists():
        return True
    try:
        return any(name.startswith("nvidia") for name in os.listdir(root / "dev"))
    except OSError:
        return False
