"""How much memory this process may still take, and how much a piece of work takes at its peak.

Linux: the least of what the machine has free and what each cgroup, version 1 or 2, leaves. Pages of files that the
kernel could drop count as free.
"""

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")
_PROC = Path("/proc/self")


def free_bytes(root: Path = _ROOT, proc: Path = _PROC, meminfo: Path = Path("/proc/meminfo")) -> int:
    """Bytes; 0 where nothing tells."""
    found = [_kibibytes(_read(meminfo), "MemAvailable"), *_left_by_cgroups(root, _read(proc / "cgroup"))]
    return max(0, min((left for left in found if left is not None), default=0))


def peak_of(work: Callable[[], object], proc: Path = _PROC) -> int:
    """Bytes that `work` takes on top of what is taken before; 0 where the kernel does not say."""
    before = _kibibytes(_read(proc / "status"), "VmRSS") or 0
    try:
        (proc / "clear_refs").write_text("5")  # the peak so far is forgotten
    except OSError:
        before = _kibibytes(_read(proc / "status"), "VmHWM") or 0
    work()
    peak = _kibibytes(_read(proc / "status"), "VmHWM")
    return 0 if peak is None else max(0, peak - before)


def _left_by_cgroups(root: Path, membership: str) -> Iterator[int]:
    """Of this process's group and of every group above it."""
    for line in membership.splitlines():
        _, controllers, path = line.split(":", 2)
        version_2 = controllers == ""
        if not version_2 and "memory" not in controllers.split(","):
            continue
        names = ("memory.max", "memory.current") if version_2 else ("memory.limit_in_bytes", "memory.usage_in_bytes")
        base = root if version_2 else root / "memory"
        for group in [base / path.lstrip("/"), *(base / path.lstrip("/")).parents]:
            left = _left(group, *names)
            if left is not None:
                yield left
            if group == base:
                break


def _left(group: Path, limit_name: str, usage_name: str) -> int | None:
    limit, usage = _read(group / limit_name).strip(), _read(group / usage_name).strip()
    if not (limit.isdigit() and usage.isdigit()):
        return None  # no such file, or `max`
    droppable = re.search(r"^(?:total_)?inactive_file (\d+)$", _read(group / "memory.stat"), re.MULTILINE)
    return int(limit) - int(usage) + (int(droppable[1]) if droppable else 0)


def _kibibytes(text: str, name: str) -> int | None:
    match = re.search(rf"^{name}:\s+(\d+) kB$", text, re.MULTILINE)
    return int(match[1]) * 1024 if match else None


def _read(path: os.PathLike[str]) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError:
        return ""
