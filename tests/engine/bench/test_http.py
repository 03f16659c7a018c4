"""The HTTP driver against a real server on 127.0.0.1: streams, refusals, failures, and the end of the time."""

from collections.abc import Callable

import pytest
from fake_server import WAIT, Handler, Server, complete, end, stream, text, usage
from starlette.responses import JSONResponse, Response

from pinrail_engine.bench.errors import BenchError
from pinrail_engine.bench.http import Served, play, served
from pinrail_engine.bench.load import Load
from pinrail_engine.bench.records import Ending, Record
from pinrail_engine.bench.workload import Job, Piece


def load(*arrivals: float, output: int = 3, concurrency: int = 0, timeout: float = WAIT) -> Load:
    jobs = [Job(at, (Piece(i, 8),), Piece(-1 - i, output)) for i, at in enumerate(arrivals)]
    return Load(jobs=jobs, vocab_size=100, seed=0, timeout=timeout, concurrency=concurrency)


def ask(server: tuple[Server, str], handler: Handler, load: Load) -> list[Record]:
    server[0].handler = handler
    return play(server[1], "m", load)


def test_a_stream_becomes_a_record(server: tuple[Server, str]) -> None:
    (record,) = ask(server, complete, load(0))
    assert (record.ending, record.output_len, record.cached_tokens, len(record.gaps)) == (Ending.FINISHED, 3, 4, 2)
    assert record.ttft is not None
    assert record.e2e is not None
    assert record.ttft <= record.e2e


def test_what_is_asked_for(server: tuple[Server, str]) -> None:
    ask(server, complete, load(0))
    (body,) = server[0].bodies
    assert body == {
        "model": "m",
        "prompt": Piece(0, 8).tokens(100, 0),
        "max_tokens": 3,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_tokens_that_come_in_one_chunk_came_at_one_time(server: tuple[Server, str]) -> None:
    (record,) = ask(server, lambda _: stream(text("ab"), text("c"), end(), usage(5), "[DONE]"), load(0))
    assert (record.output_len, len(record.gaps)) == (5, 1)
    assert record.tpot == pytest.approx(record.gaps[0] / 4)


def test_an_answer_without_text_has_its_first_token_at_its_end(server: tuple[Server, str]) -> None:
    (record,) = ask(server, lambda _: stream(end("stop"), usage(2), "[DONE]"), load(0))
    assert (record.ending, record.output_len) == (Ending.FINISHED, 2)
    assert record.first_token_at == record.ended_at


def test_a_server_without_usage_is_counted_by_chunks(server: tuple[Server, str]) -> None:
    (record,) = ask(server, lambda _: stream(text("a"), text("b"), end(), "[DONE]"), load(0))
    assert (record.ending, record.output_len, record.cached_tokens) == (Ending.FINISHED, 2, None)


@pytest.mark.parametrize(
    ("answer", "ending", "said"),
    [
        pytest.param(
            lambda _: JSONResponse({"error": {"message": "the queue is full"}}, 429),
            Ending.REFUSED,
            "429: the queue is full",
            id="a full queue",
        ),
        pytest.param(
            lambda _: Response(b"bad gateway", 503), Ending.REFUSED, "503: bad gateway", id="no server behind"
        ),
        pytest.param(
            lambda _: JSONResponse({"error": "no such model"}, 404), Ending.FAILED, "404: no such model", id="a refusal"
        ),
        pytest.param(
            lambda _: stream(text("a"), {"error": {"message": "no memory"}}, "[DONE]"),
            Ending.FAILED,
            "no memory",
            id="an error in the stream",
        ),
        pytest.param(
            lambda _: stream(text("a")),
            Ending.FAILED,
            "the stream ended with finish_reason missing",
            id="it breaks off",
        ),
        pytest.param(
            lambda _: stream(text("a"), end("abort"), "[DONE]"),
            Ending.FAILED,
            "the stream ended with finish_reason abort",
            id="cut off by the server",
        ),
        pytest.param(
            lambda _: stream("{broken"),
            Ending.FAILED,
            "answers what no OpenAI server would (JSONDecodeError",
            id="no JSON",
        ),
        pytest.param(
            lambda _: stream("[1]"), Ending.FAILED, "answers what no OpenAI server would (Attr", id="no object"
        ),
    ],
)
def test_what_goes_wrong_is_recorded(server: tuple[Server, str], answer: Handler, ending: Ending, said: str) -> None:
    records = ask(server, answer, load(0, 0))
    assert [r.ending for r in records] == [ending] * 2
    assert all(r.error.startswith(said) for r in records), records[0].error


def test_a_server_that_does_not_answer_fails_every_request(free_port: Callable[[], int]) -> None:
    records = play(f"http://127.0.0.1:{free_port()}", "m", load(0, 0))
    assert [r.ending for r in records] == [Ending.FAILED] * 2
    assert records[0].error.startswith("ConnectionRefusedError: ")


def test_when_the_time_is_over_requests_are_cut_off(server: tuple[Server, str]) -> None:
    slow = [text("a")] * 100
    records = ask(server, lambda _: stream(*slow, pause=0.05), load(0, 60, output=100, timeout=0.3))
    assert [r.ending for r in records] == [Ending.CUT] * 2
    assert 1 <= records[0].output_len < 100
    assert (records[0].ended_at is not None, records[1].ended_at) == (True, None)


def test_requests_are_sent_at_their_arrivals_though_nobody_has_answered(server: tuple[Server, str]) -> None:
    records = ask(server, lambda _: stream(text("a"), end(), "[DONE]", pause=0.05), load(0, 0.02, 0.04))
    ended, arrivals = [r.ended_at for r in records], [r.arrival for r in records]
    assert arrivals == [0, 0.02, 0.04]
    assert ended[2] is not None
    assert ended[2] < 0.04 + 2 * 0.15, "not after the two others' answers"


def test_a_closed_loop_sends_one_when_another_has_ended(server: tuple[Server, str]) -> None:
    records = ask(server, complete, load(*[0.0] * 6, concurrency=2))
    events = sorted(e for r in records for e in ((r.arrival, 1), (r.ended_at or 0.0, -1)))
    living = most = 0
    for _, change in events:
        living += change
        most = max(most, living)
    assert most <= 2
    assert all(r.ending is Ending.FINISHED for r in records)


def test_what_a_server_serves(server: tuple[Server, str]) -> None:
    server[0].models = {"data": [{"id": "tiny", "max_model_len": 512}, {"id": "other"}]}
    assert served(server[1]) == Served("tiny", 512)
    server[0].models = {"data": [{"id": "tiny"}]}
    assert served(server[1]) == Served("tiny", 0)


@pytest.mark.parametrize("models", [{}, [], {"data": []}, {"data": [{"id": "a", "max_model_len": "long"}]}])
def test_a_server_of_another_kind(server: tuple[Server, str], models: object) -> None:
    server[0].models = models
    with pytest.raises(BenchError, match="answers what no OpenAI server would"):
        served(server[1])


def test_a_list_of_models_that_is_refused(server: tuple[Server, str]) -> None:
    with pytest.raises(BenchError, match="does not answer: 404: Not Found"):
        served(server[1] + "/elsewhere")


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://localhost", "http://", "http://a:b"])
def test_no_url(url: str) -> None:
    with pytest.raises(BenchError):
        served(url)


def test_no_server(free_port: Callable[[], int]) -> None:
    with pytest.raises(BenchError, match="does not answer"):
        served(f"http://127.0.0.1:{free_port()}")
