"""The tensors of all weight files together, mapped, after their names and shapes were compared with config.json."""

import mmap
from collections.abc import Mapping
from dataclasses import dataclass

from ..errors import WeightsError
from ..model import weight_names
from ..model.arch import Arch
from .safetensors_file import Array, Entry, map_file, read_header, views


@dataclass(frozen=True, slots=True)
class Tensors:
    """Exactly those that a network of some `Arch` has, and perhaps some that it ignores."""

    by_name: Mapping[str, Array]  # bfloat16 as uint16
    mappings: tuple[mmap.mmap, ...]

    def release(self) -> None:
        """Take what was read so far out of this process's memory; it is read again where it is touched again."""
        for mapping in self.mappings:
            mapping.madvise(mmap.MADV_DONTNEED)


def map_tensors(files: Mapping[str, int], arch: Arch) -> Tensors:
    """Args: files: name -> open descriptor. Raises WeightsError that names every tensor that differs."""
    headers = {file: read_header(handle, file) for file, handle in files.items()}
    _check_names(headers, arch)
    by_name: dict[str, Array] = {}
    mappings = tuple(map_file(handle) for handle in files.values())
    for mapping, header in zip(mappings, headers.values(), strict=True):
        by_name |= views(mapping, header)
    return Tensors(by_name, mappings)


def _check_names(headers: Mapping[str, Mapping[str, Entry]], arch: Arch) -> None:
    expected = weight_names.expected(arch)
    found: dict[str, tuple[int, ...]] = {}
    problems = []
    for file, name, entry in ((f, n, e) for f, entries in headers.items() for n, e in entries.items()):
        if name in found:
            problems.append(f"{name} stands in two files, one of them {file}")
        found[name] = entry.shape
    for name in sorted(expected.keys() | found.keys()):
        if name not in found:
            problems.append(f"{name} is missing, want shape {list(expected[name])}")
        elif name in expected and found[name] != expected[name]:
            problems.append(f"{name} has shape {list(found[name])}, want {list(expected[name])}")
        elif name not in expected and not weight_names.is_ignored(name, arch):
            problems.append(f"{name} is not a tensor of this network, want none such")
    if problems:
        raise WeightsError(f"weights: {len(problems)} tensors differ from config.json: {'; '.join(problems)}")
