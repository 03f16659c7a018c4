"""A cluster of processes: keeps as many replicas running as there should be, and counts what they report. I/O.

Which number is right is `autoscale.decide`'s to say, here as in Kubernetes.
"""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from pinrail_contract.errors import ModelError
from pinrail_contract.termination import ExitCode

from .. import autoscale
from ..scaling_pace import NO_CHANGES
from ..scaling_policy import ScalingMode
from ..types import InferenceService
from .replica import Replica, free_port, last_words, refresh, start, stop

KILL_AFTER = 10.0  # seconds past the drain time
HANG = 60.0  # seconds without a word that it lives, as a pod's liveness probe has it
_FINAL = (  # trying again cannot help
    ExitCode.MODEL_MISMATCH,
    ExitCode.MANIFEST_MISMATCH,
    ExitCode.ENGINE_MISMATCH,
    ExitCode.USAGE,
)
_BACKOFF = (1.0, 2.0, 5.0, 10.0, 30.0)  # seconds before the n-th restart in a row


@dataclass(slots=True)
class LocalCluster:
    """The replicas of one service."""

    service: InferenceService
    model_dir: Path
    manifest: Path
    logs: Path  # folder
    session: aiohttp.ClientSession
    wanted: int  # replicas
    variables: Mapping[str, str]  # of each, beside this process's own
    replicas: list[Replica] = field(default_factory=list)
    decision: autoscale.Decision | None = None
    _started: int = 0
    _deaths: int = 0  # in a row, since a replica was last ready
    _not_before: float = 0.0  # monotonic seconds of the next start

    def ready(self) -> list[Replica]:
        return [r for r in self.replicas if r.is_ready]

    def starting(self) -> list[Replica]:
        return [r for r in self.replicas if not r.is_ready and not r.is_ending]

    async def tick(self) -> None:
        """One round: bury the dead, ask the living, decide, act.

        Raises ModelError where a replica refused to start for a reason that trying again cannot mend.
        """
        self._bury()
        await asyncio.gather(*(refresh(r, self.session, time.monotonic()) for r in self.replicas))
        self._end_hung(time.monotonic())
        self._deaths = 0 if self.ready() else self._deaths
        self._decide()
        await self._act()

    async def close(self) -> None:
        timeout = self.service.drain_timeout + KILL_AFTER
        await asyncio.gather(*(stop(r, timeout) for r in self.replicas))

    def kill(self) -> None:
        """End all at once, whatever they do; `close` still waits for them."""
        for replica in self.replicas:
            if replica.is_alive:
                replica.process.kill()

    def _end_hung(self, now: float) -> None:
        """One that loads has answered since its port was open; one that never did has its port taken, and ends."""
        for replica in self.replicas:
            if replica.is_alive and not replica.is_ending and 0 < replica.healthy_at < now - HANG:
                replica.process.kill()  # it is buried in the next round, and another one started

    def _bury(self) -> None:
        for dead in [r for r in self.replicas if not r.is_alive]:
            self.replicas.remove(dead)
            if dead.is_ending:
                continue
            if dead.process.returncode in _FINAL:
                raise ModelError(last_words(dead))
            self._not_before = time.monotonic() + _BACKOFF[min(self._deaths, len(_BACKOFF) - 1)]
            self._deaths += 1
            if self._deaths > len(_BACKOFF):
                raise ModelError(f"a replica ended {self._deaths} times in a row; its last words:\n{last_words(dead)}")

    def _decide(self) -> None:
        policy, now = self.service.scaling, time.monotonic()
        if policy is None or policy.mode is ScalingMode.PAUSED:
            return
        self.decision = autoscale.decide(
            policy,
            [autoscale.Report(r.load, now - r.loaded_at) for r in self.ready()],
            current=self.wanted,
            starting=self.wanted - len(self.ready()),
            history=self.decision.history if self.decision else (),
            now=now,
            changes=self.decision.changes if self.decision else NO_CHANGES,
        )
        if policy.mode is ScalingMode.ACTIVE:
            self.wanted = self.decision.replicas

    async def _act(self) -> None:
        kept = [r for r in self.replicas if not r.is_ending]
        for _ in range(len(kept), self.wanted):
            if time.monotonic() >= self._not_before:
                self.replicas.append(await self._start())
        surplus = sorted(kept, key=lambda r: (r.is_ready, r.in_flight))[: max(0, len(kept) - self.wanted)]
        for replica in surplus:
            replica.is_ending, replica.is_ready = True, False
            replica.process.terminate()  # it drains, ends, and is buried

    async def _start(self) -> Replica:
        self._started += 1
        port = free_port()
        spec = self.service.launch(model_dir=str(self.model_dir), manifest=str(self.manifest), port=port)
        return await start(
            spec.args(), port, self.logs / f"{self.service.key.name}-{self._started}.log", self.variables
        )
