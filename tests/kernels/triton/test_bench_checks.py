"""The checks that `bench` begins with hold for the kernels, here with its smallest shapes."""

import torch

from pinrail_kernels.bench_correctness import checks


def test_all_of_the_bench_s_checks_hold() -> None:
    place = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    found = list(checks(place, small=True, quick=False))
    assert [check.name for check in found if not check.is_right] == []
    assert len({check.name.split()[0] for check in found}) == 6  # every operation has some
