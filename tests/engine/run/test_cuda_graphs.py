"""Which graph a step takes, and what of it. Order only: nothing here has run on a GPU."""

import pytest
import torch
from recording_device import RecordingDevice
from torch import Tensor

from pinrail_engine.run.cuda_graphs import DecodeGraphs, sizes_up_to

NOBODY = 5  # line
VOCAB = 3


class Network:
    """Logits that are arithmetic on line and position."""

    def __init__(self, device: RecordingDevice) -> None:
        self.device = device
        self.seen: list[list[list[int]]] = []

    def __call__(self, lines: Tensor, positions: Tensor) -> Tensor:
        self.device.calls.append(f"compute {lines.shape[0]}")
        self.seen.append([lines.tolist(), positions.tolist()])
        return (lines * 100 + positions)[:, None].float().expand(-1, VOCAB).clone()


@pytest.fixture
def device() -> RecordingDevice:
    return RecordingDevice()


@pytest.fixture
def network(device: RecordingDevice) -> Network:
    return Network(device)


@pytest.fixture
def graphs(device: RecordingDevice, network: Network) -> DecodeGraphs:
    graphs = DecodeGraphs(network, nobody=NOBODY, most=NOBODY, place=device.place)
    graphs.record(device.record)
    return graphs


@pytest.mark.parametrize(
    ("most", "sizes"), [(1, [1]), (2, [1, 2]), (5, [1, 2, 4, 5]), (8, [1, 2, 4, 8]), (9, [1, 2, 4, 8, 9])]
)
def test_sizes_are_powers_of_two_and_the_most(most: int, sizes: list[int]) -> None:
    assert sizes_up_to(most) == sizes


def test_each_size_is_computed_once_before_it_is_recorded_and_the_largest_first(
    graphs: DecodeGraphs, device: RecordingDevice, network: Network
) -> None:
    both = [[f"compute {n}", f"compute {n}", f"record {n}"] for n in (5, 4, 2, 1)]
    assert device.calls == [call for calls in both for call in calls]
    assert network.seen[0] == [[NOBODY] * 5, [0] * 5]  # no request's block is written to


@pytest.mark.parametrize(("rows", "size"), [(1, 1), (2, 2), (3, 4), (4, 4), (5, 5)])
def test_a_step_takes_the_smallest_graph_that_holds_it(
    graphs: DecodeGraphs, device: RecordingDevice, network: Network, rows: int, size: int
) -> None:
    lines, positions = list(range(rows)), list(range(10, 10 + rows))
    device.calls.clear()
    out = graphs.run(lines, positions)
    assert device.calls == [f"replay {size}", f"compute {size}"]
    assert out.shape == (rows, VOCAB)
    assert out[:, 0].tolist() == [100 * i + 10 + i for i in range(rows)]
    missing = size - rows
    assert network.seen[-1] == [lines + [NOBODY] * missing, positions + [0] * missing]


def test_a_step_does_not_see_the_rows_of_the_one_before(graphs: DecodeGraphs) -> None:
    graphs.run([0, 1, 2], [7, 8, 9])
    assert torch.equal(graphs.run([3], [4]), torch.full((1, VOCAB), 304.0))
