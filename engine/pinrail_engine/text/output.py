"""What one request's tokens mean as text: pieces to send, and how the answer ended. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from pinrail_engine.core.types import FinishReason, TokenEvent

from .detokenize import Detokenizer
from .stop import StopMatcher


@dataclass(frozen=True, slots=True)
class End:
    reason: FinishReason
    completion_tokens: int  # generated, the stop token included; those after a stop string are not counted
    stop: str | int | None = None  # the stop string, or the stop token that is no end-of-sequence
    error: str = ""  # the engine's sentence, with ERROR or REJECTED


@dataclass(frozen=True, slots=True)
class Piece:
    """Text and the end may come together; the text is never lost for the end."""

    text: str
    end: End | None = None


class Output:
    """Turns a request's events into pieces.

    | event                         | text                     | end                              |
    |-------------------------------|--------------------------|----------------------------------|
    | a stop string completes       | up to its start          | STOP, the string; later ids void |
    | finish STOP                   | without the last id's    | STOP, the id unless it is an eos |
    | any other finish              | all, held-back included  | as the event says                |
    | none                          | all but what is held     | None                             |
    """

    def __init__(self, detokenizer: Detokenizer, stops: Sequence[str], eos_token_ids: frozenset[int]) -> None:
        self._detokenizer = detokenizer
        self._stop = StopMatcher(stops)
        self._eos_token_ids = eos_token_ids
        self.completion_tokens = 0

    def push(self, event: TokenEvent) -> Piece:
        by_token = event.finish is FinishReason.STOP and bool(event.token_ids)
        text = ""
        for token_id in event.token_ids[:-1] if by_token else event.token_ids:
            self.completion_tokens += 1
            text += self._stop.push(self._detokenizer.push(token_id))
            if self._stop.matched is not None:
                return Piece(text, self._end(FinishReason.STOP, self._stop.matched))
        if event.finish is None:
            return Piece(text)
        text += self._stop.push(self._detokenizer.flush())
        if self._stop.matched is not None:
            return Piece(text, self._end(FinishReason.STOP, self._stop.matched))
        stop_token = event.token_ids[-1] if by_token else None
        self.completion_tokens += by_token
        return Piece(text + self._stop.flush(), self._end(event.finish, self._named(stop_token), event.error))

    def _named(self, stop_token: int | None) -> int | None:
        return None if stop_token in self._eos_token_ids else stop_token

    def _end(self, reason: FinishReason, stop: str | int | None, error: str = "") -> End:
        return End(reason, self.completion_tokens, stop, error)
