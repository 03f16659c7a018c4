"""The message that a container leaves behind fits what the kubelet keeps, and reads back."""

from pathlib import Path

import pytest

from pinrail_contract.termination import LIMIT, Reason, Termination, write


@pytest.mark.parametrize("message", ["model.safetensors: changed", "é" * 10_000, '"' * 5000, ""])
def test_it_reads_back_and_fits(message: str) -> None:
    written = Termination(Reason.MODEL_MISMATCH, message).render()
    assert len(written.encode()) <= LIMIT
    parsed = Termination.parse(written)
    assert parsed is not None
    assert parsed.reason is Reason.MODEL_MISMATCH
    assert parsed.message[:20] == message[:20]


@pytest.mark.parametrize("text", [None, "", "Killed", "[]", '{"reason":"Other","message":"x"}', '{"reason":"Failed"}'])
def test_what_is_not_ours_is_none(text: str | None) -> None:
    assert Termination.parse(text) is None


def test_it_is_written_where_the_file_is_and_nowhere_else(tmp_path: Path) -> None:
    path = tmp_path / "log"
    write(Termination(Reason.FAILED, "x"), str(path))
    assert not path.exists()
    path.touch()
    write(Termination(Reason.FAILED, "x"), str(path))
    assert Termination.parse(path.read_text()) == Termination(Reason.FAILED, "x")
