"""Processes that outlive the command that started them, and are ended by what they are, not by name.

A process is known by its pid together with the moment it started and the boot it belongs to, so that a pid which the
kernel has given to another program is never signalled.
"""

import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self


@dataclass(frozen=True, slots=True)
class Process:
    """One program that was started here."""

    name: str
    pid: int
    born: str  # boot id and start time in clock ticks since that boot

    @classmethod
    def start(cls, name: str, command: Sequence[str | Path], log: Path, env: Mapping[str, str] | None = None) -> Self:
        """Start a program in a session of its own, with its output in `log`."""
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as output:
            child = subprocess.Popen(
                [str(word) for word in command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(env or {})},
                start_new_session=True,
            )
        child.returncode = 0  # it is ours to reap, or init's: Popen would warn that it still runs
        return cls(name, child.pid, _born(child.pid) or "")

    def is_alive(self) -> bool:
        """Whether this very process still runs."""
        if not self.born or _born(self.pid) != self.born:
            return False
        try:
            return os.waitpid(self.pid, os.WNOHANG) == (0, 0)  # a child stays a zombie until it is waited for
        except ChildProcessError:
            return _stat(self.pid)[:1] != ["Z"]

    def command(self) -> list[str]:
        """The words that it was started with."""
        return Path(f"/proc/{self.pid}/cmdline").read_text().split("\0")[:-1]

    def stop(self, grace: float) -> None:
        """Ask it to end; after `grace` seconds, make it. Returns when it is gone."""
        for sign, patience in ((signal.SIGTERM, grace), (signal.SIGKILL, 10.0)):
            deadline = time.monotonic() + patience
            if self.is_alive():
                os.kill(self.pid, sign)
            while self.is_alive() and time.monotonic() < deadline:
                time.sleep(0.02)


def _born(pid: int) -> str | None:
    stat = _stat(pid)
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {stat[19]}" if stat else None


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the state on; empty where there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return []
    return stat.rpartition(")")[2].split()  # the name before it may hold anything


@dataclass(frozen=True, slots=True)
class Ledger:
    """A file that lists processes, written before anything depends on them."""

    file: Path

    def add(self, process: Process) -> None:
        """Add one; it takes the place of an earlier one of its name, which must have ended."""
        self._write([*(p for p in self.read() if p.name != process.name), process])

    def read(self) -> list[Process]:
        """Every process that was started, oldest first, alive or not."""
        try:
            return [Process(**entry) for entry in json.loads(self.file.read_text())]
        except FileNotFoundError:
            return []

    def forget(self) -> None:
        self.file.unlink(missing_ok=True)

    def _write(self, processes: list[Process]) -> None:
        self.file.parent.mkdir(parents=True, exist_ok=True)
        fresh = self.file.with_suffix(".new")
        fresh.write_text(json.dumps([asdict(process) for process in processes], indent=1))
        fresh.replace(self.file)
