"""Several answers to one prompt: let in together, told apart by `index`, counted together, ended together."""

import json
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import httpx
import openai
import pytest
from fake_engine import EOS, FakeEngine, ids, tokens

from pinrail_engine.api.admission import Admission, Kind
from pinrail_engine.api.errors import Broken
from pinrail_engine.api.generation import Generation
from pinrail_engine.api.terms import Caller
from pinrail_engine.core.types import FinishReason, Refused, TokenEvent
from pinrail_engine.text.output import Output
from pinrail_engine.text.pipeline import TextPipeline

OpenAI = Callable[[FakeEngine], openai.OpenAI]
Http = Callable[[FakeEngine], httpx.Client]
HI: list[Any] = [{"role": "user", "content": "hi"}]
STREAMED = {"stream": True, "stream_options": {"include_usage": True}}


def three(*texts: str) -> FakeEngine:
    return FakeEngine(scripts={i: tokens(text) for i, text in enumerate(texts)})


def keys(engine: FakeEngine) -> list[str]:
    return [s.request_id for s in engine.submitted]


def test_choices_come_in_order_and_are_counted_together(client: OpenAI) -> None:
    engine = three("a", "bb", "ccc")
    answer = client(engine).chat.completions.create(model="tiny", messages=HI, n=3)
    assert [(c.index, c.message.content, c.finish_reason) for c in answer.choices] == [
        (0, "a", "stop"),
        (1, "bb", "stop"),
        (2, "ccc", "stop"),
    ]
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len(engine.submitted[0].prompt)
    assert answer.usage.completion_tokens == 2 + 3 + 4
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 9


def test_each_choice_is_a_request_with_a_seed_of_its_own(client: OpenAI) -> None:
    engine = three("a", "b", "c")
    answer = client(engine).completions.create(model="tiny", prompt="hi", n=3, seed=2**63 - 2, best_of=3)
    assert keys(engine) == [f"{answer.id}-{i}" for i in range(3)]
    assert [s.params.seed for s in engine.submitted] == [2**63 - 2, 2**63 - 1, 0]
    assert len({(tuple(s.prompt), s.params.max_tokens, s.terms) for s in engine.submitted}) == 1


def test_the_cached_part_is_the_first_choices(client: OpenAI) -> None:
    cached = {i: [e._replace(cached_tokens=16 * i) for e in tokens("x")] for i in range(2)}
    usage = client(FakeEngine(scripts=cached)).chat.completions.create(model="tiny", messages=HI, n=2).usage
    assert usage is not None
    assert usage.prompt_tokens_details is not None
    assert usage.prompt_tokens_details.cached_tokens == 0


@pytest.mark.parametrize("chat", [True, False])
def test_a_stream_tells_choices_apart(client: OpenAI, chat: bool) -> None:
    api = client(three("a", "bb", "ccc"))
    more: dict[str, Any] = {"model": "tiny", "n": 3, **STREAMED}
    stream: Any = (
        api.chat.completions.create(messages=HI, **more) if chat else api.completions.create(prompt="hi", **more)
    )
    *chunks, last = list(stream)
    texts, finishes, roles = Counter[Any](), Counter[Any](), Counter[Any]()
    for choice in (c.choices[0] for c in chunks):
        texts[choice.index, (choice.delta.content or "") if chat else choice.text] += 1
        finishes[choice.index, choice.finish_reason] += choice.finish_reason is not None
        roles[choice.index] += bool(chat and choice.delta.role)
    assert {i: t for i, t in texts if t} == {0: "a", 1: "bb", 2: "ccc"}
    assert +finishes == Counter({(i, "stop"): 1 for i in range(3)})
    assert +roles == Counter(range(3) if chat else ())
    assert (last.choices, last.usage.completion_tokens) == ([], 9)


def test_choices_interleave_as_they_come(http: Http) -> None:
    engine = FakeEngine()

    def play() -> None:
        engine.wait_for(lambda e: len(e.submitted) == 2)
        first, second = keys(engine)
        engine.emit(second, [TokenEvent(ids("B1"))])
        engine.emit(first, [TokenEvent(ids("A1"))])
        engine.emit(second, [TokenEvent((*ids("B2"), EOS), FinishReason.STOP)])
        engine.emit(first, [TokenEvent(ids("A2"), FinishReason.LENGTH)])

    player = threading.Thread(target=play)
    player.start()
    body = {"model": "tiny", "prompt": "hi", "n": 2, "stream": True}
    *events, done, rest = http(engine).post("/v1/completions", json=body).text.split("\n\n")
    player.join()
    choices = [json.loads(event.removeprefix("data: "))["choices"][0] for event in events]
    assert [(c["index"], c["text"], c["finish_reason"]) for c in choices] == [
        (1, "B1", None),
        (0, "A1", None),
        (1, "B2", None),
        (1, "", "stop"),
        (0, "A2", None),
        (0, "", "length"),
    ]
    assert (done, rest) == ("data: [DONE]", "")


@pytest.mark.parametrize("stream", [False, True])
def test_one_refused_is_all_refused(client: OpenAI, stream: bool) -> None:
    engine = FakeEngine(refusal=Refused("full", retry_after=3, overloaded=True), room=2)
    with pytest.raises(openai.RateLimitError, match="full"):
        client(engine).chat.completions.create(model="tiny", messages=HI, n=3, stream=stream)
    assert engine.finished == [(key, FinishReason.ABORT) for key in keys(engine)]
    assert len(engine.finished) == 2


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("reason", "status"), [(FinishReason.ERROR, 500), (FinishReason.REJECTED, 429), (FinishReason.ABORT, 503)]
)
def test_one_failed_before_the_first_token_fails_all(
    client: OpenAI, stream: bool, reason: FinishReason, status: int
) -> None:
    engine = FakeEngine(scripts={1: [TokenEvent((), reason, "x")]})
    with pytest.raises(openai.APIStatusError) as caught:
        client(engine).chat.completions.create(model="tiny", messages=HI, n=3, stream=stream)
    assert caught.value.status_code == status
    assert engine.finished == [(keys(engine)[i], FinishReason.ABORT) for i in (0, 2)]


@pytest.mark.parametrize("reason", [FinishReason.ERROR, FinishReason.REJECTED])
def test_one_failed_in_a_stream_ends_it(client: OpenAI, reason: FinishReason) -> None:
    engine = FakeEngine(scripts={0: tokens("abc", finish=None)})
    stream = client(engine).chat.completions.create(model="tiny", messages=HI, n=3, stream=True)
    assert next(stream).choices[0].index == 0
    engine.emit(keys(engine)[2], [TokenEvent((), reason, "x")])
    with pytest.raises(openai.APIError):
        list(stream)
    assert engine.finished == [(keys(engine)[i], FinishReason.ABORT) for i in (0, 1)]


def test_a_stop_string_ends_its_own_choice_alone(client: OpenAI) -> None:
    engine = FakeEngine(scripts={0: tokens("aSTOPzz", finish=None), 1: tokens("bb")})
    answer = client(engine).chat.completions.create(model="tiny", messages=HI, n=2, stop="STOP")
    assert [c.message.content for c in answer.choices] == ["a", "bb"]
    assert engine.finished == [(keys(engine)[0], FinishReason.STOP)]


def test_the_log_names_each_way_to_end_once(http: Http, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "pinrail.api")
    engine = FakeEngine(scripts={0: tokens("a"), 1: tokens("b", finish=FinishReason.LENGTH), 2: tokens("c")})
    api = http(engine)
    api.post("/v1/completions", json={"model": "tiny", "prompt": "hi", "n": 3})
    api.get("/health")
    assert "status=200 stream=false finish=stop,length prompt_tokens=2 completion_tokens=5" in caplog.text


def submitted(engine: FakeEngine, text: TextPipeline) -> Generation:
    body = b'{"model": "tiny", "prompt": "hi", "n": 2}'
    ask = Admission("tiny", text, 256, "fcfs").admit(Kind.TEXT, body, Caller(), 0)
    outputs = [Output(text.detokenizer(), ["STOP"], frozenset()) for _ in range(ask.choices)]
    return Generation(engine, "ID", outputs).submit(ask)


async def test_what_was_on_its_way_when_a_choice_ended_is_dropped(text: TextPipeline) -> None:
    engine = FakeEngine()
    generation = submitted(engine, text)
    engine.emit("ID-0", tokens("aSTOP", "zz"))
    engine.emit("ID-1", tokens("b", finish=None))
    assert [(choice, piece.text) for choice, piece in [await generation.next(), await generation.next()]] == [
        (0, "a"),
        (1, "b"),
    ]


async def test_the_others_end_before_the_client_is_told_of_an_error(text: TextPipeline) -> None:
    engine = FakeEngine()
    generation = submitted(engine, text)
    engine.emit("ID-0", [TokenEvent((), FinishReason.ERROR, "x")])
    with pytest.raises(Broken):
        await generation.next()
    assert engine.finished == [("ID-1", FinishReason.ABORT)]
