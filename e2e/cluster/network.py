"""The cluster's own network namespace, so that nothing it sends can leave this machine.

The namespace has a loopback device and one bridge, which is the node's network card: there is no other way in or out.
Programs enter it by `setns` (as `nsenter --net` does), not with `ip netns exec`: that remounts /sys, and the kubelet
then finds no cgroups.
"""

import ctypes
import subprocess
from pathlib import Path

from progress import ClusterError

NAME = "pinrail"
NODE_ADDRESS = "10.90.0.1"
POD_RANGE = "10.244.0.0/24"
POD_BRIDGE = "pods0"
NAMESPACE = Path("/run/netns") / NAME

CLONE_NEWNET = 0x40000000  # linux/sched.h
_LIBC = ctypes.CDLL(None, use_errno=True)  # os.setns came with Python 3.12


def exists() -> bool:
    return NAMESPACE.exists()


def create() -> None:
    """Make the namespace with its devices; an earlier one is removed."""
    remove()
    _ip("netns", "add", NAME)
    _ip("-n", NAME, "link", "set", "lo", "up")
    _ip("-n", NAME, "link", "add", "node0", "type", "bridge")
    _ip("-n", NAME, "address", "add", f"{NODE_ADDRESS}/24", "dev", "node0")
    _ip("-n", NAME, "link", "set", "node0", "up")
    _ip("-n", NAME, "route", "add", "default", "dev", "node0")  # programs ask which address faces the world


def remove() -> None:
    """Remove the namespace, and its devices with it."""
    if exists():
        _ip("netns", "delete", NAME)


def enter() -> None:
    """Move this program inside; what it starts from now on is inside too.

    Raises:
        ClusterError: There is no namespace: the cluster is not up.
    """
    if not exists():
        raise ClusterError("the cluster is not up: run cluster.py up")
    with NAMESPACE.open() as namespace:
        if _LIBC.setns(namespace.fileno(), CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"cannot enter {NAMESPACE}")


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)
