"""`pinrail bench`: a whole run on a server and on the engine in this process, and flags that cannot be."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pinrail_contract.launch import LaunchSpec
from pinrail_engine import bench_command
from pinrail_engine.bench import http
from pinrail_engine.bench.load import Load, Progress
from pinrail_engine.bench.records import Ending, Record
from pinrail_engine.bench_command import command
from pinrail_engine.core.step_time import TERMS
from pinrail_engine.core.types import FinishReason, SamplingParams, Sink, TokenEvent


class FakeEngine:
    """Answers at once."""

    max_model_len = 150
    step_time = dict.fromkeys(TERMS, 0.5)

    def metrics_page(self) -> bytes:
        return b'pinrail_model_manifest_info{engine_version="9"} 1\nvllm:cache_config_info{num_gpu_blocks="77"} 1\n'

    def submit(self, request_id: str, prompt: list[int], params: SamplingParams, sink: Sink) -> None:
        assert len(prompt) + params.max_tokens <= self.max_model_len
        assert max(prompt) < 50
        sink(TokenEvent(tuple(range(params.max_tokens)), FinishReason.LENGTH))

    def finish(self, request_id: str, reason: FinishReason) -> None:
        raise AssertionError("nothing is cut off here")


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def started(spec: LaunchSpec) -> Iterator[tuple[FakeEngine, int]]:
        yield FakeEngine(), 50

    monkeypatch.setattr(bench_command, "_engine", started)


SERVE = ["--manifest=m", "--model-dir=d"]


@pytest.mark.usefixtures("engine")
def test_a_mix_on_the_engine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved = tmp_path / "s.json"
    flags = ["--mix=uniform", "--limit=9", "--policy=sjf", "--json", f"--save-step-time={saved}"]
    assert command.run(["run", *flags, *SERVE]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["workload"]["cut"] > 0, "to what the engine takes"
    assert (told["runs"][0]["name"], told["runs"][0]["endings"]["finished"]) == ("sjf", 9)
    assert told["runs"][0]["fairness"] is not None, "the warm-up told what a request takes alone"
    assert json.loads(saved.read_text()) == FakeEngine.step_time


class FakeServers:
    """`bench.http` without a network."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, int]] = []

    def served(self, url: str) -> http.Served:
        return http.Served("tiny", {"http://a:1": 200, "http://b:2": 100}[url])

    def play(self, url: str, model: str, load: Load, *, rates: object, progress: Progress) -> list[Record]:
        self.asked.append((url, model, len(load.jobs)))
        records = load.records()
        for record in records:
            record.token(1.0)
            record.end(1.0, Ending.FINISHED)
            progress(1)
        return records


def test_servers_stand_side_by_side_and_get_the_same(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    servers = FakeServers()
    monkeypatch.setattr(http, "served", servers.served)
    monkeypatch.setattr(http, "play", servers.play)
    command.run(["run", "--mix=uniform", "--limit=5", "--url=http://a:1/v1", "--url=http://b:2/"])
    first, _, header, *_ = capsys.readouterr().out.splitlines()
    assert "cut to fit" in first, "to the lesser window of both"
    assert header.split() == ["http://a:1", "http://b:2"]
    sent = [("http://a:1", "tiny", n) for n in (2, 5)], [("http://b:2", "tiny", n) for n in (2, 5)]
    assert servers.asked == [*sent[0], *sent[1]], "each is warmed up first"


@pytest.fixture
def roomy(engine: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeEngine, "max_model_len", 2000)


@pytest.mark.usefixtures("roomy")
@pytest.mark.parametrize("name", ["cpu", "offline"])
def test_the_fixed_workloads_on_the_engine(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.run([name, "--json", "--runs=2", *SERVE]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["runs"] == 2
    assert (told["engine"]["version"], told["engine"]["kv_blocks"]) == ("9", "77")
    assert list(told["figures"]) == ["single", "prefill", "batch", "prefix"]
    assert told["figures"]["prefix"]["seconds"].keys() == {"median", "min", "max"}


@pytest.mark.usefixtures("roomy")
def test_workloads_can_be_chosen(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.run(["cpu", "--runs=1", "--workload=prefix", "--workload=single", *SERVE]) == 0
    first, *lines = capsys.readouterr().out.splitlines()
    assert first.startswith("pinrail: version 9, backend auto, ")
    titles = [line.split()[0] for line in lines if line[:1].isalpha()]
    assert titles == ["single", "prefix"]


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        pytest.param([], "pinrail bench: error: the following arguments are required: mode", id="no mode"),
        pytest.param(["online"], "argument mode: invalid choice: 'online'", id="another mode"),
        pytest.param(["run", *SERVE], "one of the arguments --trace --mix is required", id="no workload"),
        pytest.param(["run", "--mix=chat"], "required: --model-dir, --manifest", id="neither engine nor server"),
        pytest.param(
            ["run", "--mix=chat", "--url=http://a", "--max-num-seqs=4"],
            "--max-num-seqs=4: is for the engine in this process, want no --url",
            id="an engine's flag for a server",
        ),
        pytest.param(
            ["run", "--mix=chat", "--url=http://a", "--save-step-time=f"],
            "--save-step-time: is for the",
            id="no step times",
        ),
        pytest.param(
            ["run", "--mix=chat", "--model=m", *SERVE], "argument --model: got m, want it with --url alone", id="model"
        ),
        pytest.param(
            ["run", "--mix=chat", "--timeout=0", *SERVE], "argument --timeout: got 0, want a number above 0", id="time"
        ),
        pytest.param(["offline", "--port=0", *SERVE], "--port: got 0, want 1 to 65535", id="a flag of serve"),
    ],
)
def test_flags_that_cannot_be(argv: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        command.run(argv)
    assert caught.value.code == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("mode", ["cpu", "http", "run", "scheduler"])
def test_help_names_every_mode(mode: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.run(["--help"]) == 0
    assert f"pinrail bench {mode}" in capsys.readouterr().out
