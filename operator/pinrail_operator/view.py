"""All that a status is computed from, and what it says of itself. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from pinrail_contract import metrics
from pinrail_contract.launch import Verification

from . import quarantine
from .autoscale import Decision
from .checks import Blocker
from .failures import Failure, first_failure
from .fetching import fetching_pods, progress
from .observed import Observed, Pod
from .plan import Plan, is_rolled_out
from .rollout import PROCEED, Course
from .runtimes import Runtimes, unreported
from .types import InferenceService


@dataclass(frozen=True, slots=True)
class Condition:
    type: str
    status: str  # True, False or Unknown
    reason: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """All that a status is computed from."""

    service: InferenceService
    observed: Observed
    target: str  # the revision that the spec asks for; empty where the manifest is not known
    blocker: Blocker | None
    decision: Decision | None
    digests: Mapping[str, str] = field(
        default_factory=dict
    )  # pod -> the manifest digest that it verified, or FILES_DIFFER
    fetched: Mapping[str, int] = field(default_factory=dict)  # pod that fetches its model -> tenths of it
    runtimes: Runtimes = field(default_factory=dict)  # pod -> the engine and the numerics that it reported
    unread: Mapping[str, str] = field(default_factory=dict)  # pod -> the kind of why its load is not known
    done: Plan = field(default_factory=Plan)  # what was just carried out
    is_scaled: bool = False  # whether replicas are written, though something else was refused, which `blocker` says
    course: Course = PROCEED  # how the roll-out is helped along
    is_awaiting: bool = False  # what blocks may be gone in a moment; `render` says so

    @property
    def current_pods(self) -> tuple[Pod, ...]:
        """Pods of the revision that the spec asks for."""
        return tuple(p for p in self.observed.pods if self.target and p.revision == self.target)

    @property
    def ready_current(self) -> tuple[Pod, ...]:
        return tuple(p for p in self.current_pods if p.is_ready)

    @property
    def differing(self) -> tuple[Pod, ...]:
        """Ready replicas that serve other files than the manifest's, as verification that only warns lets them."""
        return tuple(p for p in self.ready_current if self.digests.get(p.name) == metrics.FILES_DIFFER)

    @property
    def wrong(self) -> tuple[quarantine.Wrong, ...]:
        """Ready replicas of the wanted revision that report something else than their pin."""
        return tuple(w for w in self._all_wrong if self.target and w.pod.revision == self.target)

    @property
    def _all_wrong(self) -> tuple[quarantine.Wrong, ...]:
        return quarantine.wrong_pods(self.observed, self.digests, self.runtimes)

    @property
    def unreported(self) -> tuple[tuple[str, ...], int]:
        """Fields that are pinned and that ready replicas of the wanted revision do not report; how many do not."""
        return unreported(self.observed, self.ready_current, self.runtimes)

    @property
    def has_unheard(self) -> bool:
        """Whether some ready replica is yet to say what its manifest pins, since it has not answered at all."""
        ready = [p for p in self.observed.ready_pods if p.name not in self.runtimes]
        return unreported(self.observed, ready, self.runtimes)[1] > 0

    @property
    def quarantined(self) -> tuple[Pod, ...]:
        """Pods of the wanted revision that were taken out of service."""
        return tuple(p for p in self.observed.quarantined if self.target and p.revision == self.target)

    @property
    def tolerates(self) -> bool:
        """Whether what differs is served all the same."""
        return self.service.verification is Verification.WARN

    @property
    def failure(self) -> Failure | None:
        return first_failure(self.current_pods)

    @property
    def fetching(self) -> tuple[Pod, ...]:
        """Pods of the wanted revision that are fetching their model."""
        return fetching_pods(self.observed, self.target)

    @property
    def progress(self) -> str:
        """How far those are; empty where there is none."""
        return progress(self.fetching, self.fetched, self.observed.manifest)

    @property
    def is_applying(self) -> bool:
        """What was observed is about to change, since something was just applied; the scaler's work is no change."""
        scales = self.done.scale is not None and self.decision is None
        return bool(self.done.policies or self.done.apply or self.done.settle or self.done.marks) or scales

    @property
    def is_at_rest(self) -> bool:
        """None is asked for, and none is left."""
        return self.service.least_replicas == 0 and not self.observed.pods

    @property
    def is_rolled_out(self) -> bool:
        """By the pods themselves while the Deployment's counts are of an older spec, as after each scaling."""
        workload, pods = self.observed.workload, self.observed.pods
        if workload is None or workload.is_current or workload.revision != self.target:
            return is_rolled_out(workload, self.target)
        return bool(pods) and all(p.revision == self.target for p in pods)

    @property
    def verified(self) -> int:
        """Ready replicas that report the pinned digest, and nothing else than it pins."""
        pinned, wrong = self.service.model.digest, {w.pod.name for w in self._all_wrong}
        return sum(self.digests.get(p.name) == pinned for p in self.observed.ready_pods if p.name not in wrong)


def written(moment: datetime) -> str:
    """As Kubernetes writes times."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
