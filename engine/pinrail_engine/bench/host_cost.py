"""What the scheduler itself costs: plan and commit of one step, without model, clock or threads.

Every row continues a text in a cache that is full of prefixes; each 16th step of a row takes a new block and publishes
the one before. In the second figure a prompt is being computed beside them, and others wait.
"""

import gc
import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from statistics import median

from pinrail_contract.launch import Policy

from ..core.commit import commit
from ..core.kv_blocks import KvBlocks
from ..core.plan import StepPlan, StepResult
from ..core.prefix import root
from ..core.request import Request
from ..core.scheduler import schedule
from ..core.state import Limits, State
from ..core.types import SamplingParams

ROWS = (1, 32, 256, 1024)
_BLOCK_SIZE = 16  # tokens
_PROMPT = 512  # tokens of each text
_LONG = 30_000  # tokens of the prompts beside them
_STEPS = 64  # measured
_WAITING = 64  # requests
_ROOT = root(model="bench", dtype="none", block_size=_BLOCK_SIZE)


@dataclass(frozen=True, slots=True)
class HostCost:
    rows: int  # texts that go on
    decode_ms: float  # median of a step in which nothing else happens
    mixed_ms: float  # median of a step with a prompt in part computed, and a queue

    def __str__(self) -> str:
        return f"{self.rows:5} texts  step {self.decode_ms:7.3f} ms   with a prompt beside them {self.mixed_ms:7.3f} ms"

    def to_json(self) -> str:
        return json.dumps(asdict(self))


def measure(rows: int) -> HostCost:
    """With the policy `sjf`, a prefix cache and a model of step time; the garbage collector as the engine sets it."""
    gc.set_threshold(20_000, 50, 100)
    return HostCost(rows, _median(_steps(_texts(rows))), _median(_steps(_with_prompts(_texts(rows)))))


def _median(seconds: Iterator[float]) -> float:
    return round(1000 * median(seconds), 4)


def _texts(rows: int) -> State:
    """So many texts that have their first token."""
    limits = Limits(
        vocab_size=2**20,
        max_model_len=2 * _LONG,
        max_num_seqs=rows + 1,
        max_num_batched_tokens=rows + 2048,
        policy=Policy.SJF,
        target_step=0.05,
        max_partial_prefills=4,
    )
    state = State(limits, KvBlocks(rows * 2 * _PROMPT // _BLOCK_SIZE + 10 * _LONG // _BLOCK_SIZE, _BLOCK_SIZE))
    for i in range(rows):
        _enter(state, f"text {i}", range(i, i + _PROMPT), 4 * _PROMPT)
    while any(r.first_token_at is None for r in state.live.values()):
        _step(state)
    state.step_time.coefficients = (0.005, 1e-5, 1e-6, 1e-8, 1e-9)
    return state


def _with_prompts(state: State) -> State:
    """A long prompt, and a queue behind it for which there is no slot."""
    for i in range(_WAITING):
        _enter(state, f"prompt {i}", range(2**18 + i, 2**18 + i + _LONG), 1)
    return state


def _enter(state: State, name: str, prompt: range, output: int) -> None:
    params = SamplingParams(max_tokens=output)
    length = state.limits.max_model_len
    state.enter(Request.new(name, prompt, params, length, 0.0, root=_ROOT, block_size=_BLOCK_SIZE))


def _steps(state: State) -> Iterator[float]:
    for _ in range(_STEPS):
        began = time.perf_counter()
        plan = schedule(state, 1.0)
        planned = time.perf_counter()
        result = _result(plan)
        resumed = time.perf_counter()
        commit(state, plan, result, 1.0)
        yield time.perf_counter() - resumed + planned - began


def _step(state: State) -> None:
    plan = schedule(state, 1.0)
    commit(state, plan, _result(plan), 1.0)


def _result(plan: StepPlan) -> StepResult:
    return StepResult([7] * len(plan.sampled), (), {})
