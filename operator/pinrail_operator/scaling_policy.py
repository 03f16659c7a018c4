"""How replicas follow the load: `spec.scaling`, parsed. Pure."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Self

from .errors import SpecError
from .fields import Fields
from .scaling_pace import Pace

MAX_REPLICAS = 1000
_AT_ONCE, _WHEN_QUIET = Pace(), Pace(window=300)
_PACE_FIELDS = {"stabilizationWindowSeconds", "policies", "selectPolicy", "tolerance"}


class ScalingMode(StrEnum):
    ACTIVE = "Active"  # scales
    RECOMMEND = "Recommend"  # only reports what it would do
    PAUSED = "Paused"  # neither


class MetricsSource(StrEnum):
    PODS = "Pods"  # their own metrics pages
    PROMETHEUS = "Prometheus"  # the server that the operator is told of


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingPolicy:
    """How far and how fast replicas follow the load (`spec.scaling`)."""

    min_replicas: int
    max_replicas: int
    mode: ScalingMode = ScalingMode.ACTIVE
    up_target: float = 0.85  # share of KV blocks or slots above which replicas are added
    down_target: float = 0.70  # share that fewer replicas must not exceed
    queue_depth: int = 5  # requests waiting in one replica that forbid scaling down
    up: Pace = _AT_ONCE  # how a higher demand adds replicas
    down: Pace = _WHEN_QUIET  # how a lower demand removes them
    source: MetricsSource = MetricsSource.PODS  # where the figures are asked for
    stale_after: float = 30.0  # seconds after which a replica's figures count as missing

    def __post_init__(self) -> None:
        if not 1 <= self.min_replicas <= self.max_replicas:
            seen = f"got minReplicas {self.min_replicas} and maxReplicas {self.max_replicas}"
            raise SpecError("spec.scaling", f"{seen}, want minReplicas <= maxReplicas")
        if not 0 < self.down_target < self.up_target <= 1:
            seen = f"got scaleDownUtilization {self.down_target:g} and cacheUtilization {self.up_target:g}"
            raise SpecError("spec.scaling.targets", f"{seen}, want 0 < scaleDownUtilization < cacheUtilization <= 1")

    @classmethod
    def parse(cls, f: Fields) -> Self:
        targets = f.child("targets", {"cacheUtilization", "scaleDownUtilization", "queueDepth"})
        behavior = f.child("behavior", {"scaleUp", "scaleDown"})
        metrics = f.child("metrics", {"source", "staleAfterSeconds"})
        return cls(
            min_replicas=f.integer("minReplicas", least=1, most=MAX_REPLICAS, default=1),
            max_replicas=f.integer("maxReplicas", least=1, most=MAX_REPLICAS),
            mode=f.choice("mode", ScalingMode.ACTIVE),
            up_target=_share(targets, "cacheUtilization", "0.85"),
            down_target=_share(targets, "scaleDownUtilization", "0.70"),
            queue_depth=targets.integer("queueDepth", least=1, most=10**6, default=5),
            up=Pace.parse(behavior.child("scaleUp", _PACE_FIELDS), window=_AT_ONCE.window),
            down=Pace.parse(behavior.child("scaleDown", _PACE_FIELDS), window=_WHEN_QUIET.window),
            source=metrics.choice("source", MetricsSource.PODS),
            stale_after=metrics.integer("staleAfterSeconds", least=10, most=3600, default=30),
        )

    def clamp(self, replicas: int) -> int:
        return max(self.min_replicas, min(replicas, self.max_replicas))


def _share(f: Fields, name: str, default: str) -> float:
    wanted = f'a decimal string of 0 to 1 such as "{default}"'
    return float(f.text(name, pattern=r"0\.[0-9]{1,3}|1(\.0{1,3})?", wanted=wanted, default=default))
