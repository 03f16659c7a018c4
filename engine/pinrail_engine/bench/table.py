"""Figures as text: a column per run, and each further one's ratio to the first. Pure."""

from collections.abc import Callable, Iterator, Sequence
from io import StringIO

from rich.console import Console
from rich.table import Table

from .records import Ending
from .report import OUTPUT_BOUNDS, PROMPT_BOUNDS, Figures, Latencies, Quantiles, buckets
from .slo import Slo

_WIDTH = 400  # characters: lines are never folded; the terminal may do that
_MEASURES = ("ttft", "itl", "tpot", "e2e", "queue")

Show = Callable[[float], str]
_Row = tuple[str, list[float | None], Show]  # label, a value per run


def render(runs: Sequence[Figures], slo: Slo | None = None) -> str:
    """Args: runs: at least one; the first is what the others are compared with."""
    table = grid([name for i, run in enumerate(runs) for name in ((run.name, "") if i else (run.name,))])
    for section in _sections(runs, slo):
        rows = [row for row in section if any(value is not None for value in row[1])]
        for row in rows:
            table.add_row(*_cells(row))
        if rows:
            table.add_row()
    return "\n".join([*lines_of(table), *_errors(runs)])


def grid(names: Sequence[str]) -> Table:
    """A column of labels, and one for each name; to be filled, and shown with `lines_of`."""
    table = Table(box=None, pad_edge=False, header_style="", padding=(0, 2, 0, 0))
    table.add_column("", justify="left", no_wrap=True)
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def lines_of(table: Table) -> list[str]:
    out = StringIO()
    Console(file=out, width=_WIDTH, color_system=None).print(table)
    return [line.rstrip() for line in out.getvalue().rstrip().splitlines()]


def _cells(row: _Row) -> Iterator[str]:
    label, values, show = row
    yield label
    for i, value in enumerate(values):
        yield "-" if value is None else show(value)
        if i:
            yield ratio(value, values[0])


def ratio(value: float | None, first: float | None) -> str:
    """Such as `0.48x`; nothing where there is nothing to compare."""
    return "" if value is None or not first else f"{value / first:.2f}x"


def seconds(value: float) -> str:
    return f"{value * 1e3:.2f} ms" if value < 1 else f"{value:.3f} s"


def _number(value: float) -> str:
    return f"{value:,.0f}"


def _rate(value: float) -> str:
    return f"{value:,.2f}/s"


def _percent(value: float) -> str:
    return f"{value * 100:.1f} %"


def _index(value: float) -> str:
    return f"{value:.4f}"


def _sections(runs: Sequence[Figures], slo: Slo | None) -> Iterator[list[_Row]]:
    def row(label: str, value: Callable[[Figures], float | None], show: Show) -> _Row:
        return label, [value(run) for run in runs], show

    yield [
        row("requests", lambda f: f.requests, _number),
        *(
            row(f"  {ending}", lambda f, e=ending: f.endings[e], _number)  # type: ignore[misc]
            for ending in Ending
            if any(f.endings[ending] for f in runs)
        ),
        row("time", lambda f: f.seconds, seconds),
        row("tokens in", lambda f: f.input_tokens_per_second, _rate),
        row("tokens out", lambda f: f.output_tokens_per_second, _rate),
        row("requests", lambda f: f.requests_per_second, _rate),
        row(f"goodput ({slo})", lambda f: f.goodput, _rate),
    ]
    yield [
        row("fairness (Jain)", lambda f: f.fairness, _index),
        row("prefix hits", lambda f: f.hit_rate, _percent),
        row("  of a cache without bounds", lambda f: f.oracle_hit_rate, _percent),
        row("tokens recomputed", lambda f: f.recomputed_tokens, _number),
        row("tokens of cancelled requests", lambda f: f.cancelled_tokens, _number),
        row("rows nobody wanted", lambda f: f.surplus_rows, _number),
        row("preemptions", lambda f: f.preemptions, _number),
        row("steps", lambda f: f.steps, _number),
    ]
    for measure in _MEASURES:
        yield [
            row(f"{measure.upper()} {q}", lambda f, m=measure, q=q: _pick(f.overall, m, q), seconds)  # type: ignore[misc]
            for q in ("p50", "p90", "p99", "max")
        ]
    yield [
        row(f"TTFT {q}, prompt {name}", lambda f, n=name, q=q: _pick(f.by_prompt.get(n), "ttft", q), seconds)  # type: ignore[misc]
        for name in buckets(PROMPT_BOUNDS)
        for q in ("p50", "p99")
    ]
    yield [
        row(f"E2E {q}, output {name}", lambda f, n=name, q=q: _pick(f.by_output.get(n), "e2e", q), seconds)  # type: ignore[misc]
        for name in buckets(OUTPUT_BOUNDS)
        for q in ("p50", "p99")
    ]


def _pick(latencies: Latencies | None, measure: str, quantile: str) -> float | None:
    values: Quantiles | None = getattr(latencies, measure, None)
    return None if values is None else float(getattr(values, quantile))


def _errors(runs: Sequence[Figures]) -> Iterator[str]:
    for run in runs:
        for said, times in run.errors.items():
            yield f"{run.name}: {times} times: {said}"
