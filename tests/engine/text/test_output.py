"""Events to pieces: no text is lost at the end, and the end is named right. The rows are `Output.push`'s table."""

import pytest

from pinrail_engine.core.types import FinishReason, TokenEvent, TokenLogprobs
from pinrail_engine.text.detokenize import Detokenizer
from pinrail_engine.text.output import End, Output, Piece, ScoredToken

EOS = 0


def ids(text: str) -> tuple[int, ...]:
    return tuple(text.encode())


def output(*stops: str, min_tokens: int = 0) -> Output:
    return Output(Detokenizer(lambda i: bytes([i]) if i else b""), stops, frozenset({EOS}), min_tokens)


STOP, LENGTH, ABORT, ERROR = FinishReason.STOP, FinishReason.LENGTH, FinishReason.ABORT, FinishReason.ERROR
REJECTED = FinishReason.REJECTED


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
        pytest.param(
            [TokenEvent((), REJECTED, "late", retry_after=3)],
            [Piece("", End(REJECTED, 0, None, "late", retry_after=3))],
            id="sent away: with the time to come back",
        ),
        pytest.param(
            [TokenEvent(ids("a"), cached_tokens=16), TokenEvent(ids("b"), LENGTH, cached_tokens=16)],
            [Piece("a"), Piece("b", End(LENGTH, 2, cached_tokens=16))],
            id="cached tokens are told at the end",
        ),
        pytest.param([TokenEvent((), STOP)], [Piece("", End(STOP, 0))], id="stop without a token"),
    ],
)
def test_pieces(events: list[TokenEvent], pieces: list[Piece]) -> None:
    made = output("END")
    assert [made.push(event) for event in events] == pieces


@pytest.mark.parametrize(
    ("min_tokens", "text", "end"),
    [
        pytest.param(0, "a", End(STOP, 4, "END"), id="no minimum"),
        pytest.param(3, "a", End(STOP, 4, "END"), id="it ends after the minimum, though it begins within"),
        pytest.param(
            4, "aENDb", End(STOP, 8, "END"), id="it ends with the last token of the minimum: the next one counts"
        ),
        pytest.param(7, "aENDb", End(STOP, 8, "END"), id="the minimum is just before the next one's last token"),
        pytest.param(8, "aENDbENDc", End(LENGTH, 9), id="none after the minimum"),
    ],
)
@pytest.mark.parametrize("at_once", [False, True])
def test_a_stop_string_counts_after_min_tokens(min_tokens: int, text: str, end: End, at_once: bool) -> None:
    tokens = ids("aENDbENDc")
    parts = [tokens] if at_once else [(token,) for token in tokens]
    made = output("END", min_tokens=min_tokens)
    sent = ""
    for number, part in enumerate(parts, 1):
        piece = made.push(TokenEvent(part, LENGTH if number == len(parts) else None))
        sent += piece.text
        if piece.end is not None:
            break
    assert (sent, piece.end) == (text, end)


def test_a_stop_string_may_overlap_one_within_the_minimum() -> None:
    made = output("aa", min_tokens=2)
    assert [made.push(TokenEvent(ids(char))) for char in "aa"] == [Piece(""), Piece("a")]
    assert made.push(TokenEvent(ids("a"))) == Piece("", End(STOP, 3, "aa"))


def scores(text: str) -> tuple[TokenLogprobs, ...]:
    return tuple(TokenLogprobs(-float(byte), 1, ()) for byte in (*ids(text),))


def scored(text: str, finish: FinishReason | None = None) -> TokenEvent:
    return TokenEvent(ids(text), finish, logprobs=scores(text))


def told(text: str, *offsets: int) -> tuple[ScoredToken, ...]:
    return tuple(map(ScoredToken, ids(text), scores(text), offsets))


@pytest.mark.parametrize(
    ("events", "pieces"),
    [
        pytest.param(
            [scored("ab"), scored("c", LENGTH)],
            [Piece("ab", None, told("ab", 0, 1)), Piece("c", End(LENGTH, 3), told("c", 2))],
            id="with the text of their tokens",
        ),
        pytest.param(
            [scored("aE"), scored("N"), scored("x")],
            [Piece("a", None, told("aE", 0, 1)), Piece(""), Piece("ENx", None, told("Nx", 2, 3))],
            id="never before the text, but for what is held back of a token",
        ),
        pytest.param(
            [scored("aENDzz")],
            [Piece("a", End(STOP, 4, "END"), told("aEND", 0, 1, 2, 3))],
            id="to the last token of a stop string",
        ),
        pytest.param(
            [scored("E"), scored("N"), scored("D")],
            [Piece(""), Piece(""), Piece("", End(STOP, 3, "END"), told("END", 0, 1, 2))],
            id="with the end where no text is left",
        ),
        pytest.param(
            [TokenEvent((*ids("a"), EOS), STOP, logprobs=scores("a") + scores("\0"))],
            [Piece("a", End(STOP, 2), told("a\0", 0, 1))],
            id="of the stop token too",
        ),
        pytest.param(
            [TokenEvent((byte,), logprobs=scores("a")) for byte in "é".encode()],
            [Piece(""), Piece("é", None, tuple(ScoredToken(b, scores("a")[0], 0) for b in "é".encode()))],
            id="half a character waits for the other half",
        ),
    ],
)
def test_scores(events: list[TokenEvent], pieces: list[Piece]) -> None:
    made = output("END")
    assert [made.push(event) for event in events] == pieces


def test_the_prompts_scores_come_at_once() -> None:
    made = output()
    event = TokenEvent(("é".encode()[0],), prompt_logprobs=scores("xy"))
    assert made.push(event) == Piece("", prompt_scores=scores("xy"))
    assert made.push(TokenEvent(ids("a"))).prompt_scores == ()
