"""Equal names mean equal blocks, under equal circumstances, in any process."""

import subprocess
import sys
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinrail_engine.core import prefix

ROOT = {"model": "sha256:1", "dtype": "float32", "block_size": 16, "quantization": "none", "salt": "", "adapter": ""}


def root(**changes: object) -> bytes:
    return prefix.root(**{**ROOT, **changes})  # type: ignore[arg-type]


def chain(tokens: list[int], start: bytes = b"root", block_size: int = 4) -> list[bytes]:
    hashes: list[bytes] = []
    prefix.extend(hashes, start, tokens, block_size, len(tokens))
    return hashes


def test_a_block_is_named_by_the_sha256_of_the_name_before_it_and_its_tokens() -> None:
    first = sha256(b"root" + b"".join(n.to_bytes(4, sys.byteorder) for n in (7, 0, 70_000, 1))).digest()
    second = sha256(first + b"".join(n.to_bytes(4, sys.byteorder) for n in (2, 3, 4, 5))).digest()
    assert chain([7, 0, 70_000, 1, 2, 3, 4, 5]) == [first, second]


@pytest.mark.parametrize(
    "change",
    [
        {"salt": "x"},
        {"model": "sha256:2"},
        {"dtype": "bfloat16"},
        {"quantization": "int8"},
        {"block_size": 32},
        {"adapter": "x"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_whatever_the_numbers_depend_on_changes_every_name(change: dict[str, object]) -> None:
    tokens = list(range(40))
    assert not set(chain(tokens, root())) & set(chain(tokens, root(**change)))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"salt": "x"}, {"adapter": "x"}),
        ({"salt": "ab", "adapter": "c"}, {"salt": "a", "adapter": "bc"}),
        ({"salt": '","adapter":"x'}, {"adapter": "x"}),
    ],
)
def test_a_text_that_stands_elsewhere_is_another_root(one: dict[str, object], other: dict[str, object]) -> None:
    assert root(**one) != root(**other)


@pytest.mark.parametrize("at", range(12))
def test_a_token_changes_the_name_of_its_block_and_of_all_after_it(at: int) -> None:
    tokens = list(range(12))
    changed = [*tokens[:at], 99, *tokens[at + 1 :]]
    same = [a == b for a, b in zip(chain(tokens), chain(changed), strict=True)]
    assert same == [i < at // 4 for i in range(3)]


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 0), (3, 0), (4, 1), (7, 1), (8, 2)])
def test_only_full_blocks_have_names(tokens: int, blocks: int) -> None:
    assert len(chain(list(range(tokens)))) == blocks


@given(st.lists(st.integers(0, 2**31 - 1), max_size=40), st.lists(st.integers(0, 40), max_size=6), st.integers(1, 5))
def test_names_made_bit_by_bit_are_those_made_at_once(tokens: list[int], stops: list[int], size: int) -> None:
    hashes: list[bytes] = []
    for stop in sorted(min(stop, len(tokens)) for stop in stops):
        prefix.extend(hashes, b"root", tokens, size, stop)
        assert len(hashes) == stop // size
    prefix.extend(hashes, b"root", tokens, size, len(tokens))
    assert hashes == chain(tokens, block_size=size)


def test_names_are_the_same_in_another_process() -> None:
    """So replicas and routers can compare them; Python's own `hash` of a text is not."""
    code = "from pinrail_engine.core import prefix; print(prefix.root(**eval(input())).hex())"
    command = [sys.executable, "-c", code]
    told = subprocess.run(command, input=repr(ROOT), env={"PYTHONHASHSEED": "7"}, capture_output=True, text=True)
    assert told.stdout.strip() == root().hex(), told.stderr
