"""A hung engine ends the process; one that works, idles, has failed or was only suspended does not."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pinrail_contract import termination
from pinrail_contract.termination import ExitCode, Reason, Termination
from pinrail_engine.core.types import SamplingParams
from pinrail_engine.run import watchdog
from pinrail_engine.run.watchdog import Watchdog

MakeRig = Callable[..., Any]


@pytest.fixture
def message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the kubelet would look."""
    path = tmp_path / "termination-log"
    path.touch()
    monkeypatch.setattr(watchdog, "write", lambda t: termination.write(t, str(path)))
    return path


def stuck(make_rig: MakeRig) -> Any:
    """An engine in a step that does not end."""
    rig = make_rig()
    rig.engine.start()
    rig.engine.wait_until_loaded()
    rig.backend.gate.clear()
    rig.engine.submit("a", [1], SamplingParams(max_tokens=1), lambda _: None)
    while rig.state.kv.live == 0:
        threading.Event().wait(0.001)
    return rig


def test_a_step_that_never_ends_ends_the_process(
    make_rig: MakeRig, message: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    rig = stuck(make_rig)
    codes: list[int] = []
    dog = Watchdog(rig.engine, codes.append)
    rig.clock.now += 40
    dog.look()
    assert codes == []
    rig.clock.now += 5
    dog.look()
    assert codes == [ExitCode.HUNG]
    said = Termination.parse(message.read_text())
    assert said is not None
    assert said.reason is Reason.FAILED
    assert "no step has ended for 45 seconds" in said.message
    error = capfd.readouterr().err
    assert "in _turn" in error, "the traceback of the thread that hangs"
    assert "pinrail serve: the engine hangs" in error


def test_a_process_that_was_suspended_goes_on(make_rig: MakeRig, message: Path) -> None:
    rig = stuck(make_rig)
    codes: list[int] = []
    dog = Watchdog(rig.engine, codes.append)
    rig.clock.now += 1000
    dog.look()
    rig.backend.gate.set()
    rig.engine.drain(10)
    dog.look()
    dog.look()
    assert codes == []


def test_a_failed_engine_is_left_to_say_why(make_rig: MakeRig, message: Path) -> None:
    rig = make_rig()
    codes: list[int] = []
    rig.backend.refused = MemoryError("no memory")
    rig.engine.start()
    with pytest.raises(MemoryError):
        rig.engine.wait_until_loaded()
    dog = Watchdog(rig.engine, codes.append)
    dog.look()
    dog.look()
    assert codes == []
