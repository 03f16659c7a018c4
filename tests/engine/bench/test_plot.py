"""A picture of runs, in both formats."""

import builtins
import sys
from pathlib import Path

import pytest

from pinrail_engine.bench.errors import BenchError
from pinrail_engine.bench.plot import plot
from pinrail_engine.bench.records import Ending, Record, Run, Sample

pytest.importorskip("matplotlib")


def run(name: str, *, sampled: bool) -> Run:
    records = []
    for i in range(20):
        record = Record(100 * (i + 1), float(i))
        for at in (i + 0.5, i + 0.6, i + 0.8):
            record.token(at)
        record.end(i + 0.8, Ending.FINISHED)
        records.append(record)
    samples = [Sample(float(i), i % 5, 3, i / 20) for i in range(20)]
    return Run(name=name, records=records, seconds=20.0, samples=samples if sampled else ())


@pytest.mark.parametrize(("suffix", "begins"), [(".png", b"\x89PNG"), (".svg", b"<?xml")])
@pytest.mark.parametrize("sampled", [True, False], ids=["of a simulation", "of a server"])
def test_a_picture_is_written(tmp_path: Path, suffix: str, begins: bytes, sampled: bool) -> None:
    file = tmp_path / f"p{suffix}"
    plot([run("fcfs", sampled=sampled), run("sjf", sampled=sampled)], "title", file)
    assert file.read_bytes().startswith(begins)
    assert file.stat().st_size > 5000


def test_runs_of_nothing_have_a_picture_too(tmp_path: Path) -> None:
    refused = Record(10, 0.0)
    refused.end(0.0, Ending.REFUSED, "full")
    plot([Run(name="a", records=[refused], seconds=0.0)], "title", tmp_path / "p.png")
    assert (tmp_path / "p.png").exists()


def test_without_matplotlib_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def missing(name: str, *rest: object) -> object:
        if name.startswith("matplotlib"):
            raise ModuleNotFoundError(f"No module named {name!r}", name="matplotlib")
        return real(name, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(builtins, "__import__", missing)
    for name in [n for n in sys.modules if n.startswith("matplotlib")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(BenchError, match=r"plots need matplotlib, .* pip install 'pinrail\[bench\]'"):
        plot([], "", tmp_path / "p.png")
