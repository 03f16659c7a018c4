"""Watches that end are begun anew, for a while; a signal ends the wait between."""

import asyncio
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from pinrail_operator import run
from pinrail_operator.settings import Settings


class Watches:
    """Each run fails or, at None, ends as on a signal."""

    def __init__(self, *outcomes: Exception | None) -> None:
        self._outcomes: Iterator[Exception | None] = iter(outcomes)
        self.begun = 0

    async def __call__(self, *_: Any) -> None:
        self.begun += 1
        outcome = next(self._outcomes)
        if outcome is not None:
            raise outcome


def watched(monkeypatch: pytest.MonkeyPatch, *outcomes: Exception | None, pause: float = 0.0) -> Watches:
    watches = Watches(*outcomes)
    monkeypatch.setattr(run, "_kopf", watches)
    monkeypatch.setattr(run, "WATCH_PAUSES", (pause,) * len(run.WATCH_PAUSES))
    return watches


async def test_watches_that_fail_are_begun_anew_until_a_signal_ends_them(monkeypatch: pytest.MonkeyPatch) -> None:
    watches = watched(monkeypatch, RuntimeError("429"), RuntimeError("500"), None)
    await run._watch(Settings(), None)  # type: ignore[arg-type]
    assert watches.begun == 3


async def test_watches_that_fail_each_time_fail_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    watches = watched(monkeypatch, *[RuntimeError("403")] * 9)
    with pytest.raises(RuntimeError, match="403"):
        await run._watch(Settings(), None)  # type: ignore[arg-type]
    assert watches.begun == len(run.WATCH_PAUSES) + 1


async def test_failures_of_watches_that_had_lasted_are_not_added_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "WATCH_LASTED", -1.0)
    watches = watched(monkeypatch, *[RuntimeError("500")] * 9, None)
    await run._watch(Settings(), None)  # type: ignore[arg-type]
    assert watches.begun == 10


async def test_a_signal_between_two_watches_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    watches = watched(monkeypatch, RuntimeError("500"), pause=60.0)
    asyncio.get_running_loop().call_later(0.05, os.kill, os.getpid(), signal.SIGTERM)
    async with asyncio.timeout(10):
        await run._watch(Settings(), None)  # type: ignore[arg-type]
    assert watches.begun == 1
