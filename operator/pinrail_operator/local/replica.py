"""One replica: an engine process on 127.0.0.1, its log, and what it says of itself. I/O."""

import asyncio
import os
import re
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from pinrail_contract import endpoints, metrics
from pinrail_contract.errors import SampleError
from pinrail_contract.metrics import LoadSample
from pinrail_contract.runtime import UNSAID, Runtime

SCRAPE_TIMEOUT = aiohttp.ClientTimeout(total=2.0)  # seconds
_PROGRESS = re.compile(r"(?P<label>[a-z][a-z ]*?)\s+(?P<percent>\d{1,3})%")


@dataclass(slots=True)
class Replica:
    """A process and its last known state."""

    port: int
    log: Path
    process: asyncio.subprocess.Process
    in_flight: int = 0  # requests that the endpoint has sent here and not seen the end of
    is_ready: bool = False
    is_ending: bool = False
    healthy_at: float = 0.0  # monotonic seconds, when it last said that it lives; 0 before it ever did
    load: LoadSample | None = None
    loaded_at: float = 0.0  # monotonic seconds of `load`
    generated: float = 0.0  # tokens since its start
    digest: str = field(default="")  # of the manifest that it says it verified
    runtime: Runtime = UNSAID  # the engine and the numerics that it says it runs

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def is_alive(self) -> bool:
        return self.process.returncode is None


async def start(args: Sequence[str], port: int, log: Path, variables: Mapping[str, str]) -> Replica:
    """Start `pinrail serve` with these words, its output going to `log`; `variables` add to this process's own."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as out:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "pinrail_contract", "serve", *args, stdout=out, stderr=out, start_new_session=True,
            env={**os.environ, **variables},
        )  # fmt: skip
    return Replica(port, log, process)


async def refresh(replica: Replica, session: aiohttp.ClientSession, now: float) -> None:
    """Ask whether it lives and is ready, and for its load; figures that do not come leave the old to grow stale."""
    if await _answers(replica, endpoints.HEALTH, session):
        replica.healthy_at = now
    replica.is_ready = not replica.is_ending and await _answers(replica, endpoints.READY, session)
    if not replica.is_ready:
        return
    try:
        async with session.get(replica.url + endpoints.METRICS, timeout=SCRAPE_TIMEOUT) as response:
            page = await response.text()
        samples = metrics.read(page)
        replica.load, replica.loaded_at = metrics.load_of(samples), now
        replica.generated = metrics.total(page, metrics.GENERATION_TOKENS)
        replica.digest, replica.runtime = metrics.digest_of(samples), metrics.runtime_of(samples)
    except (aiohttp.ClientError, TimeoutError, SampleError):
        return


async def stop(replica: Replica, timeout: float) -> None:
    """SIGTERM, then SIGKILL after `timeout` seconds."""
    replica.is_ending, replica.is_ready = True, False
    if not replica.is_alive:
        return
    replica.process.terminate()
    try:
        await asyncio.wait_for(replica.process.wait(), timeout)
    except TimeoutError:
        replica.process.kill()
        await replica.process.wait()


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port: int = s.getsockname()[1]
        return port


def loading(replica: Replica) -> tuple[str, int | None]:
    """What a starting replica is doing, and how far it is: in percent, or None where it does not say."""
    found = list(_PROGRESS.finditer(replica.log.read_text(errors="replace")[-4000:]))
    if not found:
        return "starting", None
    percent = int(found[-1]["percent"])
    return (found[-1]["label"], percent) if percent < 100 else ("loading", None)


def last_words(replica: Replica, lines: int = 12) -> str:
    """The end of its log, for a person to read: without how far it had come."""
    said = replica.log.read_text(errors="replace").splitlines()
    return "\n".join([line for line in said if not _PROGRESS.match(line)][-lines:]).removeprefix("pinrail serve: ")


async def _answers(replica: Replica, path: str, session: aiohttp.ClientSession) -> bool:
    try:
        async with session.get(replica.url + path, timeout=SCRAPE_TIMEOUT) as response:
            return response.status == 200
    except (aiohttp.ClientError, TimeoutError):
        return False
