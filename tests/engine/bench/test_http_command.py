"""`pinrail bench http`: a whole measurement, of a server started for it and of others, and flags that cannot be."""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from fake_server import Server, complete
from tiny_model import VOCAB, serve_flags

from pinrail_engine.bench import process
from pinrail_engine.bench.errors import BenchError
from pinrail_engine.bench_command import command

SPREAD = {"median", "min", "max"}


@pytest.fixture
def flags(tmp_path: Path) -> list[str]:
    return serve_flags(tmp_path)


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Takes a mode of fake_serve."""
    script = str(Path(__file__).with_name("fake_serve.py"))
    return lambda mode: monkeypatch.setattr(process, "SERVE", (sys.executable, script, mode))


@pytest.fixture
def peer(server: tuple[Server, str]) -> tuple[Server, str]:
    server[0].handler, server[0].models = complete, {"data": [{"id": "big"}]}
    return server


def test_the_schema_of_json(
    flags: list[str], use: Callable[[str], None], peer: tuple[Server, str], capsys: pytest.CaptureFixture[str]
) -> None:
    use("serves")
    words = ["--runs=2", "--json", f"--url=other={peer[1]}/v1/", f"--pid=other={os.getpid()}"]
    assert command.run(["http", *words, *flags]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["runs"] == 2
    ours, theirs = told["servers"]
    assert (ours["name"], theirs["name"]) == ("pinrail", "other")
    assert ours["engine"]["version"] == "fake"
    assert theirs["engine"] == {"model": "big", "url": peer[1]}
    assert list(ours["figures"]) == ["start", "single", "prefill", "batch", "prefix", "end"]
    assert list(theirs["figures"]) == ["single", "prefill", "batch", "prefix", "end"]
    assert list(ours["figures"]["start"]) == ["first_token_seconds", "resident_bytes", "peak_bytes"]
    figures = [spread for server in told["servers"] for of in server["figures"].values() for spread in of.values()]
    assert all(spread.keys() == SPREAD and spread["min"] <= spread["median"] <= spread["max"] for spread in figures)


def test_all_get_the_same_prompts_of_tokens_that_the_smallest_vocabulary_has(
    flags: list[str], use: Callable[[str], None], peer: tuple[Server, str]
) -> None:
    use("serves")
    for seed in (7, 7, 8):
        command.run(["http", "--runs=1", "--workload=single", f"--seed={seed}", f"--url=other={peer[1]}", *flags])
    prompts = [body["prompt"] for body in peer[0].bodies]
    assert len(prompts) == 3 * 2, "a warm-up, and a run, each time"
    assert max(max(prompt) for prompt in prompts) < VOCAB
    assert prompts[:2] == prompts[2:4]
    assert prompts[3] != prompts[5]


def test_tokens_are_other_ones_each_time_unless_a_seed_is_given(peer: tuple[Server, str]) -> None:
    for _ in range(2):
        command.run(["http", "--runs=1", "--workload=prefill", f"--url=other={peer[1]}"])
    prompts = [body["prompt"] for body in peer[0].bodies]
    assert prompts[1] != prompts[3], "servers that stay may have what they had last time"


def test_the_table_has_a_column_for_each_and_ratios(
    peer: tuple[Server, str], capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--runs=1", "--workload=prefix", "--workload=single", f"--url=a={peer[1]}", f"--url=b={peer[1]}"]
    assert command.run(["http", *words]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"a: model big, url {peer[1]}"
    header = next(line.split() for line in lines if line.startswith(" ") and "least" in line)
    assert header[0] == "a"
    assert header[-2:] == ["to", "a"]
    (decode,) = [line for line in lines if line.startswith("  decode")]
    assert decode.endswith("x")


def test_a_server_that_dies_is_reported_with_its_own_words(flags: list[str], use: Callable[[str], None]) -> None:
    use("dies")
    with pytest.raises(BenchError, match=r"ended with code 3, and had said:\nmodel\.safetensors: not"):
        command.run(["http", *flags])


def test_a_server_that_breaks_down_later_too(flags: list[str], use: Callable[[str], None]) -> None:
    use("breaks")
    with pytest.raises(BenchError, match=r"first request: a request was failed: .*code 4, and had said:\nout of"):
        command.run(["http", *flags])


def test_the_engine_itself(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--runs=1", "--workload=single", "--json", "--backend=torch", "--dtype=float32"]
    assert command.run(["http", *words, *flags]) == 0
    (ours,) = json.loads(capsys.readouterr().out)["servers"]
    assert (ours["engine"]["dtype"], ours["engine"]["verification"]) == ("float32", "verified")
    assert int(ours["engine"]["kv_blocks"]) > 0
    assert ours["figures"]["start"]["first_token_seconds"]["median"] > 0
    assert ours["figures"]["end"]["resident_bytes"]["median"] > 2**24


URL = "--url=a=http://a"


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        pytest.param([], "required: --model-dir, --manifest", id="nothing to measure"),
        pytest.param(["--url=http://a"], "argument --url: got http://a, want NAME=VALUE", id="no name"),
        pytest.param(["--url=a="], "argument --url: got a=, want NAME=VALUE", id="no address"),
        pytest.param([URL, URL], "argument --url: got a, a, want names that differ", id="a name twice"),
        pytest.param(["--url=pinrail=http://a"], "want names that differ, none pinrail", id="our name"),
        pytest.param([URL, "--pid=b=1"], "argument --pid: got b, want a name that a --url has", id="whose process"),
        pytest.param([URL, "--pid=a=x"], "argument --pid: got a=x, want NAME=PID", id="no process"),
        pytest.param([URL, "--runs=0"], "argument --runs: got 0, want an integer, 1 or more", id="no runs"),
        pytest.param([URL, "--workload=chat"], "argument --workload: invalid", id="another workload"),
        pytest.param(["--manifest=m", "--model-dir=d", "--port=0"], "--port: got 0", id="a flag of serve"),
    ],
)
def test_flags_that_cannot_be(argv: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        command.run(["http", *argv])
    assert caught.value.code == 2
    assert said in capsys.readouterr().err


def test_a_peer_that_does_not_answer_is_said_before_anything_is_started(
    flags: list[str], free_port: Callable[[], int]
) -> None:
    with pytest.raises(BenchError, match="does not answer"):
        command.run(["http", f"--url=a=http://127.0.0.1:{free_port()}", *flags])
