"""Events to pieces: no text is lost at the end, and the end is named right. The rows are `Output.push`'s table."""

import pytest

from pinrail_engine.core.types import FinishReason, TokenEvent
from pinrail_engine.text.detokenize import Detokenizer
from pinrail_engine.text.output import End, Output, Piece

EOS = 0


def ids(text: str) -> tuple[int, ...]:
    return tuple(text.encode())


def output(*stops: str) -> Output:
    return Output(Detokenizer(lambda i: bytes([i]) if i else b""), stops, frozenset({EOS}))


STOP, LENGTH, ABORT, ERROR = FinishReason.STOP, FinishReason.LENGTH, FinishReason.ABORT, FinishReason.ERROR


@pytest.mark.parametrize(
    ("events", "pieces"),
    [
        pytest.param([TokenEvent(ids("hi"))], [Piece("hi")], id="running"),
        pytest.param(
            [TokenEvent((*ids("hi"), EOS), STOP)], [Piece("hi", End(STOP, 3))], id="eos: counted, not shown, not named"
        ),
        pytest.param([TokenEvent(ids("hi."), STOP)], [Piece("hi", End(STOP, 3, ord(".")))], id="stop token: named"),
        pytest.param([TokenEvent(ids("hi"), LENGTH)], [Piece("hi", End(LENGTH, 2))], id="text with the end"),
        pytest.param(
            [TokenEvent(ids("aE")), TokenEvent(ids("N"), LENGTH)],
            [Piece("a"), Piece("EN", End(LENGTH, 3))],
            id="held-back text comes at the end",
        ),
        pytest.param(
            [TokenEvent(ids("aENDzz"), LENGTH)], [Piece("a", End(STOP, 4, "END"))], id="stop string before the length"
        ),
        pytest.param([TokenEvent((*ids("END"), EOS), STOP)], [Piece("", End(STOP, 3, "END"))], id="and before the eos"),
        pytest.param(
            [TokenEvent(("é".encode()[0],), LENGTH)],
            [Piece("\ufffd", End(LENGTH, 1))],
            id="half a character at the end",
        ),
        pytest.param([TokenEvent((), ABORT)], [Piece("", End(ABORT, 0))], id="abort"),
        pytest.param([TokenEvent((), ERROR, "boom")], [Piece("", End(ERROR, 0, None, "boom"))], id="error"),
        pytest.param([TokenEvent((), STOP)], [Piece("", End(STOP, 0))], id="stop without a token"),
    ],
)
def test_pieces(events: list[TokenEvent], pieces: list[Piece]) -> None:
    made = output("END")
    assert [made.push(event) for event in events] == pieces
