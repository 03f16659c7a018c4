"""Figures of the fixed workloads as text: medians and spreads, a column per server, ratios to the first. Pure."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from .fixed import Fixed, jobs
from .spread import Column, Spread
from .table import grid, lines_of, ratio


class Unit(NamedTuple):
    word: str
    scale: float  # what a value is multiplied with before it is shown
    decimals: int

    def number(self, value: float) -> str:
        return f"{value * self.scale:,.{self.decimals}f}"


_RATE, _BYTES = Unit("tok/s", 1.0, 1), Unit("MB", 1e-6, 0)
_SECONDS, _MILLISECONDS = Unit("s", 1.0, 3), Unit("ms", 1e3, 1)


def unit_of(figure: str, value: float) -> Unit:
    """By the end of the figure's name."""
    if figure.endswith("tokens_per_second"):
        return _RATE
    if figure.endswith("bytes"):
        return _BYTES
    return _SECONDS if value >= 1 else _MILLISECONDS


def label_of(figure: str) -> str:
    """Its name without the unit."""
    for unit in ("tokens_per_second", "seconds", "bytes"):
        figure = figure.removesuffix(unit).rstrip("_")
    return figure.replace("_", " ") or "time"


def title_of(section: str) -> str:
    """| section    | title                          |
    |------------|--------------------------------|
    | a workload | how many tokens it is made of  |
    | start      | what is measured from where    |
    | end        | when the memory was looked at  |
    """
    if section == "start":
        return "start of the process to first token (32 in)"
    if section == "end":
        return "memory after all runs"
    made = jobs(Fixed(section), 1)
    tokens_in, tokens_out = sum(j.prompt_len for j in made), sum(j.output_len for j in made)
    at_once = f"{len(made)} at once, " if len(made) > 1 else ""
    return f"{section} ({at_once}{tokens_in:,} in, {tokens_out:,} out)"


def render(columns: Sequence[Column], runs: int) -> str:
    """Args: columns: at least one; the first is what the others are compared with."""
    table = grid(list(_names(columns, runs)))
    for section in _union([list(column.sections) for column in columns]):
        per_column = [column.sections.get(section, {}) for column in columns]
        table.add_row(title_of(section))
        for figure in _union([list(spreads) for spreads in per_column]):
            table.add_row(f"  {label_of(figure)}", *_cells(figure, [spreads.get(figure) for spreads in per_column]))
        table.add_row()
    return "\n".join([*map(_about, columns), "", *lines_of(table)])


def _names(columns: Sequence[Column], runs: int) -> Iterator[str]:
    for i, column in enumerate(columns):
        yield column.name
        yield f"least … most of {runs}"
        if i:
            yield f"to {columns[0].name}"


def _cells(figure: str, values: Sequence[Spread | None]) -> Iterator[str]:
    first = values[0].median if values[0] else None
    for i, spread in enumerate(values):
        if spread is None:
            yield from ("-", "")
        else:
            unit = unit_of(figure, spread.median)
            yield f"{unit.number(spread.median)} {unit.word}"
            yield f"{unit.number(spread.least)} … {unit.number(spread.most)}"
        if i:
            yield ratio(spread.median if spread else None, first)


def _about(column: Column) -> str:
    return f"{column.name}: {', '.join(f'{key} {value}' for key, value in column.about.items() if value)}"


def _union(lists: Sequence[Sequence[str]]) -> list[str]:
    """Whatever is in any of them, once, in the order of where it first stands; `end` comes last."""
    every = list(dict.fromkeys(name for names in lists for name in names))
    return sorted(every, key=lambda name: name == "end")
