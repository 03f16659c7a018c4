"""A whole engine without threads or time: the scheduler, the fake device, any number of steps in flight, any events.

Checks after every step what must hold whatever happens: P1 to P8 of the module that uses it.
"""

import random
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice

from fake_device import VOCAB, FakeDevice, position_of, text

from pinrail_contract.launch import Policy
from pinrail_engine.core.commit import Outcome, commit, fail, finish
from pinrail_engine.core.kv_blocks import KvBlocks
from pinrail_engine.core.plan import Row, StepPlan, StepResult
from pinrail_engine.core.prefix import root
from pinrail_engine.core.request import Request
from pinrail_engine.core.scheduler import schedule, waits_to_share
from pinrail_engine.core.state import Limits, State
from pinrail_engine.core.step_time import StepTime
from pinrail_engine.core.types import STANDARD_TERMS, FinishReason, SamplingParams, Terms

PINNED = 3  # preemptions after which a request is left alone
LOOK_AHEAD = 64  # requests of the queue that are considered in one step


@dataclass(frozen=True, kw_only=True)
class Sizes:
    blocks: int = 100
    block_size: int = 4
    seqs: int = 4
    budget: int = 16
    window: int = 64
    policy: Policy = Policy.FCFS
    depth: int = 1
    cache: bool = True
    target_step: float = 0.0
    step_time: tuple[float, ...] = ()  # coefficients that are known from the start
    partial: int = 4
    overtakes: int = 64
    blocked: float = 2.0
    reckless: bool = False  # nothing is kept for growth, so that many are preempted
    cautious: bool = False  # all that may be written is kept, so that few run

    def state(self) -> State:
        limits = Limits(
            vocab_size=VOCAB,
            max_model_len=min(self.window, self.blocks * self.block_size),
            max_num_seqs=min(self.seqs, self.budget),
            max_num_batched_tokens=self.budget,
            policy=self.policy,
            target_step=self.target_step,
            max_partial_prefills=self.partial,
            max_overtakes=self.overtakes,
            max_blocked=self.blocked,
        )
        known = StepTime(self.step_time) if self.step_time else StepTime()
        return State(limits, KvBlocks(self.blocks, self.block_size), step_time=known)


@dataclass
class World:
    sizes: Sizes = field(default_factory=Sizes)
    now: float = 0.0
    steps: int = 0

    def __post_init__(self) -> None:
        self.state = self.sizes.state()
        self.twin = self.sizes.state()  # gets the same calls: P5
        self.device = FakeDevice(self.sizes.block_size)
        self.flight: deque[tuple[StepPlan, StepPlan, StepResult]] = deque()
        self.prompts: dict[str, list[int]] = {}
        self.params: dict[str, SamplingParams] = {}
        self.outputs: dict[str, list[int]] = {}  # tokens told, by request
        self.told: list[Outcome] = []
        self.ends: dict[str, FinishReason] = {}
        self.hurt: set[str] = set()  # who was in a step that failed, or has no finite logits
        self.first_step: dict[str, int] = {}  # in which step a request was first in a plan
        self.preempted: list[str] = []
        self.given_up: Counter[str] = Counter()  # how often each was preempted
        self.orders: dict[str, tuple[float, int]] = {}
        self.passed: Counter[str] = Counter()  # how often each was passed at the head of the queue for want of blocks
        self.passed_since: dict[str, float] = {}  # and when first

    def arrive(
        self,
        name: str,
        prompt: int | Sequence[int],
        output: int = 8,
        terms: Terms = STANDARD_TERMS,
        params: SamplingParams | None = None,
    ) -> Request:
        """Args: prompt: token ids, or how many: then no other request has the same."""
        ids = private_prompt(name, prompt) if isinstance(prompt, int) else list(prompt)
        self.prompts[name] = ids
        self.params[name] = params = params or SamplingParams(max_tokens=output)
        self.outputs[name] = []
        for state in (self.state, self.twin):
            request = Request.new(
                name,
                ids,
                params,
                state.limits.max_model_len,
                self.now,
                terms,
                root=self._root(terms) if params.prompt_logprobs is None else b"",
                block_size=self.sizes.block_size,
            )
            state.enter(request)
        self.orders[name] = self.state.live[name].order
        return self.state.live[name]

    def abort(self, name: str) -> None:
        ended = finish(self.state, name, FinishReason.ABORT, self.now)
        finish(self.twin, name, FinishReason.ABORT, self.now)
        if ended is None:
            return
        self.ends[name] = FinishReason.ABORT
        state, request = self.state, ended.request
        assert not request.blocks, "P7: it holds no block any more"
        assert request.slot == -1, "P7: it holds no slot any more"
        assert name not in state.live | state.running, "P7: it has left"
        assert request not in list(state.waiting), "P7: it has left the queue"
        assert name not in state.computing.values(), "P7: nobody waits for what it computes"
        held = {block for r in state.running.values() for block in r.blocks}
        assert state.kv.live == len(held), "P7: its blocks are free at once"

    def launch(self) -> StepPlan:
        """Plan a step and give it to the device; the result is not told yet."""
        if self.sizes.reckless or self.sizes.cautious:
            self.state.output_share = self.twin.output_share = -100.0 if self.sizes.reckless else 1.0
        continued = {r.id for r in self.state.running.values() if r.work == 1}
        short, in_part = self._short_of_blocks(), self._in_part()
        plan, same = schedule(self.state, self.now), schedule(self.twin, self.now)
        self.preempted += plan.preempted
        self.given_up.update(plan.preempted)
        self._check(plan, same, continued, in_part)
        if short is not None:
            self._check_passed(short, plan)
        if plan.rows:
            self.steps += 1
            self.flight.append((plan, same, self.device.step(plan)))
            for row in plan.rows:
                self.first_step.setdefault(row.request_id, self.steps)
        return plan

    def land(self, *, broken: bool = False) -> None:
        """The oldest step in flight ends."""
        plan, same, result = self.flight.popleft()
        if broken:
            self.hurt |= {row.request_id for row in plan.rows}
            outcomes = fail(self.state, plan, "broken", self.now)
            fail(self.twin, same, "broken", self.now)
        else:
            outcomes = commit(self.state, plan, result, self.now)
            assert commit(self.state, plan, result, self.now) == [], "P6: what comes twice counts once"
            commit(self.twin, same, result, self.now)
        for outcome in outcomes:
            self._told(outcome)

    def step(self, *, broken: bool = False) -> StepPlan:
        """As the engine does: keep `depth` steps in flight, and land some where none can be launched."""
        plan = self.launch()
        while self.flight and (len(self.flight) >= self.sizes.depth or not plan.rows):
            self.land(broken=broken)
            broken = False
            if not plan.rows:
                break
        return plan

    def drain(self) -> int:
        """Steps until nobody lives; P3: within the bound."""
        bound = self.bound()
        taken = 0
        while self.state.live or self.flight:
            self.step()
            taken += 1
            assert taken <= bound, f"P3: {len(self.state.live)} requests live after {bound} steps"
        assert self.state.kv.live == 0
        assert not self.state.computing
        return taken

    def bound(self) -> int:
        """P3: steps until nobody lives, if nobody comes.

        A step that is not full chooses a token for each that it has a row of, and each request has so many tokens to
        choose. A full one computes as many tokens as may be, and each request is computed at most once more than it
        may still be preempted. Where several are in flight, each may have to land before another can be planned.
        """
        live = self.state.live.values()
        tokens = sum((r.max_len - 1) * (1 + PINNED - self.given_up[r.id]) for r in live)
        chosen = sum(r.max_len - r.horizon for r in live)
        launched = tokens // self.sizes.budget + chosen
        return launched if self.sizes.depth == 1 else 2 * launched + len(self.flight)

    def finish_all(self) -> None:
        """Drain; then every text is the one that it must be: P8."""
        self.drain()
        self.state.check()
        for name, reason in self.ends.items():
            wanted = text(self.prompts[name], self.params[name], self.state.limits.max_model_len)
            if reason in (FinishReason.ABORT, FinishReason.ERROR):
                assert self.outputs[name] == wanted[: len(self.outputs[name])], name
                assert reason is FinishReason.ABORT or name in self.hurt, "an error is nobody else's"
            else:
                assert self.outputs[name] == wanted, f"P8: {name}"
        assert set(self.ends) == set(self.prompts), "every request has ended"

    def _root(self, terms: Terms) -> bytes:
        if not self.sizes.cache:
            return b""
        return root(model="m", dtype="float32", block_size=self.sizes.block_size, salt=terms.cache_salt)

    def _told(self, outcome: Outcome) -> None:
        request, event = outcome.request, outcome.event
        name, params = request.id, self.params[request.id]
        assert name not in self.ends, "P6: nothing comes after the end"
        position = len(self.prompts[name]) + len(self.outputs[name])
        if params.logprobs is not None and event.token_ids:
            assert [position_of(told) for told in event.logprobs] == [position], "P6: in order of position"
        if params.prompt_logprobs is not None and event.token_ids:
            wanted = range(1, len(self.prompts[name])) if not self.outputs[name] else ()
            assert [position_of(told) for told in event.prompt_logprobs] == list(wanted), "P8: all, once, in order"
        assert event.cached_tokens == request.cached, "the same in each event of a request"
        self.told.append(outcome)
        self.outputs[name] += event.token_ids
        if outcome.finished is not None:
            self.ends[name] = outcome.finished.reason

    def _in_part(self) -> int:
        return sum(r.work > 1 for r in self.state.running.values())

    def _check(self, plan: StepPlan, same: StepPlan, continued: set[str], in_part: int) -> None:
        state, limits = self.state, self.state.limits
        assert plan == same, "P5: equal inputs give equal plans"
        assert plan.tokens <= limits.max_num_batched_tokens, "P2: the budget holds"
        assert len(state.running) <= limits.max_num_seqs, "P2: so many run at most"
        rows = {row.request_id: row for row in plan.rows}
        assert len(rows) == len(plan.rows), "P2: one row each"
        assert all(row.length >= 1 for row in plan.rows), "P2: of a token or more"
        idle = all(r.work == 0 for r in state.running.values()) and (self.flight or not state.live)
        assert plan.rows or idle, "P4: there is work, and nobody does it"
        assert continued <= rows.keys() | set(plan.preempted), "P4: every text goes on"
        most = max(2, limits.max_partial_prefills, in_part + 1)  # one more where a newcomer takes a share from others
        assert self._in_part() <= most, "P2: so many are in part computed"
        self._check_victims(plan)
        assert all(r.order == self.orders[r.id] for r in state.live.values()), "P3: a place in the queue is for life"
        if not limits.target_step:
            self._check_first(rows, limits.max_num_batched_tokens - len(continued & rows.keys()), continued)
            if plan.tokens < limits.max_num_batched_tokens:
                self._check_nobody_is_left_out(rows, limits.max_num_batched_tokens - plan.tokens, continued)
        state.check()  # P1

    def _check_victims(self, plan: StepPlan) -> None:
        """P3: so somebody always advances: the first in order, or one that needs no block."""
        running, began = self.state.running.values(), {begin.request_id for begin in plan.begins}
        for name in plan.preempted:
            assert self.given_up[name] <= PINNED, "P3: nobody gives its blocks up more often"
            others = [r for r in running if r.id not in began and self.given_up[r.id] < PINNED]
            assert all(r.order < self.orders[name] for r in others), "P3: the last by the policy gives its blocks up"
        for r in running:
            if self.given_up[r.id] >= PINNED:
                assert len(r.blocks) == self.state.kv.blocks_for(r.max_len - 1), "P3: who is left alone lacks no block"

    def _short_of_blocks(self) -> Request | None:
        """The head of the queue, if it lacks blocks and nothing else, whatever the coming step does."""
        state, kv = self.state, self.state.kv
        head = next((r for r in state.waiting if r.last_step <= state.completed), None)
        if head is None or not state.slots or self._in_part() >= self.sizes.partial or waits_to_share(state, head):
            return None
        found = kv.find(head.hashes[: (len(head.tokens) - 1) // kv.block_size])
        own = kv.blocks_for(len(head.tokens)) - len(found) + kv.unheld(found)
        return head if own > kv.available else None

    def _check_passed(self, head: Request, plan: StepPlan) -> None:
        """P3: it is passed so often and so long; then what comes free is kept for it."""
        if plan.preempted:
            return
        limits = self.state.limits
        by = sum(self.orders[begin.request_id] > head.order for begin in plan.begins)
        if by:
            self.passed[head.id] += by
            assert self.passed[head.id] <= limits.max_overtakes, "P3: passed so often"
            since = self.passed_since.setdefault(head.id, self.now)
            assert self.now - since < limits.max_blocked, "P3: passed so long"

    def _check_first(self, rows: dict[str, Row], room: int, continued: set[str]) -> None:
        """P4: the first prompt in order ends, or advances by half of what the texts leave, or by a block."""
        prompts = [r for r in self.state.running.values() if r.id not in continued and (r.id in rows or r.work > 1)]
        if prompts:
            first = min(prompts, key=lambda r: r.order)
            row = rows.get(first.id)
            assert row is not None, "P4: the first prompt advances"
            assert row.samples or row.length >= min(room, max(room // 2, self.sizes.block_size)), "P4: by half"

    def _check_nobody_is_left_out(self, rows: dict[str, Row], left: int, continued: set[str]) -> None:
        """P4: while a step has tokens left, whoever runs has computed all that is known; while it has a slot left too,
        whoever waits does so for a token in flight, for what another computes, for blocks, for one before it that
        was passed often enough, or since it would take from other prompts, so that too many were in part computed."""
        state = self.state
        assert all(row.samples for row in rows.values()), "P4: a prompt is cut, and tokens are left"
        assert all(r.work == 0 or r.id in rows for r in state.running.values()), "P4: one is left out"
        for request in islice(state.waiting, LOOK_AHEAD if state.slots else 0):
            if request.last_step > state.completed or waits_to_share(state, request):
                continue
            is_long = len(request.tokens) > left and rows.keys() - continued
            assert is_long or not self._fits(request), f"P4: {request.id} waits beside all that it needs"
            if self._was_passed_enough(request):
                return

    def _fits(self, request: Request) -> bool:
        """Even if everybody wrote all that they may; where nothing is kept for growth: with what they hold now."""
        state, kv = self.state, self.state.kv
        found = kv.find(request.hashes[: (len(request.tokens) - 1) // kv.block_size])
        pinned = self.given_up[request.id] >= PINNED
        own = kv.blocks_for(request.max_len - 1 if pinned else len(request.tokens)) - len(found) + kv.unheld(found)
        growing = () if self.sizes.reckless else (request, *state.running.values())
        growth = sum(r.max_len // kv.block_size + 1 - len(r.blocks) for r in growing)
        return not state.running or own + growth <= kv.available

    def _was_passed_enough(self, request: Request) -> bool:
        limits = self.state.limits
        since = self.now if request.blocked_since is None else request.blocked_since
        return request.overtaken >= limits.max_overtakes or self.now - since >= limits.max_blocked


def private_prompt(name: str, n: int) -> list[int]:
    dice = random.Random(name)
    return [dice.randrange(VOCAB) for _ in range(n)]


def shape(plan: StepPlan) -> list[tuple[str, int, int, bool]]:
    return [(row.request_id, row.start, row.length, row.samples) for row in plan.rows]


def waiting(world: World) -> list[str]:
    return [r.id for r in world.state.waiting]
