"""Runs as a picture, PNG or SVG: how first tokens, gaps and the queue came out. Needs matplotlib (extra `bench`)."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from .errors import BenchError
from .records import Run
from .report import PROMPT_BOUNDS, bucket, buckets, quantiles

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FORMATS = (".png", ".svg")

_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#000000")
"""Okabe & Ito 2008, https://jfly.uni-koeln.de/color/: told apart by readers who do not see all colours."""

_LINES = ("-", "--", "-.", ":")
_DPI = 150
_MOST_POINTS = 2000  # of a curve


def plot(runs: Sequence[Run], title: str, path: Path) -> None:
    """Write one figure of four panels. Raises BenchError where matplotlib is missing.

    Args:
        path: Its suffix, one of `FORMATS`, says the format.
    """
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as e:
        raise BenchError(f"plots need {e.name}, which is not installed here: pip install 'pinrail[bench]'") from e
    figure = Figure(figsize=(12, 8), layout="constrained")
    panels: Any = figure.subplots(2, 2)
    figure.suptitle(title)
    _cdf(panels[0, 0], runs, [_first_tokens(run) for run in runs], "time to first token")
    _cdf(panels[0, 1], runs, [_gaps(run) for run in runs], "gap between tokens")
    _load(panels[1, 0], runs)
    _by_prompt(panels[1, 1], runs)
    figure.savefig(path, dpi=_DPI)


def _style(i: int) -> dict[str, Any]:
    return {"color": _COLOURS[i % len(_COLOURS)], "linestyle": _LINES[i % len(_LINES)], "linewidth": 1.6}


def _first_tokens(run: Run) -> NDArray[np.float64]:
    return np.array([r.ttft for r in run.records if r.ttft is not None], np.float64)


def _gaps(run: Run) -> NDArray[np.float64]:
    return np.concatenate([np.frombuffer(r.gaps, np.float64) for r in run.records if r.gaps] or [np.empty(0)])


def _cdf(axes: "Axes", runs: Sequence[Run], values: Sequence[NDArray[np.float64]], what: str) -> None:
    for i, (run, column) in enumerate(zip(runs, values, strict=True)):
        known = np.sort(column)
        if known.size:
            kept = np.unique(np.linspace(0, known.size - 1, min(known.size, _MOST_POINTS)).astype(int))
            axes.step(known[kept] * 1e3, 100 * (kept + 1) / known.size, where="post", label=run.name, **_style(i))
    axes.set(title=f"{what.capitalize()}, cumulative", xlabel=f"{what} (ms)", ylabel="share (%)", ylim=(0, 101))
    if axes.lines:
        _log_scale(axes, "x")
    _legend(axes)
    axes.grid(alpha=0.3)


def _legend(axes: "Axes") -> None:
    if axes.get_legend_handles_labels()[0]:
        axes.legend()


def _log_scale(axes: "Axes", which: Literal["x", "y"]) -> None:
    """Ticks at 1, 2, 5, 10 … in plain numbers, from a thousand on in thousands."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axes.set(**{f"{which}scale": "log"})
    axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=20))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}" if value < 1e3 else f"{value / 1e3:g}k"))


def _load(axes: "Axes", runs: Sequence[Run]) -> None:
    """The queue and the cache over time; requests in flight where the server tells neither."""
    if any(run.samples for run in runs):
        _queue_and_cache(axes, runs)
    else:
        _in_flight(axes, runs)
    axes.set(xlabel="time (s)")
    axes.grid(alpha=0.3)


def _queue_and_cache(axes: "Axes", runs: Sequence[Run]) -> None:
    cache = axes.twinx()
    for i, run in enumerate(runs):
        times = [s.at for s in run.samples]
        axes.plot(times, [s.waiting for s in run.samples], label=run.name, **_style(i))
        used = [100 * s.kv_used for s in run.samples]
        cache.plot(times, used, **{**_style(i), "linewidth": 1.0, "alpha": 0.45})
    axes.set(title="Queue (lines) and KV cache in use (faint)", ylabel="requests waiting")
    cache.set(ylabel="KV blocks held (%)", ylim=(0, 101))
    axes.set_ylim(bottom=0)
    _legend(axes)


def _in_flight(axes: "Axes", runs: Sequence[Run]) -> None:
    for i, run in enumerate(runs):
        changes = sorted(
            change for r in run.records if r.ended_at is not None for change in ((r.arrival, 1), (r.ended_at, -1))
        )
        counts = np.cumsum([step for _, step in changes])
        axes.step([at for at, _ in changes], counts, where="post", label=run.name, **_style(i))
    axes.set(title="Requests in flight", ylabel="requests")
    _legend(axes)


def _by_prompt(axes: "Axes", runs: Sequence[Run]) -> None:
    """Median and 99th percentile of the first token's wait, by the prompt's length."""
    names = [
        n for n in buckets(PROMPT_BOUNDS) if any(bucket(r.prompt_len, PROMPT_BOUNDS) == n for r in runs[0].records)
    ]
    width = 0.8 / len(runs)
    for i, run in enumerate(runs):
        for j, name in enumerate(names):
            found = quantiles(r.ttft for r in run.records if bucket(r.prompt_len, PROMPT_BOUNDS) == name)
            if found is not None:
                at, colour = j + (i - (len(runs) - 1) / 2) * width, _COLOURS[i % len(_COLOURS)]
                label = run.name if j == 0 else None
                axes.bar(at, found.p99 * 1e3, width * 0.9, color=colour, alpha=0.45)
                axes.bar(at, found.p50 * 1e3, width * 0.9, color=colour, label=label)
    axes.set(title="Time to first token: median (full) and p99 (faint)", xlabel="prompt (tokens)")
    axes.set(ylabel="time to first token (ms)")
    _log_scale(axes, "y")
    axes.set_xticks(range(len(names)), names)
    axes.grid(alpha=0.3, axis="y")
    _legend(axes)
