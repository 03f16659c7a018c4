"""What the local loop does to its replicas; processes are stood in for, since none is started here."""

import asyncio
import io
import socket
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest
from operator_builders import load, scaled, service
from rich.console import Console

from pinrail_contract.errors import ModelError
from pinrail_contract.termination import ExitCode
from pinrail_operator.errors import SpecError
from pinrail_operator.local import up
from pinrail_operator.local.cluster import HANG, LocalCluster
from pinrail_operator.local.replica import Replica, free_port
from pinrail_operator.local.request import read

EXAMPLE = Path(__file__).parents[3] / "crds" / "examples" / "smollm2.yaml"
NONE = Path("/dev/null")


@dataclass
class FakeProcess:
    returncode: int | None = None
    signals: list[str] = field(default_factory=list)

    def kill(self) -> None:
        self.signals.append("kill")


def replica(**changes: Any) -> Replica:
    return Replica(1, NONE, cast(Any, FakeProcess()), **changes)


def cluster(asked: Any, *replicas: Replica) -> LocalCluster:
    return LocalCluster(
        service=asked, model_dir=NONE, manifest=NONE, logs=NONE, session=cast(Any, None), wanted=1,
        variables={}, replicas=list(replicas),
    )  # fmt: skip


@pytest.mark.parametrize(("mode", "wanted"), [("Active", 2), ("Recommend", 1), ("Paused", 1)])
def test_replicas_follow_the_load_in_active_mode_alone(mode: str, wanted: int) -> None:
    one = cluster(scaled(mode=mode), replica(is_ready=True, load=load(1.0), loaded_at=time.monotonic()))
    one._decide()
    assert one.wanted == wanted
    assert (one.decision is None) == (mode == "Paused")


@pytest.mark.parametrize(
    ("healthy_at", "signals"),
    [
        pytest.param(1000.0, [], id="it just said that it lives"),
        pytest.param(1000.0 - HANG - 1, ["kill"], id="silent for too long"),
        pytest.param(0.0, [], id="its port is not open yet"),
    ],
)
def test_a_replica_that_hangs_is_killed(healthy_at: float, signals: list[str]) -> None:
    one = replica(healthy_at=healthy_at)
    cluster(service(), one)._end_hung(1000.0)
    assert cast(Any, one.process).signals == signals


def test_a_second_ctrl_c_ends_running_requests() -> None:
    one, stopping = replica(), asyncio.Event()
    up._stop(stopping, cluster(service(), one))
    assert (stopping.is_set(), cast(Any, one.process).signals) == (True, [])
    up._stop(stopping, cluster(service(), one))
    assert cast(Any, one.process).signals == ["kill"]


async def test_a_port_that_is_taken_is_one_clear_sentence(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(SpecError, match=f"^--port: got {port}, want a free port: .*address already in use$"):
            await up.run(read(EXAMPLE), tmp_path, up.Options(port, "", 8), Console(file=io.StringIO()))


class ClosedTerminal(io.StringIO):
    def write(self, _: str) -> int:
        raise OSError("the terminal is gone")


async def test_no_replica_outlives_a_terminal_that_closed() -> None:
    closed: list[bool] = []

    class Settled(LocalCluster):
        async def tick(self) -> None:
            return

        async def close(self) -> None:
            closed.append(True)

    one = Settled(
        service=service(), model_dir=NONE, manifest=NONE, logs=NONE, session=cast(Any, None), wanted=0, variables={}
    )
    with pytest.raises(OSError, match="the terminal is gone"):
        await up._serve(one, read(EXAMPLE), up.Options(free_port(), "", 8), Console(file=ClosedTerminal()))
    assert closed == [True]


@pytest.mark.parametrize(
    ("code", "final"),
    [
        (ExitCode.MODEL_MISMATCH, True),
        (ExitCode.MANIFEST_MISMATCH, True),
        (ExitCode.ENGINE_MISMATCH, True),
        (ExitCode.USAGE, True),
        (ExitCode.FAILED, False),
        (ExitCode.HUNG, False),
    ],
)
async def test_only_a_refusal_that_trying_again_cannot_mend_ends_it_at_once(
    code: int, final: bool, tmp_path: Path
) -> None:
    """Others are started again after a while."""
    dead = replica()
    dead.log = tmp_path / "log"
    cast(Any, dead.process).returncode = code
    dead.log.write_text("pinrail serve: manifest x pins another engine\n")
    one = cluster(service(), dead)
    if final:
        with pytest.raises(ModelError, match=r"^manifest x pins another engine$"):
            await one.tick()
    else:
        await one.tick()
        assert one.replicas == []
