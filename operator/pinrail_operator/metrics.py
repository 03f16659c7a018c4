"""Asks every ready replica for its load and for the digest that it verified. I/O.

Straight to the pod's address: a Service would answer for any one of them, and a proxy for none.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

import aiohttp

from pinrail_contract import endpoints
from pinrail_contract.errors import SampleError
from pinrail_contract.metrics import LoadSample, parse, verified_digest

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
        answers = await asyncio.gather(*(self._page(p) for p in asked))
        return {pod.name: answer for pod, answer in zip(asked, answers, strict=True)}

    async def _page(self, pod: Pod) -> Scrape:
        host = f"[{pod.ip}]" if ":" in pod.ip else pod.ip
        try:
            async with self.session.get(
                f"http://{host}:{self.port}{endpoints.METRICS}", allow_redirects=False
            ) as answer:
                if answer.status != 200:
                    return Scrape(error=f"status {answer.status}, want 200")
                return read_page(await read_most(answer, MAX_PAGE))
        except (aiohttp.ClientError, TimeoutError, OSError) as e:
            return Scrape(error=f"{type(e).__name__}: {e}")


async def read_most(answer: aiohttp.ClientResponse, most: int) -> bytes:
    """A body of at most `most` bytes, or more than that where it is longer: no more is taken than shows it."""
    page = bytearray()
    async for chunk in answer.content.iter_chunked(1 << 16):
        page += chunk
        if len(page) > most:
            break
    return bytes(page)


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
