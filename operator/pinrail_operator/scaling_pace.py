"""How fast replicas may be added or removed: `behavior.scaleUp` and `behavior.scaleDown` of `spec.scaling`. Pure.

Words, bounds and arithmetic are those of the Kubernetes HPA v2. Two defaults are not: without policies nothing limits a
change, and no tolerance is given, since two targets already keep the number from swinging.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Self

from .fields import Fields

LONGEST_PERIOD = 1800  # seconds
_MOST_POLICIES = 8


class PolicyType(StrEnum):
    PODS = "Pods"  # so many replicas
    PERCENT = "Percent"  # such a share of those at the period's start


class SelectPolicy(StrEnum):
    """Which of several policies holds."""

    MAX = "Max"  # the one that allows the most change
    MIN = "Min"  # the one that allows the least
    DISABLED = "Disabled"  # none: this direction is never taken


@dataclass(frozen=True, slots=True)
class Change:
    """The number of replicas changed, by whomever."""

    at: float  # seconds, on the caller's monotonic clock
    replicas: int  # added; below 0, removed


@dataclass(frozen=True, slots=True)
class Changes:
    """How the number of replicas has moved, as far as it was watched."""

    current: int | None = None  # the last number that was seen
    recent: tuple[Change, ...] = ()  # oldest first

    def seen(self, current: int, now: float) -> Self:
        """The same once there are `current` replicas; what no policy can count any more is forgotten."""
        kept = tuple(c for c in self.recent if now - LONGEST_PERIOD < c.at <= now)
        moved = 0 if self.current is None else current - self.current
        return type(self)(current, (*kept, Change(now, moved)) if moved else kept)

    def added(self, seconds: float, now: float) -> int:
        """Replicas that were added in the last so many seconds; removals do not make up for them."""
        return sum(c.replicas for c in self.recent if c.replicas > 0 and c.at > now - seconds)

    def removed(self, seconds: float, now: float) -> int:
        return -sum(c.replicas for c in self.recent if c.replicas < 0 and c.at > now - seconds)


NO_CHANGES = Changes()


@dataclass(frozen=True, slots=True)
class Policy:
    """One member of `policies`."""

    type: PolicyType
    value: int  # replicas, or percent
    period: int  # seconds

    @classmethod
    def parse(cls, f: Fields) -> Self:
        kind = f.choice("type", PolicyType.PODS)
        return cls(kind, f.integer("value", least=1, most=1000), f.integer("periodSeconds", least=1, most=1800))

    def highest(self, before: int) -> int:
        """The most replicas there may be, of `before` at the period's start: shares are rounded up."""
        return before + self.value if self.type is PolicyType.PODS else -(-before * (100 + self.value) // 100)

    def lowest(self, before: int) -> int:
        """The fewest there may be: shares are rounded down, so that one of few can be removed at all."""
        return before - self.value if self.type is PolicyType.PODS else before * (100 - self.value) // 100

    def __str__(self) -> str:
        unit = "%" if self.type is PolicyType.PERCENT else ""
        return f"{self.value}{unit} in {self.period} s"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """One direction of `behavior`."""

    window: int = 0  # seconds that a demand must last
    policies: tuple[Policy, ...] = ()
    select: SelectPolicy = SelectPolicy.MAX
    tolerance: float = 0.0  # share of the target by which the demand may pass it and nothing happens

    @classmethod
    def parse(cls, f: Fields, window: int) -> Self:
        """`window` is the direction's default."""
        fields = {"type", "value", "periodSeconds"}
        return cls(
            window=f.integer("stabilizationWindowSeconds", least=0, most=3600, default=window),
            policies=tuple(Policy.parse(p) for p in f.children("policies", fields, _MOST_POLICIES)),
            select=f.choice("selectPolicy", SelectPolicy.MAX),
            tolerance=_tolerance(f),
        )

    def most(self, current: int, changes: Changes, now: float) -> int | None:
        """The number of replicas that may be added up to, never below `current`; None without a limit."""
        if self.select is SelectPolicy.DISABLED:
            return current
        limits = [p.highest(current - changes.added(p.period, now)) for p in self.policies]
        chosen = max(limits, default=None) if self.select is SelectPolicy.MAX else min(limits, default=None)
        return None if chosen is None else max(current, chosen)

    def fewest(self, current: int, changes: Changes, now: float) -> int:
        """The number of replicas that may be removed down to, never above `current`; 0 without a limit."""
        if self.select is SelectPolicy.DISABLED:
            return current
        limits = [p.lowest(current + changes.removed(p.period, now)) for p in self.policies]
        chosen = min(limits, default=0) if self.select is SelectPolicy.MAX else max(limits, default=0)
        return min(current, max(0, chosen))

    def __str__(self) -> str:
        """What limits it; empty where nothing does."""
        if self.select is SelectPolicy.DISABLED:
            return "selectPolicy is Disabled"
        if not self.policies:
            return ""
        word = "" if len(self.policies) == 1 else "the most of " if self.select is SelectPolicy.MAX else "the least of "
        return f"policies allow {word}{', '.join(map(str, self.policies))}"


def _tolerance(f: Fields) -> float:
    wanted = 'a decimal string of 0 to below 1 such as "0.1"'
    return float(f.text("tolerance", pattern=r"0(\.[0-9]{1,3})?", wanted=wanted, default="0", most=5))
