"""A progress bar for a terminal; one line every ten percent where there is none."""

import sys
import time
from types import TracebackType
from typing import Self


class ProgressBar:
    """Counts work done and shows how far the work is. Safe to call from several threads: an update lost is redrawn."""

    def __init__(self, label: str, total: int, unit: str = "MB") -> None:
        """`total` is a plain count; it is shown in millions of it, as `unit`."""
        self._label, self._unit, self._total, self._done = label, unit, max(total, 1), 0
        self._started, self._shown = time.monotonic(), -1
        self._terminal = sys.stderr.isatty()

    @property
    def done(self) -> int:
        """The work done, at most all of it: what is done twice counts once."""
        return min(self._done, self._total)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._terminal:
            sys.stderr.write("\n")

    def __call__(self, n: int) -> None:
        self._done += n
        percent = min(100, 100 * self._done // self._total)
        step = 1 if self._terminal else 10
        if percent // step != self._shown:
            self._shown = percent // step
            self._draw(percent)

    def _draw(self, percent: int) -> None:
        rate = self._done / max(time.monotonic() - self._started, 1e-3) / 1e6
        done, total = self._done / 1e6, self._total / 1e6
        text = f"{self._label} {percent:3d}%  {done:.0f} of {total:.0f} {self._unit}  {rate:.0f} {self._unit}/s"
        if self._terminal:
            full = 24 * percent // 100
            sys.stderr.write(f"\r{'█' * full}{'░' * (24 - full)} {text} ")
        else:
            sys.stderr.write(text + "\n")
        sys.stderr.flush()
