"""Ends and removes whatever a cluster left on the machine, however it ended.

Nothing is found by a program's name alone: processes by the ledger, by their cgroup (pods) or by our containerd's
socket in their command line (shims); mounts and links by the path of the cluster's own folder.
"""

import os
import signal
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import network
import node
from cache import CONTAINERD, KUBECONFIG, RUN
from processes import Ledger
from progress import wait_until

GRACE = 5.0  # seconds that each program has to end by itself
POD_LOG_LINKS = Path("/var/log/containers")  # the kubelet's; not configurable
CNI_RESULTS = Path("/var/lib/cni/results")  # containerd's; not configurable


def end(ledger: Ledger) -> None:
    """Leave nothing running or mounted. The folder of the run stays, with its logs, until the next one."""
    for process in reversed(ledger.read()):
        process.stop(GRACE)
    wait_until(lambda: not _kill(_pod_processes()), "the end of the pods' processes", timeout=30)
    wait_until(lambda: not _kill(_shims()), "the end of containerd's shims", timeout=30)
    _unmount_below(RUN, CONTAINERD)
    _remove_cgroups()
    network.remove()
    _remove_links()
    KUBECONFIG.unlink(missing_ok=True)
    ledger.forget()


def _kill(pids: Iterable[int]) -> bool:
    """Whether there were any."""
    found = list(pids)
    for pid in found:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return bool(found)


def _pod_processes() -> set[int]:
    folders = (folder for root in node.cgroup_folders() for folder, _, _ in os.walk(root))
    return {int(pid) for folder in folders for pid in _lines(Path(folder) / "cgroup.procs")}


def _shims() -> Iterator[int]:
    ours = f"-address\0{node.SOCKET}\0".encode()
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with suppress(FileNotFoundError, ProcessLookupError):
                command = (folder / "cmdline").read_bytes()
                if b"containerd-shim" in command.split(b"\0")[0] and ours in command:
                    yield int(folder.name)


def _unmount_below(*folders: Path) -> None:
    """Unmount the newest first, since a mount may lie in another."""
    points = [line.split()[4].encode().decode("unicode_escape") for line in _lines(Path("/proc/self/mountinfo"))]
    ours = [point for point in reversed(points) if any(Path(point).is_relative_to(folder) for folder in folders)]
    if ours:
        subprocess.run(["umount", "--lazy", *ours], check=True)


def _remove_cgroups() -> None:
    for root in node.cgroup_folders():
        for folder, _, _ in os.walk(root, topdown=False):
            os.rmdir(folder)


def _remove_links() -> None:
    for link in POD_LOG_LINKS.glob("*.log"):
        if link.is_symlink() and link.readlink().is_relative_to(RUN):
            link.unlink()
    for result in CNI_RESULTS.glob(f"{node.NAME}-*-eth0"):
        sandbox = result.name.removeprefix(f"{node.NAME}-").removesuffix("-eth0")
        result.unlink()
        (CNI_RESULTS / f"cni-loopback-{sandbox}-lo").unlink(missing_ok=True)


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text().splitlines()
    except OSError:
        return []  # a cgroup may go while it is read
