"""What one request's tokens mean as text: pieces to send, and how the answer ended. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pinrail_engine.core.types import FinishReason, TokenEvent, TokenLogprobs

from .detokenize import Detokenizer
from .stop import StopMatcher


@dataclass(frozen=True, slots=True)
class End:
    reason: FinishReason
    completion_tokens: int  # generated, the stop token included; those after a stop string are not counted
    stop: str | int | None = None  # the stop string, or the stop token that is no end-of-sequence
    error: str = ""  # the engine's sentence, with ERROR or REJECTED
    retry_after: int | None = None  # seconds, with REJECTED
    cached_tokens: int = 0  # of the prompt


class ScoredToken(NamedTuple):
    token_id: int
    logprobs: TokenLogprobs
    offset: int  # characters of the text that were whole before it


@dataclass(frozen=True, slots=True)
class Piece:
    """Text and the end may come together; the text is never lost for the end."""

    text: str
    end: End | None = None
    scores: tuple[ScoredToken, ...] = ()  # of tokens since the last piece that had text; only with text or the end
    prompt_scores: tuple[TokenLogprobs, ...] = ()  # of the prompt's tokens but the first; once


class Output:
    """Turns a request's events into pieces.

    | event                                         | text                     | end                              |
    |-----------------------------------------------|--------------------------|----------------------------------|
    | a stop string ends after `min_tokens` tokens  | up to its start          | STOP, the string; later ids void |
    | a stop string ends before                     | it is text like any      | as below                         |
    | finish STOP                                   | without the last id's    | STOP, the id unless it is an eos |
    | any other finish                              | all, held-back included  | as the event says                |
    | none                                          | all but what is held     | None                             |

    A token's score waits for the next piece with text or the end, so held-back text does not come after its scores.
    There are as many scores as completion tokens: those of a stop token and of the tokens of a stop string are among
    them, those of void ids are not.

    Args:
        min_tokens: No stop string ends within so many tokens; the engine sees to the stop tokens.
    """

    def __init__(
        self, detokenizer: Detokenizer, stops: Sequence[str], eos_token_ids: frozenset[int], min_tokens: int = 0
    ) -> None:
        self._detokenizer = detokenizer
        self._stop = StopMatcher(stops)
        self._eos_token_ids = eos_token_ids
        self._min_tokens = min_tokens
        self._chars = 0  # of the text so far, held back or not
        self._unsent: list[ScoredToken] = []
        self.completion_tokens = 0

    def push(self, event: TokenEvent) -> Piece:
        by_token = event.finish is FinishReason.STOP and bool(event.token_ids)
        shown = len(event.token_ids) - by_token
        text = ""
        for index in range(shown):
            self._count(event, index)
            text += self._read(self._detokenizer.push(event.token_ids[index]))
            if self._stop.matched is not None:
                return self._stopped(event, text)
        if event.finish is None:
            return self._piece(event, text)
        text += self._read(self._detokenizer.flush())
        if self._stop.matched is not None:
            return self._stopped(event, text)
        if by_token:
            self._count(event, shown)
        stop_token = event.token_ids[-1] if by_token else None
        return self._piece(event, text + self._stop.flush(), self._end(event, event.finish, self._named(stop_token)))

    def _count(self, event: TokenEvent, index: int) -> None:
        self.completion_tokens += 1
        if event.logprobs:
            self._unsent.append(ScoredToken(event.token_ids[index], event.logprobs[index], self._chars))

    def _read(self, text: str) -> str:
        self._chars += len(text)
        return self._stop.push(text, may_stop=self.completion_tokens > self._min_tokens)

    def _named(self, stop_token: int | None) -> int | None:
        return None if stop_token in self._eos_token_ids else stop_token

    def _stopped(self, event: TokenEvent, text: str) -> Piece:
        return self._piece(event, text, self._end(event, FinishReason.STOP, self._stop.matched))

    def _end(self, event: TokenEvent, reason: FinishReason, stop: str | int | None) -> End:
        return End(reason, self.completion_tokens, stop, event.error, event.retry_after, event.cached_tokens)

    def _piece(self, event: TokenEvent, text: str, end: End | None = None) -> Piece:
        if not self._unsent or not (text or end):
            return Piece(text, end, (), event.prompt_logprobs)
        scores, self._unsent = tuple(self._unsent), []
        return Piece(text, end, scores, event.prompt_logprobs)
