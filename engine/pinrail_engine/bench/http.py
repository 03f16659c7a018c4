"""Plays a load to any server that speaks OpenAI's /v1/completions. Acts: sends, reads streams, cuts off.

Requests are sent at their arrivals, however slow the answers are, or so many at once. Prompts are token ids. What is
timed is chunks that carry text: tokens that come in one chunk came at one time, so ITL is the gap between chunks; the
number of tokens is what the server's usage says. Tokens that are half a character or no text at all come with the next
chunk that is.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

from .alone import Rates
from .errors import BenchError
from .load import Load, Progress, silent
from .records import Ending, Record
from .stream import Answer, BrokenAnswer, ask
from .workload import Job

_BUSY = (429, 503)
_ANSWER_SECONDS = 10.0  # of a short question


@dataclass(frozen=True, slots=True)
class Served:
    """What /v1/models tells."""

    model: str
    max_len: int  # tokens that prompt and output may have together; 0: not told


def served(url: str) -> Served:
    """The first model that a server has. Raises BenchError."""
    try:
        entry = json.loads(asyncio.run(_models(url)))["data"][0]
        return Served(str(entry["id"]), int(entry.get("max_model_len") or 0))
    except (OSError, EOFError, BrokenAnswer) as e:
        raise BenchError(f"{url}: does not answer: {str(e) or type(e).__name__}") from e
    except (ValueError, LookupError, TypeError, AttributeError) as e:
        raise BenchError(f"{url}/v1/models: answers what no OpenAI server would ({type(e).__name__}: {e})") from e


async def _models(url: str) -> bytes:
    try:
        async with asyncio.timeout(_ANSWER_SECONDS), ask(f"{url}/v1/models") as answer:
            body = await answer.read()
    except ValueError as e:
        raise BenchError(str(e)) from e
    if answer.status != 200:
        raise BrokenAnswer(f"{answer.status}: {_message(body)}")
    return body


def play(
    url: str,
    model: str,
    load: Load,
    *,
    rates: Rates | None = None,
    progress: Progress = silent,
    clock: Callable[[], float] = time.monotonic,
) -> list[Record]:
    """One record per job; returns when all have ended, or the time is over.

    Args:
        url: Of the server, without /v1.
        clock: Seconds, monotonic.
    """
    records = load.records(rates)
    asyncio.run(_play(_Server(f"{url}/v1/completions", model, clock, clock()), load, records, progress))
    return records


@dataclass(frozen=True, slots=True)
class _Server:
    endpoint: str
    model: str
    clock: Callable[[], float]
    began: float

    def now(self) -> float:
        """Seconds from the start."""
        return self.clock() - self.began


async def _play(server: _Server, load: Load, records: list[Record], progress: Progress) -> None:
    room = asyncio.Semaphore(load.concurrency or len(records) or 1)
    try:
        async with asyncio.timeout(load.timeout), asyncio.TaskGroup() as requests:
            for i in range(len(records)):
                await _until_due(server, load, records[i], room)
                requests.create_task(_request(server, load, i, records[i], room, progress))
    except TimeoutError:
        pass  # the records say whom it cut off


async def _until_due(server: _Server, load: Load, record: Record, room: asyncio.Semaphore) -> None:
    await room.acquire()
    if load.concurrency:
        record.arrival = server.now()
    else:
        await asyncio.sleep(max(0.0, record.arrival - server.now()))


async def _request(
    server: _Server, load: Load, i: int, record: Record, room: asyncio.Semaphore, progress: Progress
) -> None:
    try:
        async with ask(server.endpoint, _body(server.model, load, load.jobs[i])) as answer:
            await _read(answer, server, record)
    except (OSError, EOFError, BrokenAnswer) as e:
        record.end(server.now(), Ending.FAILED, f"{type(e).__name__}: {e}".rstrip(": "))
    except asyncio.CancelledError:
        record.end(server.now(), Ending.CUT)
        raise
    finally:
        room.release()
        progress(1)


def _body(model: str, load: Load, job: Job) -> bytes:
    asked = {
        "model": model,
        "prompt": job.prompt_tokens(load.vocab_size, load.seed),
        "max_tokens": job.output_len,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    return json.dumps(asked).encode()


async def _read(answer: Answer, server: _Server, record: Record) -> None:
    if answer.status != 200:
        said = _message(await answer.read())
        ending = Ending.REFUSED if answer.status in _BUSY else Ending.FAILED
        record.end(server.now(), ending, f"{answer.status}: {said}")
        return
    stream = _Stream(record)
    try:
        async for chunk in _chunks(answer):
            stream.take(chunk, server.now())
    except (ValueError, LookupError, TypeError, AttributeError) as e:
        record.end(server.now(), Ending.FAILED, f"answers what no OpenAI server would ({type(e).__name__}: {e})")
        return
    stream.close(server.now())


async def _chunks(answer: Answer) -> AsyncIterator[dict[str, Any]]:
    async for line in answer.lines():
        if line.startswith(b"data:"):
            data = line[5:].strip()
            if data == b"[DONE]":
                return
            yield json.loads(data)


class _Stream:
    """The chunks of one stream, as they come."""

    def __init__(self, record: Record) -> None:
        self._record = record
        self._finish = self._error = ""
        self._tokens: int | None = None  # as the server counts them
        self._ended_at: float | None = None

    def take(self, chunk: dict[str, Any], now: float) -> None:
        record = self._record
        if chunk.get("error"):
            self._error = str(chunk["error"].get("message"))
        for choice in chunk.get("choices") or ():
            self._finish = choice.get("finish_reason") or self._finish
            if choice.get("text") or (self._finish and record.first_token_at is None):
                record.token(now)
            if self._finish:
                self._ended_at = now
        usage = chunk.get("usage")
        if usage:
            self._tokens = int(usage["completion_tokens"])
            cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
            record.cached_tokens = record.cached_tokens if cached is None else int(cached)

    def close(self, now: float) -> None:
        record = self._record
        if self._tokens is not None:
            record.output_len = self._tokens
        if self._error:
            record.end(now, Ending.FAILED, self._error)
        elif self._finish in ("stop", "length"):
            record.end(now if self._ended_at is None else self._ended_at, Ending.FINISHED)
        else:
            record.end(now, Ending.FAILED, f"the stream ended with finish_reason {self._finish or 'missing'}")


def _message(body: bytes) -> str:
    """The server's own words, if they can be found."""
    try:
        error = json.loads(body)["error"]
        return str(error["message"] if isinstance(error, dict) else error)
    except (ValueError, LookupError, TypeError):
        return body[:200].decode(errors="replace")
