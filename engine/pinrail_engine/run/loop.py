"""The engine as others see it: a thread that makes steps while requests live, behind a lock.

One lock guards the scheduler's state, and is held for everything but the backend's computing. So a request is queued,
or ended and its blocks freed, at once and by whichever thread asks; a result that comes later finds it gone.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from enum import StrEnum

from pinrail_contract.errors import PinrailError

from ..core.commit import Outcome, finish
from ..core.plan import StepPlan
from ..core.request import Finished, Request
from ..core.scheduler import admit, refuse_never_fitting
from ..core.state import State
from ..core.types import FinishReason, Refused, SamplingParams, Sink, TokenEvent
from ..metrics import Load, Metrics
from .backend import Backend
from .pulse import Pulse
from .step import step
from .warm_up import warm_up_plans

log = logging.getLogger(__name__)

_LOADING_RETRY = 5  # seconds
_STOP_SECONDS = 5  # for the step in flight; a thread that hangs is left behind
_MOVED_RETRY = 1  # seconds: another replica can answer at once


class Phase(StrEnum):
    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    FAILED = "failed"


class EngineLoop:
    """`core.types.Engine`, on one backend.

    Args:
        state: Empty; nobody else may touch it afterwards.
        max_queued: Requests that may wait.
        clock: Seconds, monotonic.
    """

    def __init__(
        self,
        state: State,
        backend: Backend,
        metrics: Metrics,
        *,
        max_queued: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._state, self._backend, self.metrics = state, backend, metrics
        self._max_queued, self._clock = max_queued, clock
        self._changed = threading.Condition(threading.RLock())
        self._sinks: dict[str, Sink] = {}  # of living requests
        self._pulse = Pulse(clock(), clock())
        self._phase, self._stopping = Phase.LOADING, False
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self.failure: Exception | None = None  # why the phase is FAILED

    @property
    def max_model_len(self) -> int:
        return self._state.limits.max_model_len

    @property
    def state(self) -> str:
        return self._phase

    def is_healthy(self) -> bool:
        """Takes no lock, so that it answers whatever the thread is doing."""
        return self._phase is not Phase.FAILED and not self.is_hung()

    def is_hung(self) -> bool:
        """There is work, and no step has ended for too long, or nobody is left to make one. Takes no lock."""
        return bool(self._state.live) and (not self._thread.is_alive() or self._pulse.is_late(self._clock()))

    @property
    def last_step_age(self) -> float:
        """Seconds since progress; 0 while idle. Takes no lock."""
        return self._clock() - self._pulse.progress_at if self._state.live else 0.0

    def submit(self, request_id: str, prompt: Sequence[int], params: SamplingParams, sink: Sink) -> None:
        with self._changed:
            try:
                self._refuse(prompt)
            except Refused:
                self.metrics.rejected()
                raise
            if not self._state.live:
                self._pulse.woke(self._clock())
            admit(self._state, Request.new(request_id, prompt, params, self.max_model_len, self._clock()))
            self._sinks[request_id] = sink
            self._changed.notify_all()

    def finish(self, request_id: str, reason: FinishReason) -> None:
        asked = self._clock()
        with self._changed:
            finished = finish(self._state, request_id, reason, self._clock())
            if finished is not None:
                if reason is FinishReason.ABORT:
                    self.metrics.released(self._clock() - asked)
                self._end(finished)

    def metrics_page(self) -> bytes:
        with self._changed:
            load = self._load()
        return self.metrics.page(load)

    def start(self) -> None:
        """Load, warm up, then serve; returns at once. `state` says how far it is."""
        self._thread.start()

    def wait_until_loaded(self) -> None:
        """Block until the state is no longer `loading`; raises what made it `failed`."""
        with self._changed:
            self._changed.wait_for(lambda: self._phase is not Phase.LOADING)
        if self.failure is not None:
            raise self.failure

    def drain(self, timeout: float) -> None:
        with self._changed:
            if self._phase is not Phase.FAILED:
                self._phase = Phase.DRAINING
            self._changed.wait_for(lambda: not self._state.live, timeout)
            self._end_all(TokenEvent((), FinishReason.ABORT))

    def stop(self) -> None:
        """End the thread after the step in flight, which frees the backend; whoever still lives is told ABORT."""
        self.drain(0)
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(_STOP_SECONDS)

    def _run(self) -> None:
        try:
            self._load_backend()
            while self._wait_for_work():
                self._turn()
        except Exception as e:
            log.error("engine failed error=%s", e, exc_info=not isinstance(e, PinrailError))
            self._fail(e)
        finally:
            self._backend.free()

    def _load_backend(self) -> None:
        began = self._clock()
        self._backend.load()
        loaded = self._clock()
        for plan in warm_up_plans(self._state.limits.max_num_batched_tokens, self.max_model_len, self._state.kv):
            self._warm_up(plan)
        warm = self._clock()
        self.metrics.started("load", loaded - began)
        self.metrics.started("warmup", warm - loaded)
        with self._changed:
            if self._phase is Phase.LOADING:
                self._phase = Phase.READY
            self._changed.notify_all()
        log.info("engine ready load_seconds=%.2f warmup_seconds=%.2f", loaded - began, warm - loaded)

    def _warm_up(self, plan: StepPlan) -> None:
        began = self._clock()
        self._backend.step(plan)
        now = self._clock()
        self._pulse.step_ended(now, now - began)

    def _wait_for_work(self) -> bool:
        """False when it is time to end."""
        with self._changed:
            self._changed.wait_for(lambda: self._stopping or self._state.live)
            return not self._stopping

    def _turn(self) -> None:
        began = self._clock()
        step(self._state, self._backend, self._changed, self._clock, self._publish)
        now = self._clock()
        self._pulse.step_ended(now, now - began)

    def _publish(self, plan: StepPlan, outcomes: list[Outcome]) -> None:
        self.metrics.step(plan)
        for outcome in outcomes:
            self.metrics.outcome(outcome)
            sink = self._sinks.get(outcome.request.id)
            if sink is None:
                continue  # a sink before this one has ended it
            if outcome.finished is not None:
                self._end(outcome.finished)
            _tell(sink, outcome.event)

    def _end(self, finished: Finished) -> None:
        """The one place where an ended request leaves its traces: figures, log line, whoever waits for the end."""
        request = finished.request
        self._sinks.pop(request.id)
        self.metrics.finished(finished)
        self._pulse.request_ended(finished.at)
        log.debug(
            "request ended id=%s reason=%s prompt_tokens=%d output_tokens=%d preemptions=%d seconds=%.3f",
            request.id,
            finished.reason,
            request.prompt_len,
            request.output_len,
            request.preemptions,
            finished.at - request.arrival,
        )
        self._changed.notify_all()

    def _end_all(self, event: TokenEvent) -> None:
        while self._state.live:  # a sink may end others meanwhile
            request_id = next(iter(self._state.live))
            sink = self._sinks[request_id]
            assert event.finish is not None
            finished = finish(self._state, request_id, event.finish, self._clock())
            assert finished is not None
            self._end(finished)
            _tell(sink, event)

    def _fail(self, error: Exception) -> None:
        with self._changed:
            self._phase, self.failure = Phase.FAILED, error
            self._end_all(TokenEvent((), FinishReason.ERROR, "the engine failed"))
            self._changed.notify_all()

    def _refuse(self, prompt: Sequence[int]) -> None:
        """| phase    | queue | prompt | refused with                      |
        |----------|-------|--------|-----------------------------------|
        | any      | -     | no fit | never                             |
        | loading  | -     | fits   | 503, 5 s                          |
        | draining | -     | fits   | 503, 1 s                          |
        | failed   | -     | fits   | 503, 5 s                          |
        | ready    | full  | fits   | 429, when half of it will be gone |
        | ready    | room  | fits   | not refused                       |
        """
        refuse_never_fitting(self._state.limits, prompt)
        if self._phase is not Phase.READY:
            wait = _MOVED_RETRY if self._phase is Phase.DRAINING else _LOADING_RETRY
            raise Refused(f"the server is {self._phase}", retry_after=wait)
        queued = len(self._state.waiting)
        if queued >= self._max_queued:
            wait = self._pulse.retry_after(queued, self._clock())
            raise Refused(f"{queued} requests wait already, which is the most", retry_after=wait, overloaded=True)

    def _load(self) -> Load:
        state, now = self._state, self._clock()
        return Load(
            running=len(state.running),
            waiting=len(state.waiting),
            waiting_blocks=state.waiting_blocks,
            live_blocks=state.kv.live,
            free_blocks=state.kv.free,
            oldest_waiting=now - state.waiting[0].arrival if state.waiting else 0.0,
            last_step_age=self.last_step_age,
        )


def _tell(sink: Sink, event: TokenEvent) -> None:
    try:
        sink(event)
    except Exception:  # a client's fault must not end the others
        log.exception("sink raised")
