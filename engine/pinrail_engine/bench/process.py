"""`pinrail serve` in a process of its own: started, waited for, looked at, and always ended. Acts."""

import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from types import FrameType
from typing import IO

from pinrail_contract.endpoints import METRICS, READY
from pinrail_contract.launch import LaunchSpec

from .errors import BenchError

SERVE = (sys.executable, "-P", "-m", "pinrail_contract", "serve")
_HOST = "127.0.0.1"
_POLL_SECONDS = 0.02  # one in a hundred of the fastest start
_ANSWER_SECONDS = 5.0
_END_SECONDS = 15.0  # after SIGTERM
_GONE_SECONDS = 1.0
_WORDS = 20  # lines of its output that are shown
_KIBIBYTES = {"VmRSS": "resident_bytes", "VmHWM": "peak_bytes"}


@dataclass(frozen=True, slots=True)
class Child:
    """A server that was started here."""

    port: int
    began: float  # when, in seconds of time.monotonic
    _process: "subprocess.Popen[bytes]"
    _said: IO[bytes]

    @property
    def url(self) -> str:
        return f"http://{_HOST}:{self.port}"

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_until_ready(self, patience: float) -> None:
        """Raises BenchError where it has ended, or `patience` seconds since its start are over."""
        while self._status(READY) != 200:
            if self._process.poll() is not None:
                raise BenchError("pinrail serve was not ready yet")
            if time.monotonic() - self.began > patience:
                raise BenchError(
                    f"pinrail serve is not ready after {patience:g} seconds, and says:\n{self.last_words()}"
                )
            time.sleep(_POLL_SECONDS)

    def metrics(self) -> str:
        return self._get(METRICS)[1].decode()

    def last_words(self) -> str:
        self._said.seek(0)
        return "\n".join(self._said.read().decode(errors="replace").splitlines()[-_WORDS:])

    def _status(self, path: str) -> int:
        """0 where nobody answers."""
        try:
            return self._get(path)[0]
        except (OSError, HTTPException):
            return 0

    def _get(self, path: str) -> tuple[int, bytes]:
        connection = HTTPConnection(_HOST, self.port, timeout=_ANSWER_SECONDS)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()


@contextmanager
def child(spec: LaunchSpec) -> Iterator[Child]:
    """Starts a server on a free port; it has ended when the block ends, also by an error or SIGTERM.

    A BenchError that leaves the block because the server has ended tells its last words.
    """
    port = _free_port()
    words = [*SERVE, *replace(spec, host=_HOST, port=port).args()]
    with tempfile.TemporaryFile() as said, _unwound_by_sigterm():
        began = time.monotonic()
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT)
        server = Child(port, began, process, said)
        try:
            yield server
        except BenchError as e:
            code = _code_of(process)
            if code is None:
                raise
            raise BenchError(f"{e}: it ended with code {code}, and had said:\n{server.last_words()}") from e
        finally:
            _end(process)


def memory(pids: Iterable[int]) -> Mapping[str, float]:
    """Bytes of all of them together; nothing where /proc does not tell of each."""
    try:
        told = [Path(f"/proc/{pid}/status").read_text(encoding="utf-8") for pid in pids]
    except OSError:
        return {}
    sums = dict.fromkeys(_KIBIBYTES.values(), 0.0) if told else {}
    for status in told:
        fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
        for field, name in _KIBIBYTES.items():
            sums[name] += 1024.0 * int(fields.get(field, "0 kB").split()[0])
    return sums


def _code_of(process: "subprocess.Popen[bytes]") -> int | None:
    """With which it ended, if it did; a connection breaks off a moment before its process is gone."""
    try:
        return process.wait(_GONE_SECONDS)
    except subprocess.TimeoutExpired:
        return None


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    try:
        with suppress(subprocess.TimeoutExpired):
            process.wait(_END_SECONDS)
    finally:
        process.kill()
        process.wait()


def _free_port() -> int:
    with socket.create_server((_HOST, 0)) as probe:
        return int(probe.getsockname()[1])


@contextmanager
def _unwound_by_sigterm() -> Iterator[None]:
    """The signal ends this process as an exception does: what it has started is ended first."""

    def leave(number: int, _: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
