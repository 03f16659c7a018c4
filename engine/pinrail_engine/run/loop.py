"""The engine as others see it: a thread that makes steps while requests live, behind a lock.

One lock guards the scheduler's state, and is held for everything but the waiting for the device. So a request is
queued, or ended and its blocks freed, at once and by whichever thread asks; a result that comes later finds it gone.
"""

import gc
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Optional

from pinrail_contract.errors import PinrailError
from pinrail_contract.launch import Policy

from ..core import door
from ..core.commit import NOT_FINITE, finish, last_event
from ..core.plan import StepPlan
from ..core.request import Finished, Request
from ..core.state import State
from ..core.types import (
    STANDARD_TERMS,
    CacheEvents,
    FinishReason,
    Refused,
    SamplingParams,
    Sink,
    Terms,
    TokenEvent,
)
from ..metrics import NOTHING, Metrics
from .backend import Backend
from .gauges import load_of
from .pulse import Pulse
from .step import Flight, Landed, land, launch
from .warm_up import warm_up_plans

if TYPE_CHECKING:
    from ..tracing import Tracer  # takes time to import, and is seldom wanted

log = logging.getLogger(__name__)

_LOADING_RETRY = 5  # seconds
_STOP_SECONDS = 5  # for the step in flight; a thread that hangs is left behind
_MOVED_RETRY = 1  # seconds: another replica can answer at once

RootOf = Callable[[str], bytes]
"""From a cache salt to the root of the chain of block hashes."""


class Phase(StrEnum):
    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopOptions:
    caps: door.Caps
    steps_in_flight: int = 1  # launched before the first one's tokens are known
    policy: Policy = Policy.FCFS  # as in the state's limits; known before those
    root_of: RootOf | None = None  # None: prefixes are not shared


class EngineLoop:
    """`core.types.Engine`, on one backend.

    Args:
        lay_out: Called once the weights are loaded; returns the empty state, whose memory the backend then has. Nobody
            else may touch it afterwards.
        clock: Seconds, monotonic.
    """

    def __init__(
        self,
        lay_out: Callable[[], State],
        backend: Backend,
        metrics: Metrics,
        options: LoopOptions,
        *,
        tracer: Optional["Tracer"] = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._lay_out, self._backend, self.metrics, self._options = lay_out, backend, metrics, options
        self._tracer, self._clock = tracer, clock
        self._changed = threading.Condition(threading.RLock())
        self._state: State | None = None  # until the weights are loaded
        self._sinks: dict[str, Sink] = {}  # of living requests
        self._flights: deque[Flight] = deque()
        self._pulse = Pulse(clock(), clock())
        self._phase, self._stopping = Phase.LOADING, False
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self.failure: Exception | None = None  # why the phase is FAILED

    @property
    def max_model_len(self) -> int:
        return 0 if self._state is None else self._state.limits.max_model_len

    @property
    def policy(self) -> str:
        return self._options.policy

    @property
    def state(self) -> str:
        return self._phase

    @property
    def step_time(self) -> dict[str, float]:
        """Seconds per unit of what a step's time depends on, as learned so far."""
        return {} if self._state is None else self._state.step_time.by_term

    def is_healthy(self) -> bool:
        """Takes no lock, so that it answers whatever the thread is doing."""
        return self._phase is not Phase.FAILED and not self.is_hung()

    def is_hung(self) -> bool:
        """There is work, and no step has ended for too long, or nobody is left to make one. Takes no lock."""
        return self._has_work and (not self._thread.is_alive() or self._pulse.is_late(self._clock()))

    @property
    def last_step_age(self) -> float:
        """Seconds since progress; 0 while idle. Takes no lock."""
        return self._clock() - self._pulse.progress_at if self._has_work else 0.0

    def submit(
        self,
        request_id: str,
        prompt: Sequence[int],
        params: SamplingParams,
        sink: Sink,
        terms: Terms = STANDARD_TERMS,
    ) -> None:
        try:
            state = self._require_serving()
            door.refuse_never_fitting(state.limits, prompt)
            request = self._request(state, request_id, prompt, params, terms)
            with self._changed:
                self._require_serving()
                self._make_room(state, request)
                if not state.live:
                    self._pulse.woke(self._clock())
                state.enter(request)
                self._sinks[request_id] = sink
                self._changed.notify_all()
        except Refused as refused:
            with self._changed:
                self.metrics.rejected(self._reason(refused))
            raise

    def finish(self, request_id: str, reason: FinishReason) -> None:
        asked = self._clock()
        with self._changed:
            request = None if self._state is None else self._state.live.get(request_id)
            if request is None:
                return
            phase = _phase_of(request)
            self._finish(request, reason)
            if reason is FinishReason.ABORT:
                self.metrics.released(phase, self._clock() - asked)

    def metrics_page(self) -> bytes:
        with self._changed:
            load = NOTHING if self._state is None else load_of(self._state, self._clock(), self.last_step_age)
        return self.metrics.page(load)

    def cache_events(self, after: int) -> CacheEvents:
        with self._changed:
            return CacheEvents(0, True, ()) if self._state is None else self._state.kv.log.since(after)

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
            self._changed.wait_for(lambda: not self._has_live, timeout)
            self._end_all(FinishReason.ABORT)

    def stop(self) -> None:
        """End the thread after the steps in flight, which frees the backend; whoever still lives is told ABORT."""
        self.drain(0)
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(_STOP_SECONDS)
        tracer, self._tracer = self._tracer, None
        if tracer is not None:
            tracer.close()

    @property
    def _has_live(self) -> bool:
        return self._state is not None and bool(self._state.live)

    @property
    def _has_work(self) -> bool:
        return self._has_live or bool(self._flights)

    def _run(self) -> None:
        try:
            state = self._load_backend()
            while self._wait_for_work():
                self._turn(state)
        except Exception as e:
            log.error("engine failed error=%s", e, exc_info=not isinstance(e, PinrailError))
            self._fail(e)
        finally:
            self._backend.free()

    def _load_backend(self) -> State:
        began = self._clock()
        self._backend.load()
        loaded = self._clock()
        state = self._lay_out()
        laid_out = self._clock()
        limits = state.limits
        plans = warm_up_plans(limits.max_num_batched_tokens, limits.max_model_len, state.kv.block_size)
        for plan in plans.first:
            self._try(plan)
        for plan in plans.measured:
            state.step_time.observe(plan.work, self._try(plan))
        warm = self._clock()
        self.metrics.started("load", loaded - began)
        self.metrics.started("allocate", laid_out - loaded)
        self.metrics.started("warmup", warm - laid_out)
        self.metrics.laid_out(state.kv.total)
        _settle()
        with self._changed:
            self._state = state
            if self._phase is Phase.LOADING:
                self._phase = Phase.READY
            self._changed.notify_all()
        log.info("engine ready load_seconds=%.2f warmup_seconds=%.2f", loaded - began, warm - loaded)
        return state

    def _try(self, plan: StepPlan) -> float:
        """Seconds that a step of nobody's takes."""
        began = self._clock()
        self._backend.launch(plan)()
        now = self._clock()
        self._pulse.step_ended(now, now - began)
        return now - began

    def _wait_for_work(self) -> bool:
        """False when it is time to end."""
        with self._changed:
            self._changed.wait_for(lambda: self._stopping or self._has_work)
            return not self._stopping

    def _turn(self, state: State) -> None:
        """Launch a step if there is one, then let the oldest land if enough are in flight."""
        with self._changed:
            self._send_late_ones_away(state)
        flight = launch(state, self._backend, self._changed, self._clock, lambda plan: self._begun(state, plan))
        if flight is not None:
            self._flights.append(flight)
        if self._flights and (flight is None or len(self._flights) >= self._options.steps_in_flight):
            land(state, self._flights[0], self._changed, self._clock, lambda landed: self._publish(state, landed))

    def _begun(self, state: State, plan: StepPlan) -> None:
        """Called with the lock held: a moment later somebody may have come whom the plan does not know."""
        assert plan.rows or self._flights or not state.live, "somebody can always advance"
        self.metrics.preempted(len(plan.preempted))
        for begin in plan.begins:
            request = state.live[begin.request_id]
            if request.preemptions == 0:
                self.metrics.began(request)

    def _publish(self, state: State, landed: Landed) -> None:
        gap, began = self._pulse.step_began(landed.launched)
        seconds = landed.ended - began
        self._pulse.step_ended(landed.ended, seconds)
        state.step_time.observe(landed.plan.work, seconds)
        self.metrics.step(landed.plan, seconds, gap)
        for outcome in landed.outcomes:
            self.metrics.outcome(outcome)
            sink = self._sinks.get(outcome.request.id)
            if sink is None:
                continue  # a sink before this one has ended it
            if outcome.finished is not None:
                self._end(outcome.finished)
            _tell(sink, outcome.event)
        self._flights.popleft()

    def _finish(
        self, request: Request, reason: FinishReason, error: str = "", retry_after: int | None = None
    ) -> Finished:
        assert self._state is not None, "a request lives in it"
        finished = finish(self._state, request.id, reason, self._clock(), error, retry_after)
        assert finished is not None, "it lives"
        self._end(finished)
        return finished

    def _end(self, finished: Finished) -> None:
        """The one place where an ended request leaves its traces: figures, span, log line, whoever waits for it."""
        request = finished.request
        self._sinks.pop(request.id)
        self.metrics.finished(finished)
        if finished.error == NOT_FINITE:
            self.metrics.corrupted()
        self._pulse.request_ended(finished.at)
        if self._tracer is not None:
            self._tracer.ended(finished)
        log.debug(
            "request ended id=%s reason=%s prompt_tokens=%d output_tokens=%d preemptions=%d seconds=%.3f",
            request.id,
            finished.reason,
            request.prompt_len,
            request.output_len,
            request.preemptions,
            finished.at - request.received,
        )
        self._changed.notify_all()

    def _dismiss(self, request: Request, reason: FinishReason, error: str = "", retry_after: int | None = None) -> None:
        """End a request and tell its sink, which does not know yet."""
        sink = self._sinks[request.id]
        _tell(sink, last_event(self._finish(request, reason, error, retry_after)))

    def _end_all(self, reason: FinishReason, error: str = "") -> None:
        while self._state is not None and self._state.live:  # a sink may end others meanwhile
            self._dismiss(next(iter(self._state.live.values())), reason, error)

    def _fail(self, error: Exception) -> None:
        with self._changed:
            self._phase, self.failure = Phase.FAILED, error
            self._end_all(FinishReason.ERROR, "the engine failed")
            self._changed.notify_all()

    def _require_serving(self) -> State:
        """| phase    | refused with |
        |----------|--------------|
        | loading  | 503, 5 s     |
        | draining | 503, 1 s     |
        | failed   | 503, 5 s     |
        | ready    | not refused  |
        """
        if self._phase is Phase.READY and self._state is not None:
            return self._state
        wait = _MOVED_RETRY if self._phase is Phase.DRAINING else _LOADING_RETRY
        raise Refused(f"the server is {self._phase}", retry_after=wait)

    def _request(
        self, state: State, request_id: str, prompt: Sequence[int], params: SamplingParams, terms: Terms
    ) -> Request:
        """Prompts whose log-probabilities are asked for share nothing: every position has to be computed."""
        root_of = self._options.root_of if params.prompt_logprobs is None else None
        root = b"" if root_of is None else root_of(terms.cache_salt)
        size, now = state.kv.block_size, self._clock()
        return Request.new(request_id, prompt, params, self.max_model_len, now, terms, root=root, block_size=size)

    def _make_room(self, state: State, newcomer: Request) -> None:
        """Raises Refused where the queue is full and the newcomer is the one to go."""
        gone = door.to_send_away(state, newcomer, self._options.caps)
        if not gone:
            return
        wait = self._pulse.retry_after(len(state.waiting), self._clock())
        if newcomer in gone:
            tokens = state.waiting_tokens
            raise Refused(
                f"{len(state.waiting)} requests of {tokens} tokens wait already, which is the most",
                retry_after=wait,
                overloaded=True,
            )
        for request in gone:
            self.metrics.rejected("displaced")
            self._dismiss(request, FinishReason.REJECTED, "the queue is full, and others go first", wait)

    def _reason(self, refused: Refused) -> str:
        """| overloaded | retry_after | queue   | reason            |
        |------------|-------------|---------|-------------------|
        | False      | None        | -       | never_fits        |
        | False      | seconds     | -       | not_ready         |
        | True       | any         | no room | max_queued        |
        | True       | any         | room    | max_queued_tokens |
        """
        if not refused.overloaded:
            return "never_fits" if refused.retry_after is None else "not_ready"
        assert self._state is not None, "only a queue can be full"
        full = len(self._state.waiting) >= self._options.caps.max_queued > 0
        return "max_queued" if full else "max_queued_tokens"

    def _send_late_ones_away(self, state: State) -> None:
        now = self._clock()
        late = [(r, why) for r in state.waiting if (why := door.has_waited_too_long(r, self._options.caps, now))]
        for request, why in late:
            if request.id not in state.live:
                continue  # a sink before this one has ended it
            wait = self._pulse.retry_after(len(state.waiting), now)
            self.metrics.rejected(why)
            error = f"it has waited {now - request.arrival:.1f} seconds, which is the most"
            self._dismiss(request, FinishReason.REJECTED, error, wait)


def _settle() -> None:
    """What was made until now stays: the garbage collector need not go through it again and again, nor at each of the
    steps that make thousands of small objects which are gone right after."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 50, 100)


def _phase_of(request: Request) -> str:
    if request.slot < 0:
        return "queued"
    return "prefill" if request.first_token_at is None else "decode"


def _tell(sink: Sink, event: TokenEvent) -> None:
    try:
        sink(event)
    except Exception:  # a client's fault must not end the others
        log.exception("sink raised")
