"""What is free: the least of machine and cgroups, of either version; and a peak that is seen."""

from pathlib import Path

import pytest

from pinrail_engine.run.memory import free_bytes, peak_of

GIB = 2**30


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """8 GiB free, no cgroups."""
    (tmp_path / "meminfo").write_text("MemTotal:       99 kB\nMemAvailable:   8388608 kB\n")
    (tmp_path / "cgroup").write_text("")
    return tmp_path


def free(machine: Path) -> int:
    return free_bytes(machine / "fs", machine, machine / "meminfo")


def group(path: Path, version: int, limit: str, usage: int, stat: str = "") -> None:
    path.mkdir(parents=True)
    names = ("memory.max", "memory.current") if version == 2 else ("memory.limit_in_bytes", "memory.usage_in_bytes")
    (path / names[0]).write_text(f"{limit}\n")
    (path / names[1]).write_text(f"{usage}\n")
    (path / "memory.stat").write_text(stat)


def test_without_cgroups_what_the_machine_has(machine: Path) -> None:
    assert free(machine) == 8 * GIB


def test_a_limit_of_version_2_leaves_less(machine: Path) -> None:
    (machine / "cgroup").write_text("0::/pods/a\n")
    group(machine / "fs/pods/a", 2, str(4 * GIB), GIB)
    assert free(machine) == 3 * GIB


def test_a_limit_of_version_1_leaves_less(machine: Path) -> None:
    (machine / "cgroup").write_text("7:cpu:/\n4:hugetlb,memory:/pods/a\n0::/\n")
    group(machine / "fs/memory/pods/a", 1, str(4 * GIB), GIB)
    assert free(machine) == 3 * GIB


def test_a_group_above_may_be_the_tighter_one(machine: Path) -> None:
    (machine / "cgroup").write_text("0::/pods/a\n")
    group(machine / "fs/pods/a", 2, "max", GIB)
    for name, text in {"memory.max": str(2 * GIB), "memory.current": str(GIB)}.items():
        (machine / "fs/pods" / name).write_text(text)
    assert free(machine) == GIB


def test_file_pages_that_can_be_dropped_are_free(machine: Path) -> None:
    (machine / "cgroup").write_text("0::/a\n")
    group(machine / "fs/a", 2, str(4 * GIB), 3 * GIB, f"active_file 7\ninactive_file {2 * GIB}\n")
    assert free(machine) == 3 * GIB


def test_inside_a_namespace_the_group_is_the_root(machine: Path) -> None:
    (machine / "cgroup").write_text("0::/\n")
    group(machine / "fs", 2, str(GIB), 0)
    assert free(machine) == GIB


def test_a_group_that_is_over_its_limit_leaves_nothing(machine: Path) -> None:
    (machine / "cgroup").write_text("0::/a\n")
    group(machine / "fs/a", 2, str(GIB), 2 * GIB)
    assert free(machine) == 0


def test_this_machine_can_be_read() -> None:
    assert free_bytes() > 0


def test_a_peak_is_seen_although_it_is_over() -> None:
    size = 64 * 2**20

    def work() -> None:
        bytearray(b"x") * size

    assert peak_of(work) >= size * 0.9


def test_without_a_kernel_that_tells_a_peak_is_nothing(tmp_path: Path) -> None:
    assert peak_of(lambda: None, tmp_path) == 0
