"""Asks a Prometheus for the loads of pods: one query for those of many services, whoever of them asks. I/O.

Where it is is the operator's own setting and never a user's. What pods verified is asked of the pods themselves.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import aiohttp

from .load_query import AnswerError, Reading, Target, query, readings
from .metrics import Scrape, read_most
from .observed import Pod
from .types import ServiceKey

log = logging.getLogger("pinrail.operator")

TIMEOUT = 2.0  # seconds, for a whole answer
MAX_ANSWER = 4 << 20  # bytes; 500 pods take 1.7 MB
MOST_PODS = 500  # in one query
TOGETHER = 0.02  # seconds that a query waits for others who are about to ask
CONCURRENCY = 4  # queries at once

NO_SERVER = (
    "spec.scaling.metrics.source: got Prometheus, and this operator is told of no server, want PINRAIL_PROMETHEUS_URL; "
    "next: set prometheus.url of its chart, or `source: Pods`"
)

NOT_ASKED = "Prometheus has not been asked for it yet"
NO_ANSWER = "Prometheus: got no answer that is of use; the operator's log says more"


class NoServer:
    """Stands where no address is set: every load is missing, and says why."""

    async def loads(self, _: ServiceKey, pods: tuple[Pod, ...]) -> dict[str, Scrape]:
        return {p.name: Scrape(error=NO_SERVER, kind=NO_SERVER) for p in pods}

    async def close(self) -> None:
        """Nothing is open."""


@dataclass(frozen=True, slots=True)
class _Known:
    """What was learned of one pod, and when."""

    reading: Reading
    at: float  # seconds, before its query was sent


@dataclass(slots=True)
class Prometheus:
    """One server. A query asks for all services that asked lately, so that a tick of many makes few."""

    session: aiohttp.ClientSession
    url: str  # without /api/v1
    token_file: str  # of a bearer token, read for each query since tokens change; empty: none
    tick: float  # seconds between two looks at a service
    counted: Callable[[str], None] = lambda _: None  # called with the outcome of each query: ok or failed
    clock: Callable[[], float] = time.monotonic
    _asked: dict[ServiceKey, tuple[frozenset[Target], float]] = field(default_factory=dict)  # and when
    _known: dict[Target, _Known] = field(default_factory=dict)
    _round: asyncio.Task[None] | None = None
    _problem: str = ""  # of the last query that failed, until one succeeds

    @classmethod
    def create(cls, url: str, token_file: str, tick: float, counted: Callable[[str], None]) -> Self:
        """Proxies of the environment are not used."""
        session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=TIMEOUT), connector=aiohttp.TCPConnector(limit=CONCURRENCY)
        )
        return cls(session, url.rstrip("/"), token_file, tick, counted)

    async def close(self) -> None:
        if self._round is not None:
            self._round.cancel()
            await asyncio.gather(self._round, return_exceptions=True)
        await self.session.close()

    async def loads(self, key: ServiceKey, pods: tuple[Pod, ...]) -> dict[str, Scrape]:
        """The load of each pod by its name, with its age; never raises.

        An answer serves for half a tick. While the server fails nobody waits for it: what is known is its problem.
        """
        targets = {Target(key.namespace, key.name, p.name): p.name for p in pods}
        self._asked[key] = (frozenset(targets), self.clock())
        for _ in range(2):  # a query that was under way may not have asked for these
            if self._has(targets):
                break
            if self._round is None or self._round.done():
                self._round = asyncio.create_task(self._ask_for_all())
            if self._problem and all(t in self._known for t in targets):
                break
            await asyncio.shield(self._round)
        return {name: self._told(target) for target, name in targets.items()}

    def _has(self, targets: Iterable[Target]) -> bool:
        return all(self._is_known_since(t, self.clock() - self.tick / 2) for t in targets)

    def _is_known_since(self, target: Target, moment: float) -> bool:
        known = self._known.get(target)
        return known is not None and known.at >= moment

    def _told(self, target: Target) -> Scrape:
        known = self._known.get(target)
        if known is None:
            return Scrape(error=NOT_ASKED, kind=NOT_ASKED)
        reading = known.reading
        age = reading.age + self.clock() - known.at
        return Scrape(reading.load, age=age, error=reading.error, kind=reading.kind)

    async def _ask_for_all(self) -> None:
        """For whoever asked in the last three ticks, but what is known from the last quarter of one."""
        await asyncio.sleep(TOGETHER)
        lately = self.clock() - 3 * self.tick
        self._asked = {key: (targets, at) for key, (targets, at) in self._asked.items() if at >= lately}
        wanted = sorted({t for targets, _ in self._asked.values() for t in targets})
        self._known = {target: self._known[target] for target in wanted if target in self._known}
        older = [t for t in wanted if not self._is_known_since(t, self.clock() - self.tick / 4)]
        problems = await asyncio.gather(*(self._ask(part) for part in _parts(older)))
        self._problem = next((p for p in problems if p), "")

    async def _ask(self, targets: list[Target]) -> str:
        """One query; returns why it failed, or nothing."""
        began, problem, detail = self.clock(), "", ""
        try:
            found = readings(await self._answer(query(targets)), targets)
        except AnswerError as e:
            problem, detail = f"Prometheus: {e}", e.detail
        except TimeoutError:
            problem = f"Prometheus: got no answer within {TIMEOUT:g} s"
        except (aiohttp.ClientError, OSError) as e:
            problem, detail = f"Prometheus: got no answer ({type(e).__name__})", str(e)
        if problem:
            if problem != self._problem:
                log.warning("%s: %s", problem, detail)
            found = dict.fromkeys(targets, Reading(error=problem, kind=NO_ANSWER))
        self._known |= {target: _Known(reading, began) for target, reading in found.items()}
        self.counted("failed" if problem else "ok")
        return problem

    async def _answer(self, text: str) -> bytes:
        form = {"query": text, "timeout": f"{TIMEOUT * 1000:.0f}ms"}
        async with self.session.post(
            f"{self.url}/api/v1/query", data=form, headers=self._headers(), allow_redirects=False
        ) as answer:
            if answer.status != 200:
                said = (await read_most(answer, 500))[:500].decode(errors="replace")
                raise AnswerError(f"got the status {answer.status}, want 200", said)
            found = await read_most(answer, MAX_ANSWER)
            if len(found) > MAX_ANSWER:
                raise AnswerError(f"got more than {MAX_ANSWER} bytes, want an answer for {MOST_PODS} pods")
            return found

    def _headers(self) -> dict[str, str]:
        if not self.token_file:
            return {}
        try:
            token = Path(self.token_file).read_text(encoding="ascii").strip()
        except (OSError, ValueError):
            token = ""
        if not token or not token.isprintable():
            raise AnswerError("got no token from PINRAIL_PROMETHEUS_TOKEN_FILE, want one line of ASCII")
        return {"Authorization": f"Bearer {token}"}


def _parts(targets: list[Target]) -> Iterator[list[Target]]:
    """Pods for one query each: neighbours in their order, which share namespaces and services."""
    for i in range(0, len(targets), MOST_PODS):
        yield targets[i : i + MOST_PODS]
