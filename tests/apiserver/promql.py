"""Which series and labels an expression reads: what no Prometheus tells. Whether it is one, a real one judges.

It knows expressions as our alerts and dashboards are written: `by` before what it groups, ranges right in functions.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

OF_COUNTERS = frozenset({"rate", "increase"})
_GROUPED = re.compile(r"\bby\s*\(([^)]*)\)")
_SELECTOR = re.compile(
    r'(?:\b(?P<function>\w+)\()?(?<![\w:.])(?P<metric>[A-Za-z_:][\w:]*+)(?!\s*\()(?:\{(?P<matchers>(?:[^"}]|"[^"]*")*)\})?'
    r"(?P<range>\[\w+\])?"
)
_MATCHER = re.compile(r'(?P<label>\w+)\s*(?P<sign>=~|!~|!=|=)\s*"(?P<value>[^"]*)"')
_WORDS = frozenset({"and", "or", "unless"})


@dataclass(frozen=True, slots=True)
class Matcher:
    label: str
    sign: str  # =, !=, =~ or !~
    value: str


@dataclass(frozen=True, slots=True)
class Selector:
    metric: str
    matchers: tuple[Matcher, ...]
    function: str  # that takes its range; empty where it has none
    grouped: frozenset[str]  # labels that the expression groups by


def selectors(expression: str) -> tuple[Selector, ...]:
    """Everything that an expression reads."""
    by = frozenset(label.strip() for group in _GROUPED.findall(expression) for label in group.split(","))
    found = (m for m in _SELECTOR.finditer(_GROUPED.sub("", expression)) if m["metric"] not in _WORDS)
    return tuple(
        Selector(
            m["metric"],
            tuple(Matcher(*parts) for parts in _MATCHER.findall(m["matchers"] or "")),
            (m["function"] or "") if m["range"] else "",
            by,
        )
        for m in found
    )


def problems(expression: str, known: Mapping[str, frozenset[str]], added: frozenset[str]) -> list[str]:
    """What an expression reads that nothing exports.

    Args:
        expression: PromQL.
        known: Names of series, each with its labels.
        added: Labels that whoever scrapes adds.
    """
    found = []
    for s in selectors(expression):
        if s.metric not in known:
            found.append(f"{s.metric} is exported by nothing")
            continue
        labels = known[s.metric] | added
        named = {m.label for m in s.matchers} | s.grouped
        found += [f"{s.metric} has no label {label}" for label in sorted(named - labels)]
        is_counter = s.metric.endswith(("_total", "_bucket", "_sum", "_count"))
        if is_counter and not s.function:
            found.append(f"{s.metric}: a counter is read without a range")
        if is_counter != (s.function in OF_COUNTERS) and s.function:
            found.append(f"{s.metric}: {s.function} wants a {'gauge' if is_counter else 'counter'}")
    return found
