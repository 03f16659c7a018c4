"""The perfect prefix cache, and that it agrees with hashing every block of every token."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinrail_engine.bench.oracle import oracle_tokens
from pinrail_engine.bench.workload import Job, Piece
from pinrail_engine.core import prefix

A, B, C = Piece(1, 32), Piece(2, 32), Piece(3, 20)
OUT = Piece(-1, 17)


def job(*prompt: Piece, output: Piece = OUT) -> Job:
    return Job(0.0, prompt, output)


@pytest.mark.parametrize(
    ("jobs", "found"),
    [
        pytest.param([job(A, C), job(B, C)], [0, 0], id="nothing in common at the beginning"),
        pytest.param([job(A, B), job(A, C)], [0, 32], id="the first piece"),
        pytest.param([job(A, B), job(A, B, C)], [0, 64], id="all of an earlier prompt"),
        pytest.param([job(A, B), job(A, B)], [0, 48], id="the same prompt: its last token is computed"),
        pytest.param([job(A, C), job(A, C, C)], [0, 48], id="whole blocks alone: 52 tokens are 3 blocks"),
        pytest.param([job(A), job(A, OUT, C)], [0, 48], id="the answer too, but for its last token"),
        pytest.param([job(Piece(1, 20)), job(A, B)], [0, 16], id="the beginning of a piece"),
        pytest.param([job(A, B), job(Piece(1, 20), B)], [0, 16], id="a shorter piece ends what is in common"),
        pytest.param([job(A, B), job(C), job(A, B, C)], [0, 0, 64], id="however long ago"),
    ],
)
def test_what_is_found(jobs: list[Job], found: list[int]) -> None:
    assert oracle_tokens(jobs, 16) == found


PIECES = st.builds(Piece, st.integers(0, 3), st.integers(1, 40))
JOBS = st.lists(st.builds(Job, st.just(0.0), st.lists(PIECES, min_size=1, max_size=4).map(tuple), PIECES), max_size=8)


@given(jobs=JOBS, block_size=st.integers(4, 16))
def test_agrees_with_block_hashes(jobs: list[Job], block_size: int) -> None:
    seen: set[bytes] = set()
    for j, found in zip(jobs, oracle_tokens(jobs, block_size), strict=True):
        prompt = j.prompt_tokens(2**31, 0)
        everything = prompt + j.output.tokens(2**31, 0)
        hashes: list[bytes] = []
        prefix.extend(hashes, b"root", prompt, block_size, len(prompt))
        known = next((i for i, name in enumerate(hashes) if name not in seen), len(hashes))
        assert found == min(known, (len(prompt) - 1) // block_size) * block_size
        prefix.extend(hashes, b"root", everything, block_size, len(everything) - 1)
        seen.update(hashes)
