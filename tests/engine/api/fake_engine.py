"""An engine whose tokens a test scripts, emitted from a thread as the real one does; a model of a byte a token."""

import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from pinrail_engine.core.types import FinishReason, Refused, SamplingParams, Sink, TokenEvent
from pinrail_engine.text.decoder import byte_table
from pinrail_engine.text.pipeline import TextPipeline

WAIT = 10.0  # seconds; a test that waits so long has failed
EOS = 257
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


@dataclass
class FakeEngine:
    """`script` is what every request gets; None leaves a request open, for `emit`."""

    script: list[TokenEvent] | None = None
    refusal: Refused | None = None
    max_model_len: int = 256
    state: str = "ready"
    healthy: bool = True
    submitted: list[Submitted] = field(default_factory=list)
    finished: list[tuple[str, FinishReason]] = field(default_factory=list)
    open: dict[str, Sink] = field(default_factory=dict)
    changed: threading.Condition = field(default_factory=threading.Condition)

    def is_healthy(self) -> bool:
        return self.healthy

    def submit(self, request_id: str, prompt: Sequence[int], params: SamplingParams, sink: Sink) -> None:
        if self.refusal is not None:
            raise self.refusal
        with self.changed:
            assert request_id not in self.open
            self.open[request_id] = sink
            self.submitted.append(Submitted(request_id, list(prompt), params, sink))
            self.changed.notify_all()
        if self.script is not None:
            threading.Thread(target=self.emit, args=(request_id, self.script)).start()

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

    def metrics_page(self) -> bytes:
        return b"vllm:num_requests_running 0\n"

    def wait_for(self, what: Callable[["FakeEngine"], bool]) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: what(self), WAIT)
