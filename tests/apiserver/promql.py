"""A strict reader of the PromQL that alerts and dashboards are written in: what it does not know, it refuses.

It knows selectors with matchers and ranges, functions, aggregations, arithmetic, comparisons and set operators.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

Item = TypeVar("Item")

FUNCTIONS = {
    "rate": 1, "increase": 1, "deriv": 1, "histogram_quantile": 2, "vector": 1,
}  # fmt: skip
"""Functions, and how many arguments each takes."""

OF_COUNTERS = frozenset({"rate", "increase"})
RANGED = OF_COUNTERS | {"deriv"}
AGGREGATIONS = frozenset({"sum", "max", "min", "count", "avg"})
BINARY = ({"or"}, {"and", "unless"}, {"==", "!=", "<=", ">=", "<", ">"}, {"+", "-"}, {"*", "/"})
"""From the loosest to the tightest."""

_TOKEN = re.compile(
    r"""\s*(?:(?P<number>\d+(?:\.\d+)?(?![\w:]))|(?P<name>[A-Za-z_:][\w:]*)|(?P<text>"(?:[^"\\]|\\.)*")"""
    r"""|(?P<range>\[\d+[smhd]\])|(?P<sign>=~|!~|==|!=|<=|>=|[-+*/<>=(){},]))"""
)


class PromqlError(ValueError):
    """The expression, where it stopped being one, and why."""


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
    grouped: frozenset[str]  # labels that aggregations around it group by


@dataclass(slots=True)
class _Reader:
    text: str
    at: int = 0
    found: list[Selector] = field(default_factory=list)
    grouped: tuple[frozenset[str], ...] = ()
    around: str = ""  # the innermost function that is read

    def peek(self) -> tuple[str, str]:
        """Kind and text of the next token; both empty at the end."""
        match = _TOKEN.match(self.text, self.at)
        if match is None:
            if self.text[self.at :].strip():
                raise self.error("want a token")
            return "", ""
        kind = str(match.lastgroup)
        return kind, match[kind]

    def take(self, wanted: str = "") -> str:
        _, seen = self.peek()
        if wanted and seen != wanted:
            raise self.error(f"got {seen!r}, want {wanted!r}")
        match = _TOKEN.match(self.text, self.at)
        if match is None:
            raise self.error("got the end, want more")
        self.at = match.end()
        return seen

    def take_kind(self, wanted: str) -> str:
        kind, seen = self.peek()
        if kind != wanted:
            raise self.error(f"got {seen!r}, want a {wanted}")
        return self.take()

    def error(self, problem: str) -> PromqlError:
        return PromqlError(f"{self.text!r}, at {self.text[self.at : self.at + 20]!r}: {problem}")

    def binary(self, level: int = 0) -> bool:
        """Returns whether the value is a range."""
        if level == len(BINARY):
            return self.one()
        is_range = self.binary(level + 1)
        while self.peek()[1] in BINARY[level]:
            sign = self.take()
            if self.binary(level + 1) or is_range:
                raise self.error(f"a range beside {sign}")
        return is_range

    def one(self) -> bool:
        kind, seen = self.peek()
        if kind == "number":
            self.take()
            return False
        if seen == "(":
            self.take()
            is_range = self.binary()
            self.take(")")
            return is_range
        name = self.take_kind("name")
        if name in AGGREGATIONS:
            return self.aggregation()
        if self.peek()[1] == "(":
            return self.function(name)
        return self.selector(name)

    def aggregation(self) -> bool:
        by: frozenset[str] = frozenset()
        if self.peek()[1] == "by":
            self.take()
            by = frozenset(self.items("(", ")", self.label))
        self.grouped = (*self.grouped, by)
        self.take("(")
        if self.binary():
            raise self.error("a range is summed")
        self.take(")")
        self.grouped = self.grouped[:-1]
        return False

    def function(self, name: str) -> bool:
        if name not in FUNCTIONS:
            raise self.error(f"function {name} is not known")
        outer, self.around = self.around, name
        ranges = list(self.items("(", ")", self.binary))
        self.around = outer
        if len(ranges) != FUNCTIONS[name]:
            raise self.error(f"{name} got {len(ranges)} arguments, want {FUNCTIONS[name]}")
        if ranges[-1] != (name in RANGED):
            raise self.error(f"{name} wants {'a range' if name in RANGED else 'no range'}")
        return False

    def selector(self, metric: str) -> bool:
        matchers = tuple(self.items("{", "}", self.matcher)) if self.peek()[1] == "{" else ()
        is_ranged = self.peek()[0] == "range"
        if is_ranged:
            self.take()
        by = frozenset().union(*self.grouped)
        self.found.append(Selector(metric, matchers, self.around if is_ranged else "", by))
        return is_ranged

    def matcher(self) -> Matcher:
        label, sign = self.label(), self.take_kind("sign")
        if sign not in ("=", "!=", "=~", "!~"):
            raise self.error(f"got {sign!r}, want a matcher")
        value = self.take_kind("text")[1:-1]
        if "~" in sign:
            re.compile(value)
        return Matcher(label, sign, value)

    def label(self) -> str:
        name = self.take_kind("name")
        if ":" in name:
            raise self.error(f"{name} is no label")
        return name

    def items(self, opening: str, closing: str, item: Callable[[], Item]) -> Iterator[Item]:
        """What stands between two signs, with commas between."""
        self.take(opening)
        while self.peek()[1] != closing:
            yield item()
            if self.peek()[1] != closing:
                self.take(",")
        self.take(closing)


def selectors(expression: str) -> tuple[Selector, ...]:
    """Everything that an expression reads; raises PromqlError where it is none."""
    reader = _Reader(expression)
    is_range = reader.binary()
    if is_range or reader.peek()[1]:
        raise reader.error("got a range or more, want the end")
    return tuple(reader.found)


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
