"""The engine's own scheduler on a clock that does not run: steps take as long as a model of step times says.

What decides is what decides in the engine (`core`), so a policy is judged in minutes on hours of traffic, without a
device. Every answer has the length that its job asks for, as with `ignore_eos`; the scheduler is told that length as
`max_tokens`.

With depth 1, a step begins when the one before it has been committed; with depth d, up to d are planned and not yet
committed, so that the host's time is hidden behind the device's.
"""

from collections import deque
from dataclasses import dataclass

from ..core.commit import commit
from ..core.door import refuse_never_fitting
from ..core.kv_blocks import KvBlocks
from ..core.plan import StepPlan, StepResult
from ..core.request import Finished, Request
from ..core.scheduler import schedule
from ..core.state import Limits, State
from ..core.step_time import StepTime
from ..core.types import FinishReason, Refused, SamplingParams
from .alone import predicted
from .load import Progress, silent
from .oracle import Oracle
from .records import Ending, Record, Run, Sample, Series
from .workload import Job, Workload

VOCAB_SIZE = 256  # numbers below 257 are shared objects in CPython, so a token takes no memory of its own
_ROOT = b"simulated"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """The engine that is simulated."""

    limits: Limits
    kv_blocks: int
    block_size: int  # tokens
    step_time: tuple[float, ...]  # seconds per unit, in the order of `step_time.TERMS`
    prefix_cache: bool = True
    depth: int = 1  # steps planned and not yet committed
    host_time: float = 0.0  # seconds to plan a step
    concurrency: int = 0  # requests at once, each sent when another has ended; 0: at their arrivals
    seed: int = 0  # of the tokens


def simulate(workload: Workload, setup: Setup, name: str, progress: Progress = silent) -> Run:
    """Equal inputs give equal runs. Args: name: of the run, for the report."""
    return _Simulation(workload, setup, progress).run(name)


class _Simulation:
    def __init__(self, workload: Workload, setup: Setup, progress: Progress) -> None:
        self._jobs, self._next = workload.jobs, 0
        self._setup, self._progress = setup, progress
        self._step_time = StepTime(list(setup.step_time))
        kv = KvBlocks(setup.kv_blocks, setup.block_size)
        self._state = State(setup.limits, kv, step_time=self._step_time)
        self._oracle = Oracle(setup.block_size)
        self._now = self._device_free = 0.0  # seconds
        self._flight: deque[tuple[StepPlan, float]] = deque()  # and when it ends
        self._scripts: dict[str, list[int]] = {}  # of living requests: prompt and answer
        self._records: list[Record] = []
        self._living: dict[str, Record] = {}
        self._series = Series()
        self._recomputed = self._surplus = self._preemptions = self._steps = 0

    def run(self, name: str) -> Run:
        while self._next < len(self._jobs) or self._state.live or self._flight:
            self._admit()
            if len(self._flight) < self._setup.depth and self._plan():
                continue
            if self._flight:
                self._complete()
            elif self._next < len(self._jobs):
                self._now = max(self._now, self._jobs[self._next].arrival)
            else:
                assert not self._state.live, "an idle engine advances whoever lives"
        return Run(
            name=name,
            records=self._records,
            seconds=self._now,
            samples=self._series.samples,
            recomputed_tokens=self._recomputed,
            surplus_rows=self._surplus,
            steps=self._steps,
            preemptions=self._preemptions,
        )

    def _admit(self) -> None:
        """Let in whoever has arrived."""
        while self._next < len(self._jobs):
            job = self._jobs[self._next]
            if self._setup.concurrency:
                if len(self._state.live) >= self._setup.concurrency:
                    return
                self._enter(job, self._now)
            elif job.arrival <= self._now:
                self._enter(job, job.arrival)
            else:
                return
            self._next += 1

    def _enter(self, job: Job, arrival: float) -> None:
        setup, limits = self._setup, self._setup.limits
        id_ = str(self._next)
        alone = predicted(self._step_time, job, limits.max_num_batched_tokens)
        record = Record(job.prompt_len, arrival, self._oracle.cached(job), alone)
        self._records.append(record)
        prompt = job.prompt_tokens(VOCAB_SIZE, setup.seed)
        try:
            refuse_never_fitting(limits, prompt)
        except Refused as e:
            record.end(arrival, Ending.REFUSED, str(e))
            self._progress(1)
            return
        params = SamplingParams(max_tokens=job.output_len, temperature=0)
        root = _ROOT if setup.prefix_cache else b""
        self._state.enter(
            Request.new(id_, prompt, params, limits.max_model_len, arrival, root=root, block_size=setup.block_size)
        )
        self._scripts[id_] = prompt + job.output.tokens(VOCAB_SIZE, setup.seed)
        self._living[id_] = record

    def _plan(self) -> bool:
        """Hand a step to the device; False where there is nothing to compute."""
        plan = schedule(self._state, self._now)
        if not plan.rows:
            return False
        self._now += self._setup.host_time
        self._device_free = max(self._now, self._device_free) + self._step_time.predict(plan.work)
        self._flight.append((plan, self._device_free))
        self._recomputed += plan.recomputed
        self._preemptions += len(plan.preempted)
        self._steps += 1
        if self._series.step():
            self._sample()
        return True

    def _sample(self) -> None:
        state = self._state
        used = state.kv.live / state.kv.total
        self._series.add(Sample(self._now, len(state.waiting), len(state.running), used))

    def _complete(self) -> None:
        """The oldest step in flight has ended."""
        plan, end = self._flight.popleft()
        now = self._now = max(self._now, end)
        scripts, living = self._scripts, self._living
        tokens = [
            scripts[id_][start + n] if id_ in scripts else 0 for id_, _, start, n, samples in plan.rows if samples
        ]
        outcomes = commit(self._state, plan, StepResult(tokens, (), {}), now)
        self._surplus += len(tokens) - len(outcomes)
        for request, _, gap, finished in outcomes:
            if gap is not None:
                living[request.id].gaps.append(gap)
            if finished is not None:
                self._end(finished)

    def _end(self, finished: Finished) -> None:
        request = finished.request
        record = self._living.pop(request.id)
        del self._scripts[request.id]
        record.scheduled_at, record.cached_tokens = request.scheduled_at, request.cached
        record.first_token_at, record.last_token_at = request.first_token_at, request.last_token_at
        record.output_len = request.output_len
        record.end(finished.at, Ending.FINISHED if finished.reason is FinishReason.LENGTH else Ending.FAILED)
        self._progress(1)
