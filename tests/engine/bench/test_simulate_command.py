"""`pinrail simulate`: what it prints, and what it says of flags that cannot be."""

import json
from pathlib import Path

import pytest

from pinrail_engine.bench.errors import BenchError, TraceError
from pinrail_engine.simulate_command import command

TRACE = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
    f"2023-11-16 18:15:{i:02}.5000000,{100 * i + 50},{i + 1}\n" for i in range(20)
)


@pytest.fixture
def trace(tmp_path: Path) -> str:
    file = tmp_path / "azure.csv"
    file.write_text(TRACE)
    return str(file)


def test_policies_stand_side_by_side(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.run(["engine", "--trace", trace, "--policy", "fcfs", "--policy", "sjf", "--slo", "ttft:1s"]) == 0
    out, err = capsys.readouterr()
    first, _, header, *_ = out.splitlines()
    assert first == "azure.csv: 20 requests, 20,000 tokens in, 210 out"
    assert header.split() == ["fcfs", "sjf"]
    assert "goodput (ttft:1000ms)" in out
    assert "sjf 100%  20 of 20 requests" in err


def test_json(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    shape = ["--skip=2", "--limit=10", "--length-scale=1/2", "--time-scale=0.1", "--max-model-len=400"]
    command.run(["engine", "--trace", trace, "--json", *shape])
    told = json.loads(capsys.readouterr().out)
    assert told["workload"] == {"name": "azure.csv", "requests": 10, "cut": 4}
    (run,) = told["runs"]
    assert (run["name"], run["endings"]["finished"]) == ("fcfs", 10)
    assert run["seconds"] < 2


def test_a_picture(trace: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    command.run(["engine", "--trace", trace, "--plot", str(tmp_path / "p.svg")])
    assert (tmp_path / "p.svg").read_bytes().startswith(b"<?xml")


@pytest.mark.parametrize("flags", [["--rate=2"], ["--rate=inf"], ["--concurrency=2"], ["--rate=2", "--burstiness=0.5"]])
def test_arrivals_can_be_replaced(trace: str, flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    seconds = []
    for more in ([], flags):
        command.run(["engine", "--trace", trace, "--json", *more])
        seconds.append(json.loads(capsys.readouterr().out)["runs"][0]["seconds"])
    assert seconds[1] < seconds[0]


def test_the_flags_of_the_engine_matter(capsys: pytest.CaptureFixture[str]) -> None:
    seen = set()
    for flags in (
        [],
        ["--max-num-seqs=4"],
        ["--kv-blocks=300"],
        ["--block-size=64"],
        ["--max-num-batched-tokens=300"],
        ["--target-step-ms=20"],
        ["--prefix-cache=off"],
        ["--steps-in-flight=2"],
        ["--host-ms=3"],
        ["--step-time=0.01,0.0001,0,0,0"],
        ["--seed=1"],
    ):
        command.run(["engine", "--mix", "agentic", "--rate=inf", "--json", *flags])
        (run,) = json.loads(capsys.readouterr().out)["runs"]
        assert run["endings"]["finished"] == 96
        seen.add(json.dumps(run))
    assert len(seen) == 11, "each changes the run"


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        pytest.param(["--mix=uniform", "--limit=0"], "argument --limit: got 0, want an integer, 1 or more", id="limit"),
        pytest.param(["--mix=uniform", "--skip=x"], "argument --skip: got x, want an integer, 0 or more", id="skip"),
        pytest.param(["--mix=uniform", "--rate=0"], "argument --rate: got 0, want a number above 0 or inf", id="rate"),
        pytest.param(
            ["--mix=uniform", "--length-scale=1/0"],
            "argument --length-scale: got 1/0, want a number above 0",
            id="scale",
        ),
        pytest.param(
            ["--mix=uniform", "--time-scale=inf"], "argument --time-scale: got inf, want a number, 0 or more", id="time"
        ),
        pytest.param(["--mix=uniform", "--slo=fast"], "argument --slo: got 'fast', want ttft, itl", id="slo"),
        pytest.param(
            ["--mix=uniform", "--plot=p.gif"], "argument --plot: got p.gif, want a name that ends in", id="plot"
        ),
        pytest.param(
            ["--mix=uniform", "--step-time=1,2"], "argument --step-time: got '1,2', want 5 numbers", id="times"
        ),
        pytest.param(["--mix=uniform", "--policy=best"], "argument --policy: got best, want fcfs, ", id="policy"),
        pytest.param(["--mix=none"], "argument --mix: invalid choice: 'none'", id="mix"),
        pytest.param([], "one of the arguments --trace --mix is required", id="no workload"),
        pytest.param(
            ["--mix=uniform", "--max-num-seqs=9", "--max-num-batched-tokens=8"],
            "argument --max-num-seqs: got 9, want at most --max-num-batched-tokens (8)",
            id="a step too small",
        ),
        pytest.param(
            ["--mix=uniform", "--kv-blocks=1", "--max-model-len=99"],
            "argument --kv-blocks: got 1, want room for --max-model-len",
            id="a cache too small",
        ),
    ],
)
def test_flags_that_cannot_be(flags: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        command.run(["engine", *flags])
    assert caught.value.code == 2
    assert said in capsys.readouterr().err


def test_a_wrong_line_of_a_trace(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_text(TRACE + "never,1,1\n")
    with pytest.raises(TraceError, match=r"t\.csv:22: TIMESTAMP: got 'never'"):
        command.run(["engine", "--trace", str(file)])


def test_a_wrong_file_of_step_times(trace: str) -> None:
    with pytest.raises(BenchError, match="got no step times"):
        command.run(["engine", "--mix=uniform", f"--step-time={trace}"])
