"""A backend that is arithmetic, an engine on it with a clock that tests turn, and the real model."""

import threading
from collections.abc import Callable, Iterator

import pytest
import torch

from pinrail_engine.core.kv_blocks import KvBlocks
from pinrail_engine.core.plan import Row, StepPlan
from pinrail_engine.core.state import Limits, State
from pinrail_engine.metrics import Identity, Metrics
from pinrail_engine.run.loop import EngineLoop


class FakeBackend:
    """The next token is a function of every token before it, read back through the block table as attention does."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.slots: dict[int, int] = {}  # what is written in the cache: slot -> token
        self.broken: Exception | None = None  # raised by the next step
        self.refused: Exception | None = None  # raised by the load
        self.gate = threading.Event()  # a step waits for it
        self.gate.set()
        self.steps = 0
        self.freed = False

    def load(self) -> None:
        if self.refused is not None:
            raise self.refused

    def step(self, plan: StepPlan) -> list[int]:
        assert self.gate.wait(10), "the test never opened the gate"
        self.steps += 1
        if self.broken is not None:
            error, self.broken = self.broken, None
            raise error
        for row in plan.rows:
            for position, token in enumerate(row.token_ids, row.start):
                self.slots[self._slot(row, position)] = token
        return [self.next_token([self.slots[self._slot(row, p)] for p in range(row.end)]) for row in plan.sampled]

    def free(self) -> None:
        self.freed = True

    def _slot(self, row: Row, position: int) -> int:
        return row.blocks[position // self.block_size] * self.block_size + position % self.block_size

    @staticmethod
    def next_token(context: list[int]) -> int:
        return sum((i + 1) * token for i, token in enumerate(context)) * 31 % 1009


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Rig:
    """An engine whose turns a test makes itself, unless it starts the thread."""

    def __init__(
        self, *, blocks: int = 64, seqs: int = 4, budget: int = 16, window: int = 64, max_queued: int = 8
    ) -> None:
        self.clock = Clock()
        self.backend = FakeBackend(block_size=4)
        limits = Limits(vocab_size=1009, max_model_len=window, max_num_seqs=seqs, max_num_batched_tokens=budget)
        self.state = State(limits, KvBlocks(blocks, 4))
        identity = Identity(
            model_name="m",
            digest="sha256:" + "0" * 64,
            engine_version="1",
            verification="verified",
            kv_blocks=blocks,
            block_size=4,
            max_num_seqs=seqs,
        )
        self.engine = EngineLoop(self.state, self.backend, Metrics(identity), max_queued=max_queued, clock=self.clock)

    def load(self) -> "Rig":
        self.engine._load_backend()
        return self

    def turn(self, seconds: float = 0.0) -> None:
        """One step, which takes so long."""
        self.clock.now += seconds
        self.engine._turn()
        self.state.check()

    def run(self) -> None:
        while self.state.live:
            self.turn()

    def figure(self, name: str) -> float:
        """One sample of the metrics page, by name and labels other than the engine's own."""
        page = self.engine.metrics_page().decode().replace('engine="0",', "").replace('model_name="m"', "")
        found = [line for line in page.splitlines() if line.replace(",}", "}").replace("{}", "").startswith(name + " ")]
        assert len(found) == 1, f"{name}: {found}"
        return float(found[0].rpartition(" ")[2])


@pytest.fixture
def make_rig() -> Iterator[Callable[..., Rig]]:
    made: list[Rig] = []

    def make(**changes: int) -> Rig:
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
