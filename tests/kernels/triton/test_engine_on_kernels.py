"""The engine's backend on the kernels, in the interpreter: texts are those that torch's operations make.

Prefill in chunks, decodes through recorded graphs with rows left over, steps in flight. Without a GPU the device is a
fake one: its order of calls is checked, but nothing has run on a GPU. With one, graphs and stream are real. That those
texts are transformers', too, is for `tests/engine/model/test_parity.py` to say.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from pinrail_contract.launch import Dtype
from pinrail_engine.core.plan import Begin, Grown, Row, StepPlan
from pinrail_engine.core.types import SamplingParams
from pinrail_engine.model.arch import Arch
from pinrail_engine.model.weight_names import expected
from pinrail_engine.run.cuda_device import CudaDevice
from pinrail_engine.run.device import Device, HostDevice
from pinrail_engine.run.torch_backend import TorchBackend, TorchOptions
from pinrail_kernels import dispatch

sys.path.insert(0, str(Path(__file__).parents[2] / "engine"))
from recording_device import RecordingDevice  # of the engine's tests

BLOCK, SEQS, LENGTH = 4, 3, 32  # tokens, requests, tokens
ARCH = Arch(
    hidden=32, intermediate=48, layers=1, heads=4, kv_heads=2, head_dim=16, vocab=61, max_position=64, eps=1e-5,
    rope_theta=10000.0, tied=False,
)  # fmt: skip
TEXTS = {0: [3, 1, 4, 1, 5, 9, 2], 1: [27, 18, 28, 18, 28, 45, 9, 4, 5]}  # slot -> prompt
BLOCKS = {0: (6, 1, 4, 8), 1: (2, 7, 0, 5)}
GREEDY = SamplingParams(max_tokens=9, temperature=0)


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    dice = torch.Generator().manual_seed(1)
    file = tmp_path_factory.mktemp("model") / "model.safetensors"
    save_file({name: torch.randn(shape, generator=dice) * 0.3 for name, shape in expected(ARCH).items()}, file)
    return file


@contextmanager
def running(weights: Path, device: Device) -> Iterator[TorchBackend]:
    handle = os.open(weights, os.O_RDONLY)
    options = TorchOptions(dtype=Dtype.FLOAT32, block_size=BLOCK, threads=1)
    backend = TorchBackend({weights.name: handle}, ARCH, options, lambda: None, device)
    backend.load()
    os.close(handle)
    backend.allocate(9, SEQS, LENGTH)
    yield backend
    backend.free()


@pytest.fixture(autouse=True)
def devices_are_named(on_the_gpu_if_there_is_one: None) -> None:
    torch.set_default_device("cpu")  # after that fixture: the engine says where it wants its tensors


@pytest.fixture
def device() -> Device:
    return CudaDevice() if torch.cuda.is_available() else RecordingDevice()


@pytest.fixture
def backend(weights: Path, device: Device) -> Iterator[TorchBackend]:
    with running(weights, device) as backend:
        yield backend


def row(slot: int, start: int, end: int, *, samples: bool) -> Row:
    return Row(str(slot), slot, start, end - start, samples)


def prompts(params: SamplingParams = GREEDY) -> list[StepPlan]:
    """The first prompt at once beside a chunk of the second, then the rest of that with a decode beside it."""
    begins = tuple(Begin(str(slot), slot, text, len(text), params) for slot, text in TEXTS.items())
    grown = tuple(Grown(slot, 0, blocks) for slot, blocks in BLOCKS.items())
    first = StepPlan(1, (row(0, 0, 7, samples=True), row(1, 0, 5, samples=False)), begins, grown)
    return [first, StepPlan(2, (row(0, 7, 8, samples=True), row(1, 5, 9, samples=True)))]


def decodes(steps: int) -> list[StepPlan]:
    return [
        StepPlan(3 + i, (row(0, 8 + i, 9 + i, samples=True), row(1, 9 + i, 10 + i, samples=True))) for i in range(steps)
    ]


def made(backend: TorchBackend, plans: list[StepPlan]) -> list[list[int]]:
    """All in flight at once: what one step samples, the next one reads."""
    waits = [backend.launch(plan) for plan in plans]
    return [list(wait().tokens) for wait in waits]


def test_texts_are_those_of_torch_s_operations(
    backend: TorchBackend, weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans = [*prompts(), *decodes(4)]
    ours = made(backend, plans)
    monkeypatch.setattr(dispatch, "INTERPRETED", False)
    with running(weights, HostDevice()) as plain:
        assert ours == made(plain, plans)
    assert len({token for tokens in ours for token in tokens}) > 3  # a network that says one thing proves nothing


def test_decodes_are_replayed_and_nothing_is_waited_for_before_the_next_launch(
    backend: TorchBackend, device: Device
) -> None:
    if not isinstance(device, RecordingDevice):
        pytest.skip("a GPU does not write down what it is asked for")
    assert device.calls == ["begin", "record 3", "record 2", "record 1"]
    for plan in prompts():
        backend.launch(plan)()
    device.calls.clear()
    waits = [backend.launch(plan) for plan in decodes(2)]
    for wait in waits:
        wait()
    assert [call for call in device.calls if call != "wait"] == ["replay 2", "copy 2", "replay 2", "copy 2"]


def test_a_graph_with_a_row_left_over_is_that_of_a_step_without_graphs(backend: TorchBackend, device: Device) -> None:
    """Three lines, two of them decodes: the third row of the graph of three is nobody's."""
    for plan in prompts():
        backend.launch(plan)()
    graphs = backend._graphs
    assert graphs is not None
    graphs._sizes = [3]

    @torch.inference_mode()
    def both() -> tuple[Tensor, Tensor]:
        padded = graphs.run([0, 1], [8, 9]).clone()
        lines, positions = (torch.tensor(x, device=device.place) for x in ([0, 1], [8, 9]))
        return padded, backend._decode(lines, positions)

    assert torch.equal(*backend._queue.run(both))
    assert backend.table.blocks[SEQS].tolist() == [9] * (LENGTH // BLOCK)  # behind the nine that requests may have
