"""What is remembered of one service from one reconcile to the next. Pure.

All of it may be lost: then nothing is scaled down for a whole window, and digests are asked for again.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pinrail_contract.metrics import LoadSample
from pinrail_contract.runtime import Runtime

from .autoscale import Decision, Report, Want, decide
from .observed import Observed
from .quarantine import BARRED
from .runtimes import UNHEARD, Runtimes
from .scaling_pace import NO_CHANGES
from .scaling_policy import ScalingMode
from .types import InferenceService

FRESH = 30.0  # seconds during which a load still says which pod is the emptiest

PRUNED = 3600.0  # seconds until a status that was not kept as a whole is written again: the CRD may be newer by then

Status = Mapping[str, Any]


@dataclass(slots=True)
class Memory:
    history: tuple[Want, ...] = ()
    loads: dict[str, tuple[LoadSample, float]] = field(default_factory=dict)  # pod -> its last load, and when
    digests: dict[str, str] = field(default_factory=dict)  # pod -> what it reported; fixed for a pod's life
    fetched: dict[str, int] = field(default_factory=dict)  # pod that fetches its model -> tenths of it
    runtimes: dict[str, Runtime] = field(default_factory=dict)  # pod -> its engine and numerics; as fixed
    errors: dict[str, str] = field(default_factory=dict)  # pod -> why it was not read, the last time
    unread: dict[str, str] = field(default_factory=dict)  # pod -> the kind of that, where a status may tell it
    unused: str = ""  # the last that was told of fields without effect
    pruned: tuple[Status, Status, float] | None = None  # the last status, where less of it was kept; that; and when
    last: Decision | None = None
    known: Observed | None = None  # what a whole look found, while nothing was to be done
    known_of: tuple[int, float] = (0, 0.0)  # the service's generation then, and when

    def note(
        self,
        reports: Mapping[str, Report],
        digests: Mapping[str, str],
        observed: Observed,
        now: float,
        runtimes: Runtimes = UNHEARD,
    ) -> None:
        """Take in what pods said, each so long ago, and forget those that are gone."""
        alive = {p.name for p in observed.pods}
        loads = self.loads | {name: (r.load, now - r.age) for name, r in reports.items() if r.load is not None}
        self.loads = {name: seen for name, seen in loads.items() if name in alive}
        self.digests = {name: digest for name, digest in (self.digests | dict(digests)).items() if name in alive}
        self.runtimes = {name: said for name, said in (self.runtimes | dict(runtimes)).items() if name in alive}

    def decide(self, service: InferenceService, observed: Observed, now: float) -> Decision | None:
        """The scaling decision of this moment, or None where there is nothing to decide."""
        policy, workload = service.scaling, observed.workload
        if policy is None or workload is None or policy.mode is ScalingMode.PAUSED or service.paused:
            return None
        ready = [p for p in observed.ready_pods if p.mark != BARRED]  # those count as if they had yet to come
        reports = [self._report(p.name, now) for p in ready]
        starting = max(0, workload.replicas - len(ready))
        self.last = decide(
            policy,
            reports,
            current=workload.replicas,
            starting=starting,
            history=self.history,
            now=now,
            changes=self.last.changes if self.last is not None else NO_CHANGES,
        )
        self.history = self.last.history
        return self.last

    def keep(self, service: InferenceService, observed: Observed | None, now: float) -> None:
        """Remember a look after which nothing was to be done, None after any other; its age is the last whole one's."""
        if self.known is None:
            self.known_of = (service.generation, now)
        self.known = observed

    def trusted(self, service: InferenceService, now: float, longest: float) -> Observed | None:
        """What need not be read again: of this generation, and not older than `longest` seconds."""
        generation, at = self.known_of
        if self.known is None or generation != service.generation or now - at >= longest:
            self.known = None
        return self.known

    def wrote(self, status: Status, kept: Status, now: float) -> None:
        """Take in what the API server kept of a status: not what a CRD that is older than this operator lacks."""
        self.pruned = (status, kept, now) if kept != status else None

    def is_written(self, status: Status, previous: Status, now: float) -> bool:
        """Whether writing `status` in place of `previous` would change nothing."""
        if status == previous or self.pruned is None:
            return status == previous
        written, kept, at = self.pruned
        return (status, previous) == (written, kept) and now - at < PRUNED

    def loads_at(self, now: float) -> dict[str, LoadSample]:
        """What was said in the last `FRESH` seconds, by pod."""
        return {pod: load for pod, (load, at) in self.loads.items() if now - at <= FRESH}

    def _report(self, pod: str, now: float) -> Report:
        load, at = self.loads.get(pod, (None, now))
        return Report(load, now - at)
