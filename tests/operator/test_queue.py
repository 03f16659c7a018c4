"""Keys run once at a time, come back when they asked to, and back off when they fail. Time is simulated."""

import asyncio
import selectors
from collections.abc import Awaitable, Callable
from itertools import pairwise
from typing import Any

import pytest

from pinrail_operator.errors import Conflict, Ending, NotLeader, Refused, Unavailable
from pinrail_operator.queue import FOLLOWER_DELAY, KeyQueue

Work = Callable[[str], Awaitable[float | None]]


class SimulatedLoop(asyncio.SelectorEventLoop):
    """Waits by moving its clock: an hour passes at once."""

    def __init__(self) -> None:
        super().__init__(_Leaping(self))
        self.moment = 0.0

    def time(self) -> float:
        return self.moment


class _Leaping(selectors.SelectSelector):
    def __init__(self, loop: SimulatedLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[Any]:
        found = super().select(0)
        if not found and timeout:
            self._loop.moment += timeout
        return found


def simulate(seconds: float, work: Work, start: Callable[[KeyQueue[str]], None], concurrency: int = 2) -> None:
    """Run a queue for that long, in simulated time."""

    async def run() -> None:
        queue: KeyQueue[str] = KeyQueue(concurrency)
        start(queue)
        task = asyncio.create_task(queue.run(work))
        await asyncio.sleep(seconds)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
        runner.run(run())


def times_of(failures: list[Exception | float | None], seconds: float = 1000.0) -> list[float]:
    """When a key ran, given how each run ended."""
    seen: list[float] = []
    outcomes = iter(failures)

    async def work(_: str) -> float | None:
        seen.append(asyncio.get_running_loop().time())
        outcome = next(outcomes, None)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    simulate(seconds, work, lambda queue: queue.add("a"))
    return [round(t, 3) for t in seen]


@pytest.mark.parametrize(
    ("outcomes", "times"),
    [
        pytest.param([None], [0], id="done for good"),
        pytest.param([5.0, 300.0, None], [0, 5, 305], id="again when it asked to"),
        pytest.param([Conflict("x")] * 3, [0, 0.5, 1.5, 3.5], id="each failure waits twice as long"),
        pytest.param([Unavailable("x", retry_after=30.0)], [0, 30], id="as long as the server says"),
        pytest.param([ValueError("a bug")], [0, 0.5], id="a bug does not end the queue"),
        pytest.param([Conflict("x"), 10.0, Conflict("x")], [0, 0.5, 10.5, 11.0], id="success forgets failures"),
        pytest.param([Refused("x")], [0, 0.5], id="what is refused may be taken later"),
        pytest.param([Ending("x"), 10.0], [0], id="in a namespace that ends there is nothing left to do"),
        pytest.param([NotLeader("x")] * 2, [0, FOLLOWER_DELAY, 2 * FOLLOWER_DELAY], id="a follower keeps its keys"),
    ],
)
def test_when_a_key_runs(outcomes: list[Exception | float | None], times: list[float]) -> None:
    assert times_of(outcomes) == times


def test_the_longest_wait_is_a_minute() -> None:
    times = times_of([Conflict("x")] * 20)
    assert max(b - a for a, b in pairwise(times)) == 60.0


def test_an_outage_is_asked_about_more_often_since_it_ends_for_every_key_at_once() -> None:
    times = times_of([Unavailable("x", retry_after=5.0)] * 20)
    gaps = [b - a for a, b in pairwise(times)]
    assert (gaps[0], max(gaps)) == (5.0, 20.0)


def test_a_key_added_twice_runs_once() -> None:
    runs: list[str] = []

    async def work(key: str) -> float | None:
        runs.append(key)
        return None

    def start(queue: KeyQueue[str]) -> None:
        for key in ("a", "b", "a", "a"):
            queue.add(key)

    simulate(10, work, start)
    assert sorted(runs) == ["a", "b"]


def test_a_key_that_changes_while_it_runs_runs_again_and_never_beside_itself() -> None:
    running: list[str] = []
    ended: list[float] = []
    queues: list[KeyQueue[str]] = []

    async def work(key: str) -> float | None:
        assert key not in running
        running.append(key)
        if not ended:
            queues[0].add(key)
        await asyncio.sleep(3)
        running.remove(key)
        ended.append(asyncio.get_running_loop().time())
        return None

    def start(queue: KeyQueue[str]) -> None:
        queues.append(queue)
        queue.add("a")

    simulate(60, work, start)
    assert ended == [3, 6]


def test_no_more_run_at_once_than_are_allowed() -> None:
    running: set[str] = set()
    most: list[int] = []

    async def work(key: str) -> float | None:
        running.add(key)
        most.append(len(running))
        await asyncio.sleep(1)
        running.discard(key)
        return None

    simulate(100, work, lambda queue: [queue.add(f"k{i}") for i in range(20)] and None, concurrency=3)
    assert (len(most), max(most)) == (20, 3)


@pytest.mark.parametrize("delay", [pytest.param(1, id="after it failed"), pytest.param(0, id="while it ran")])
def test_an_event_does_not_break_a_back_off(delay: float) -> None:
    runs: list[float] = []
    queues: list[KeyQueue[str]] = []

    async def work(key: str) -> float | None:
        runs.append(asyncio.get_running_loop().time())
        if delay:
            asyncio.get_running_loop().call_later(delay, queues[0].add, key)
        else:
            queues[0].add(key)
        raise Unavailable("x", retry_after=30.0)

    def start(queue: KeyQueue[str]) -> None:
        queues.append(queue)
        queue.add("a")

    simulate(50, work, start)
    assert runs == [0, 30]
