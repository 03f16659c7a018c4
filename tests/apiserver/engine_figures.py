"""An engine's metrics page without an engine: its own figures, told of one served request each time that they move."""

import threading
from dataclasses import dataclass, field, replace

from pinrail_engine.core.commit import Outcome
from pinrail_engine.core.plan import Row, StepPlan
from pinrail_engine.core.request import Finished, Request
from pinrail_engine.core.step_time import TERMS
from pinrail_engine.core.types import FinishReason, SamplingParams, Terms, TokenEvent
from pinrail_engine.metrics import NOTHING, Computing, Identity, Metrics

BLOCKS = 100
IDLE = replace(NOTHING, free_blocks=BLOCKS, step_time=dict.fromkeys(TERMS, 0.0))
_COMPUTING = Computing(backend="native", instructions="avx2", dtype="float32", quantization="none", threads=1)
_IDENTITY = Identity(model_name="m", digest="sha256:" + "0" * 64, engine_version="1", verification="verified",
                     block_size=16, max_num_seqs=4, computing=_COMPUTING)  # fmt: skip


@dataclass(slots=True)
class Figures:
    metrics: Metrics = field(default_factory=lambda: Metrics(_IDENTITY))
    served: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.metrics.laid_out(BLOCKS)

    def page(self) -> bytes:
        return self.metrics.page(IDLE)

    def moved(self) -> bytes:
        """The page after one more request of six tokens, two of them from the cache, and three steps. Thread-safe."""
        with self.lock:
            self._serve()
            return self.page()

    def _serve(self) -> None:
        """Received at 9, arrived at 10, first step at 11, tokens at 13, 14 and 15."""
        self.served += 1
        request = Request.new(
            str(self.served), [1] * 6, SamplingParams(max_tokens=8), 100_000, 10.0, Terms(received=9.0), root=b"r"
        )
        request.scheduled_at, request.cached, request.computed = 11.0, 2, 6
        self.metrics.began(request)
        for now, lengths in ((13.0, (4,)), (14.0, (1,)), (15.0, (1, 4))):
            rows = tuple(Row(str(i), i, 8, length, True) for i, length in enumerate(lengths))
            self.metrics.step(StepPlan(1, rows), 0.25, None)
            since = None if request.last_token_at is None else now - request.last_token_at
            request.tokens.append(1)
            request.first_token_at, request.last_token_at = request.first_token_at or now, now
            self.metrics.outcome(Outcome(request, TokenEvent((1,)), since, None))
        self.metrics.finished(Finished(request, FinishReason.LENGTH, 15.0))
