"""A backend that is arithmetic, an engine on it with a clock that tests turn, and the real model."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from fake_device import FakeDevice
from prometheus_client.parser import text_string_to_metric_families

from pinrail_contract.launch import Policy
from pinrail_engine.core.door import Caps
from pinrail_engine.core.kv_blocks import KvBlocks
from pinrail_engine.core.plan import StepPlan, StepResult
from pinrail_engine.core.prefix import root
from pinrail_engine.core.state import Limits, State
from pinrail_engine.metrics import Computing, Identity, Metrics
from pinrail_engine.run.backend import Wait
from pinrail_engine.run.loop import EngineLoop, LoopOptions

VOCAB = 1009


class FakeBackend(FakeDevice):
    """Carries a step out when it is launched; its result is there when the gate is open."""

    def __init__(self, block_size: int, vocab: int) -> None:
        super().__init__(block_size, vocab)
        self.last = -5  # warm-up plans come before the first one's number
        self.broken: Exception | None = None  # raised by the next step
        self.refused: Exception | None = None  # raised by the load
        self.gate = threading.Event()  # a result waits for it
        self.gate.set()
        self.steps = 0
        self.freed = False

    def load(self) -> None:
        if self.refused is not None:
            raise self.refused

    def measure(self, seqs: int, tokens: int) -> int:
        return 2**20

    def allocate(self, kv_blocks: int, seqs: int, max_model_len: int) -> None:
        pass

    def launch(self, plan: StepPlan) -> Wait:
        self.steps += 1
        error, self.broken = self.broken, None
        result = self.step(plan)
        return lambda: self._result(result, error)

    def free(self) -> None:
        self.freed = True

    def _result(self, result: StepResult, error: Exception | None) -> StepResult:
        assert self.gate.wait(10), "the test never opened the gate"
        if error is not None:
            raise error
        return result


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Rig:
    """An engine whose turns a test makes itself, unless it starts the thread."""

    def __init__(
        self,
        *,
        blocks: int = 64,
        seqs: int = 4,
        budget: int = 16,
        window: int = 64,
        depth: int = 1,
        share: bool = False,
        policy: Policy = Policy.FCFS,
        max_queued: int = 8,
        max_queued_tokens: int = 0,
        max_wait: float = 0,
        vocab: int = VOCAB,
    ) -> None:
        self.clock = Clock()
        self.backend = FakeBackend(4, vocab)
        limits = Limits(
            vocab_size=vocab, max_model_len=window, max_num_seqs=seqs, max_num_batched_tokens=budget, policy=policy
        )
        self.state = State(limits, KvBlocks(blocks, 4))
        identity = Identity(
            model_name="m",
            digest="sha256:" + "0" * 64,
            engine_version="1",
            verification="verified",
            block_size=4,
            max_num_seqs=seqs,
            computing=Computing(backend="fake", instructions="none", dtype="float32", quantization="none", threads=1),
        )
        options = LoopOptions(
            caps=Caps(max_queued=max_queued, max_queued_tokens=max_queued_tokens, max_wait=max_wait),
            steps_in_flight=depth,
            policy=policy,
            root_of=(lambda salt: root(model="m", dtype="f", block_size=4, salt=salt)) if share else None,
        )
        self.engine = EngineLoop(lambda: self.state, self.backend, Metrics(identity), options, clock=self.clock)

    def load(self) -> "Rig":
        self.engine._load_backend()
        return self

    def turn(self, seconds: float = 0.0) -> None:
        """One step, which takes so long."""
        self.clock.now += seconds
        self.engine._turn(self.state)
        self.state.check()

    def run(self) -> None:
        while self.state.live:
            self.turn()

    def figure(self, name: str, **labels: str) -> float:
        """One sample of the metrics page, by name and labels other than the engine's own."""
        wanted = labels | {"engine": "0", "model_name": "m"}
        families = text_string_to_metric_families(self.engine.metrics_page().decode())
        found = [s.value for f in families for s in f.samples if s.name == name and s.labels in (labels, wanted)]
        assert len(found) == 1, f"{name} {labels}: {found}"
        return found[0]


@pytest.fixture
def make_rig() -> Iterator[Callable[..., Rig]]:
    made: list[Rig] = []

    def make(**changes: Any) -> Rig:
        made.append(Rig(**changes))
        return made[-1]

    yield make
    for rig in made:
        rig.backend.gate.set()
        rig.engine.stop()


@pytest.fixture
def rig(make_rig: Callable[..., Rig]) -> Rig:
    return make_rig().load()


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)
