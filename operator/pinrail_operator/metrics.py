"""Asks ready replicas for their load, the digest that they verified and what they run; those that fetch, how far. I/O.

Straight to the pod's address: a Service would answer for any one of them, and a proxy for none.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Self

import aiohttp

from pinrail_contract import endpoints
from pinrail_contract.errors import SampleError
from pinrail_contract.metrics import LoadSample, digest_of, fetched_share, load_of, read, runtime_of, version_runtime
from pinrail_contract.runtime import UNSAID, Runtime

from .observed import Pod

TIMEOUT = 2.0  # seconds, for the whole page
MAX_PAGE = 1 << 20  # bytes
CONCURRENCY = 64  # pages at once


@dataclass(frozen=True, slots=True)
class Scrape:
    """What one replica answered; where it did not answer with a page that can be read, `error` says why."""

    load: LoadSample | None = None
    digest: str = ""  # of the manifest that it verified; empty where the page names none
    runtime: Runtime | None = None  # its engine and numerics, as far as it names them; None where no page was read
    error: str = ""
    kind: str = ""  # of error, where a status may tell it: without a figure or an address, which would change
    age: float = 0.0  # seconds since the load was so; 0 for a page that was just read


@dataclass(frozen=True, slots=True)
class Scraper:
    session: aiohttp.ClientSession
    port: int = endpoints.PORT

    @classmethod
    def create(cls) -> Self:
        """Proxies of the environment are not used."""
        timeout = aiohttp.ClientTimeout(total=TIMEOUT)
        return cls(aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=CONCURRENCY)))

    async def close(self) -> None:
        await self.session.close()

    async def scrape(self, pods: Iterable[Pod]) -> dict[str, Scrape]:
        """One answer for each pod, by its name; never raises for a pod that misbehaves."""
        asked = [p for p in pods if p.ip]
        answers = await asyncio.gather(*(self._scrape(p) for p in asked))
        return {pod.name: answer for pod, answer in zip(asked, answers, strict=True)}

    async def fetched(self, pods: Iterable[Pod]) -> dict[str, float]:
        """By name of a pod whose model is being fetched, how much of it is there, 0 to 1; not those that do not say."""
        asked = [p for p in pods if p.ip]
        answers = await asyncio.gather(*(self._page(p) for p in asked))
        shares = {pod.name: _share(page) for pod, page in zip(asked, answers, strict=True)}
        return {name: share for name, share in shares.items() if share is not None}

    async def _scrape(self, pod: Pod) -> Scrape:
        page = await self._page(pod)
        if isinstance(page, str):
            return Scrape(error=page)
        told = read_page(page)
        is_asked = bool(pod.verified) and told.runtime == UNSAID  # an engine that is not ours
        return replace(told, runtime=await self._version(pod)) if is_asked else told

    async def _version(self, pod: Pod) -> Runtime | None:
        """What an engine that is not ours says of its version; None where it did not answer, or with an error.

        UNSAID, where it has no such page: what is known of it is not replaced by what went wrong.
        """
        try:
            status, answer = await self._get(pod, endpoints.VERSION)
        except (aiohttp.ClientError, TimeoutError, OSError):
            return None
        if status == 404:
            return UNSAID
        return version_runtime(answer.decode(errors="replace")) if status == 200 else None

    async def _page(self, pod: Pod) -> bytes | str:
        """What it answers, at most one byte more than a page may have; or why there is no page."""
        try:
            status, page = await self._get(pod, endpoints.METRICS)
        except (aiohttp.ClientError, TimeoutError, OSError) as e:
            return f"{type(e).__name__}: {e}"
        return page if status == 200 else f"status {status}, want 200"

    async def _get(self, pod: Pod, path: str) -> tuple[int, bytes]:
        """Status and body; raises as aiohttp does."""
        host = f"[{pod.ip}]" if ":" in pod.ip else pod.ip
        async with self.session.get(f"http://{host}:{self.port}{path}", allow_redirects=False) as answer:
            return answer.status, await read_most(answer, MAX_PAGE) if answer.status == 200 else b""


async def read_most(answer: aiohttp.ClientResponse, most: int) -> bytes:
    """A body of at most `most` bytes, or more than that where it is longer: no more is taken than shows it."""
    page = bytearray()
    async for chunk in answer.content.iter_chunked(1 << 16):
        page += chunk
        if len(page) > most:
            break
    return bytes(page)


def _share(page: bytes | str) -> float | None:
    if isinstance(page, str) or len(page) > MAX_PAGE:
        return None
    try:
        return fetched_share(page.decode(errors="replace"))
    except SampleError:
        return None


def read_page(page: bytes) -> Scrape:
    """A metrics page; digest and runtime count even where the load cannot be read."""
    if len(page) > MAX_PAGE:
        return Scrape(error=f"got more than {MAX_PAGE} bytes, want a metrics page")
    samples = read(page.decode(errors="replace"))
    try:
        told = Scrape(None, digest_of(samples), runtime=runtime_of(samples))
    except SampleError as e:
        return Scrape(error=str(e))
    try:
        return replace(told, load=load_of(samples))
    except SampleError as e:
        return replace(told, error=str(e))
