"""How many threads may compute: the processors that this process may use, within the container's quota.

`count` is pure; `allowed` reads the machine. More threads than quota are throttled, and one that is throttled holds
the others up at every barrier, so a broken quota is rounded down.
"""

import os
from pathlib import Path

_V2 = "/sys/fs/cgroup/cpu.max"
_V1 = ("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "/sys/fs/cgroup/cpu/cpu.cfs_period_us")


def count(processors: int, quota: str) -> int:
    """Args: processors: that the scheduler may put us on; quota: "QUOTA PERIOD" in microseconds, or "max PERIOD"."""
    words = quota.split()
    if len(words) != 2 or not all(word.isdigit() for word in words) or int(words[1]) == 0:
        return processors
    return max(1, min(processors, int(words[0]) // int(words[1])))


def allowed() -> int:
    """Threads for this process."""
    quota = _read(_V2) or " ".join(_read(path) for path in _V1)
    return count(len(os.sched_getaffinity(0)), quota)


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except OSError:
        return ""
