"""Asks ready replicas for their load and the digest that they verified, and those that fetch how far they are. I/O.

Straight to the pod's address: a Service would answer for any one of them, and a proxy for none.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

import aiohttp

from pinrail_contract import endpoints
from pinrail_contract.errors import SampleError
from pinrail_contract.metrics import LoadSample, fetched_share, parse, verified_digest

from .observed import Pod

TIMEOUT = 2.0  # seconds, for the whole page
MAX_PAGE = 1 << 20  # bytes
CONCURRENCY = 64  # pages at once


@dataclass(frozen=True, slots=True)
class Scrape:
    """What one replica answered; where it did not answer with a page that can be read, `error` says why."""

    load: LoadSample | None = None
    digest: str = ""  # of the manifest that it verified; empty where the page names none
    error: str = ""


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
        answers = await asyncio.gather(*(self._page(p) for p in asked))
        return {
            pod.name: Scrape(error=page) if isinstance(page, str) else read_page(page)
            for pod, page in zip(asked, answers, strict=True)
        }

    async def fetched(self, pods: Iterable[Pod]) -> dict[str, float]:
        """By name of a pod whose model is being fetched, how much of it is there, 0 to 1; not those that do not say."""
        asked = [p for p in pods if p.ip]
        answers = await asyncio.gather(*(self._page(p) for p in asked))
        shares = {pod.name: _share(page) for pod, page in zip(asked, answers, strict=True)}
        return {name: share for name, share in shares.items() if share is not None}

    async def _page(self, pod: Pod) -> bytes | str:
        """What it answers, at most one byte more than a page may have; or why there is no page."""
        host = f"[{pod.ip}]" if ":" in pod.ip else pod.ip
        try:
            async with self.session.get(
                f"http://{host}:{self.port}{endpoints.METRICS}", allow_redirects=False
            ) as answer:
                if answer.status != 200:
                    return f"status {answer.status}, want 200"
                return await _read(answer)
        except (aiohttp.ClientError, TimeoutError, OSError) as e:
            return f"{type(e).__name__}: {e}"


async def _read(answer: aiohttp.ClientResponse) -> bytes:
    """At most one byte more than a page may have."""
    page = bytearray()
    async for chunk in answer.content.iter_chunked(1 << 16):
        page += chunk
        if len(page) > MAX_PAGE:
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
    """A metrics page; the digest counts even where the load cannot be read."""
    if len(page) > MAX_PAGE:
        return Scrape(error=f"got more than {MAX_PAGE} bytes, want a metrics page")
    text, digest = page.decode(errors="replace"), ""
    try:
        digest = verified_digest(text)
        return Scrape(parse(text), digest)
    except SampleError as e:
        return Scrape(None, digest, str(e))
