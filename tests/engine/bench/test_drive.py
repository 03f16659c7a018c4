"""The driver of an engine in this process: pacing, endings, and that nothing waits for ever."""

import threading
from collections.abc import Callable, Sequence

import pytest

from pinrail_engine.bench.drive import drive
from pinrail_engine.bench.load import Load
from pinrail_engine.bench.records import Ending, Record
from pinrail_engine.bench.workload import Job, Piece
from pinrail_engine.core.types import FinishReason, Refused, SamplingParams, Sink, TokenEvent

_Answer = Callable[[str, Sequence[int], SamplingParams, Sink], None]


def answer_all(_: str, prompt: Sequence[int], params: SamplingParams, sink: Sink) -> None:
    for i in range(1, params.max_tokens + 1):
        finish = FinishReason.LENGTH if i == params.max_tokens else None
        sink(TokenEvent((i,), finish, cached_tokens=len(prompt) // 2))


class FakeEngine:
    """Answers inside `submit`, as the test says."""

    def __init__(self, answer: _Answer = answer_all) -> None:
        self._answer = answer
        self.submitted: list[tuple[str, list[int], SamplingParams]] = []
        self.finished: list[tuple[str, FinishReason]] = []

    def submit(self, request_id: str, prompt: Sequence[int], params: SamplingParams, sink: Sink) -> None:
        self.submitted.append((request_id, list(prompt), params))
        self._answer(request_id, prompt, params, sink)

    def finish(self, request_id: str, reason: FinishReason) -> None:
        self.finished.append((request_id, reason))


def load(*arrivals: float, output: int = 3, concurrency: int = 0, timeout: float = 10.0) -> Load:
    jobs = [Job(at, (Piece(i, 8),), Piece(-1 - i, output)) for i, at in enumerate(arrivals)]
    return Load(jobs=jobs, vocab_size=100, seed=0, timeout=timeout, concurrency=concurrency)


def play(engine: FakeEngine, load: Load, progress: Callable[[int], None] = lambda _: None) -> list[Record]:
    return drive(engine, load, "run", progress=progress)  # type: ignore[arg-type]


def test_every_job_is_sent_greedily_with_its_own_length() -> None:
    engine, seen = FakeEngine(), list[int]()
    records = play(engine, load(0, 0), seen.append)
    assert [(r.ending, r.output_len, r.cached_tokens, len(r.gaps)) for r in records] == [(Ending.FINISHED, 3, 4, 2)] * 2
    ids, prompts, params = zip(*engine.submitted, strict=True)
    assert (ids, seen) == (("run-0", "run-1"), [1, 1])
    assert prompts[0] != prompts[1]
    assert params[0] == SamplingParams(max_tokens=3, temperature=0)


def test_requests_are_sent_at_their_arrivals_though_nobody_has_answered() -> None:
    sinks: list[Sink] = []

    def keep(_: str, prompt: Sequence[int], params: SamplingParams, sink: Sink) -> None:
        sinks.append(sink)
        if len(sinks) == 3:
            for waiting in sinks:
                answer_all("", prompt, params, waiting)

    records = play(FakeEngine(keep), load(0, 0.01, 0.02))
    assert [r.arrival for r in records] == [0, 0.01, 0.02]
    assert records[0].ttft is not None
    assert records[0].ttft >= 0.02


def test_a_closed_loop_sends_one_when_another_has_ended() -> None:
    living = most = 0

    def later(_: str, prompt: Sequence[int], params: SamplingParams, sink: Sink) -> None:
        nonlocal living, most
        living += 1
        most = max(most, living)

        def end() -> None:
            nonlocal living
            living -= 1
            answer_all("", prompt, params, sink)

        threading.Timer(0.005, end).start()

    records = play(FakeEngine(later), load(*[0.0] * 7, concurrency=2))
    assert most == 2
    assert all(r.ending is Ending.FINISHED for r in records)
    assert records[-1].arrival > 0, "it arrives when it is sent"


def refuse(*_: object) -> None:
    raise Refused("the queue is full", retry_after=1, overloaded=True)


def send_away(_: str, prompt: Sequence[int], params: SamplingParams, sink: Sink) -> None:
    sink(TokenEvent((), FinishReason.REJECTED, "waited too long"))


def break_down(_: str, prompt: Sequence[int], params: SamplingParams, sink: Sink) -> None:
    sink(TokenEvent((5,)))
    sink(TokenEvent((), FinishReason.ERROR, "no memory"))


@pytest.mark.parametrize(
    ("answer", "ending", "said"),
    [
        (refuse, Ending.REFUSED, "the queue is full"),
        (send_away, Ending.REFUSED, "waited too long"),
        (break_down, Ending.FAILED, "no memory"),
    ],
)
@pytest.mark.parametrize("concurrency", [0, 1])
def test_what_goes_wrong_is_recorded(answer: _Answer, ending: Ending, said: str, concurrency: int) -> None:
    records = play(FakeEngine(answer), load(0, 0, concurrency=concurrency))
    assert [(r.ending, r.error) for r in records] == [(ending, said)] * 2


def test_when_the_time_is_over_who_lives_is_ended_and_who_waits_is_not_sent() -> None:
    engine = FakeEngine(lambda *_: None)
    records = play(engine, load(0, 60, timeout=0.05))
    assert engine.finished == [("run-0", FinishReason.ABORT)]
    assert [r.ending for r in records] == [Ending.CUT, Ending.CUT]
    assert records[0].ended_at is not None
    assert (len(engine.submitted), records[1].ended_at) == (1, None)


def test_warm_up_leaves_no_prefix_that_the_run_would_find() -> None:
    whole = load(0, 0, 0, output=40)
    warm = whole.warm_up(2)
    assert (len(warm.jobs), warm.concurrency, warm.jobs[0].output_len) == (2, 1, 16)
    assert warm.jobs[0].prompt_len == whole.jobs[0].prompt_len
    assert warm.jobs[0].prompt_tokens(100, 0) != whole.jobs[0].prompt_tokens(100, 0)
