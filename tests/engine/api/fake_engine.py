"""An engine whose tokens a test scripts, emitted from a thread as the real one does; a model of a byte a token."""

import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from pinrail_engine.core.types import (
    CacheEvents,
    FinishReason,
    Refused,
    SamplingParams,
    Sink,
    Terms,
    TokenEvent,
    TokenLogprobs,
)
from pinrail_engine.text.decoder import byte_table
from pinrail_engine.text.pipeline import TextPipeline

WAIT = 10.0  # seconds; a test that waits so long has failed
EOS = 257
ANY_TERMS = Terms()
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{{ '<|im_start|>assistant\n' }}"
)


def ids(text: str) -> tuple[int, ...]:
    return tuple(text.encode())


def tokens(*texts: str, finish: FinishReason | None = FinishReason.STOP) -> list[TokenEvent]:
    """One event for each text, then the end: an end-of-sequence token, or the last text with `finish`."""
    events = [TokenEvent(ids(text)) for text in texts]
    if finish is FinishReason.STOP:
        return [*events, TokenEvent((EOS,), finish)]
    return events if finish is None else [*events[:-1], TokenEvent(events[-1].token_ids, finish)]


def scored(text: str, finish: FinishReason = FinishReason.STOP) -> list[TokenEvent]:
    """An event for each byte, with its log-probabilities: the n-th token has -n, and "?" and "!" are likelier."""
    chosen = [*ids(text), *([EOS] if finish is FinishReason.STOP else [])]
    scores = [TokenLogprobs(-float(n), 3, ((ord("?"), -0.25), (ord("!"), -0.5))) for n in range(1, len(chosen) + 1)]
    events = [TokenEvent((i,), logprobs=(s,)) for i, s in zip(chosen, scores, strict=True)]
    return [*events[:-1], events[-1]._replace(finish=finish)]


def pipeline() -> TextPipeline:
    """Byte-level, without merges: the id of a byte is the byte; 256 is <|im_start|>, 257 <|im_end|>."""
    tokenizer = Tokenizer(models.BPE(vocab=byte_table(), merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    files = {
        "tokenizer.json": tokenizer.to_str().encode(),
        "tokenizer_config.json": json.dumps({"eos_token": "<|im_end|>", "chat_template": CHATML}).encode(),
        "generation_config.json": json.dumps({"temperature": 0.5, "top_k": 40}).encode(),
    }
    return TextPipeline.from_files(files.get)


@dataclass
class Submitted:
    request_id: str
    prompt: list[int]
    params: SamplingParams
    sink: Sink
    terms: Terms


@dataclass
class FakeEngine:
    """`script` is what every request gets; None leaves a request open, for `emit`."""

    script: list[TokenEvent] | None = None
    scripts: dict[int, list[TokenEvent]] = field(default_factory=dict)  # of the n-th request, instead
    refusal: Refused | None = None
    room: int = 0  # requests that are let in before the refusal
    max_model_len: int = 256
    policy: str = "fcfs"
    events: CacheEvents = field(default_factory=lambda: CacheEvents(0, True, ()))
    state: str = "ready"
    healthy: bool = True
    submitted: list[Submitted] = field(default_factory=list)
    finished: list[tuple[str, FinishReason]] = field(default_factory=list)
    open: dict[str, Sink] = field(default_factory=dict)
    changed: threading.Condition = field(default_factory=threading.Condition)

    def is_healthy(self) -> bool:
        return self.healthy

    def submit(
        self, request_id: str, prompt: Sequence[int], params: SamplingParams, sink: Sink, terms: Terms = ANY_TERMS
    ) -> None:
        with self.changed:
            if self.refusal is not None and len(self.submitted) >= self.room:
                raise self.refusal
            assert request_id not in self.open
            script = self.scripts.get(len(self.submitted), self.script)
            self.open[request_id] = sink
            self.submitted.append(Submitted(request_id, list(prompt), params, sink, terms))
            self.changed.notify_all()
        if script is not None:
            threading.Thread(target=self.emit, args=(request_id, script)).start()

    def emit(self, request_id: str, events: list[TokenEvent]) -> None:
        for event in events:
            with self.changed:
                sink = self.open.get(request_id)
                if event.finish is not None:
                    self.open.pop(request_id, None)
                if sink is not None:
                    sink(event)
                self.changed.notify_all()

    def finish(self, request_id: str, reason: FinishReason) -> None:
        with self.changed:
            if self.open.pop(request_id, None) is not None:
                self.finished.append((request_id, reason))
            self.changed.notify_all()

    def drain(self, timeout: float) -> None:
        with self.changed:
            self.state = "draining"
            self.changed.notify_all()
            self.changed.wait_for(lambda: not self.open, timeout)
            late = list(self.open)
        for request_id in late:
            self.emit(request_id, [TokenEvent((), FinishReason.ABORT)])

    def cache_events(self, after: int) -> CacheEvents:
        newer = tuple(event for event in self.events.events if event.number > after)
        return CacheEvents(self.events.last, self.events.complete, newer)

    def metrics_page(self) -> bytes:
        return b"vllm:num_requests_running 0\n"

    def wait_for(self, what: Callable[["FakeEngine"], bool]) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: what(self), WAIT)
