"""What a person sees while a local service runs: a bar while replicas load, then one line kept up to date."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from .cluster import LocalCluster
from .replica import loading


@dataclass(slots=True)
class View:
    """Draws on a terminal; where there is none, prints a line whenever something other than a rate changes."""

    console: Console
    _live: Live | None = None
    _printed: str = ""
    _generated: float = 0.0  # tokens, at the last draw
    _drawn_at: float = field(default=0.0)  # monotonic seconds

    @contextmanager
    def open(self) -> Iterator[None]:
        if not self.console.is_terminal:
            yield
            return
        with Live(console=self.console, refresh_per_second=4, transient=True) as self._live:
            yield
        self._live = None

    def draw(self, cluster: LocalCluster, now: float) -> None:
        rate = self._rate(cluster, now)
        if self._live is not None:
            self._live.update(Group(*_bars(cluster), Text(f"{_state(cluster)}  {_load(cluster)}  {rate:.0f} tok/s")))
            return
        line = "  ".join([_state(cluster), *(label for label, _ in _steps(cluster))])
        if line != self._printed:
            self.console.print(line, highlight=False)
            self._printed = line

    def _rate(self, cluster: LocalCluster, now: float) -> float:
        """Tokens per second since the last draw."""
        total = sum(r.generated for r in cluster.replicas)
        rate = (total - self._generated) / max(now - self._drawn_at, 1e-3)
        self._generated, self._drawn_at = total, now
        return max(rate, 0.0)


def _state(cluster: LocalCluster) -> str:
    why = f"  {cluster.decision.reason}" if cluster.decision else ""
    return f"{cluster.service.key.name}  {len(cluster.ready())}/{cluster.wanted} ready{why}"


def _load(cluster: LocalCluster) -> str:
    loads = [r.load for r in cluster.ready() if r.load]
    running, waiting = sum(x.running for x in loads), sum(x.waiting for x in loads)
    used, blocks = sum(x.used_blocks for x in loads), sum(x.kv_blocks for x in loads)
    return f"running {running}  waiting {waiting}  cache {100 * used / max(blocks, 1):.0f}%"


def _steps(cluster: LocalCluster) -> list[tuple[str, int | None]]:
    return [loading(r) for r in cluster.starting()]


def _bars(cluster: LocalCluster) -> list[RenderableType]:
    bars: list[RenderableType] = []
    for label, percent in _steps(cluster):
        grid = Table.grid(padding=(0, 1))
        bar = ProgressBar(100, percent or 0, width=32, pulse=percent is None)
        grid.add_row(Text(f"{label:<9}"), bar, Text("" if percent is None else f"{percent}%"))
        bars.append(grid)
    return bars
