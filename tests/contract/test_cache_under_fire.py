"""What holds of a cache whoever uses it, and whoever is killed: nothing goes under a user, the bound is kept."""

import json
import random
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import cache_user

from pinrail_contract.file_lock import locked
from pinrail_contract.folder import no_progress
from pinrail_contract.pin_command import pin_folder
from pinrail_contract.pins import API_VERSION, KIND, Source

SIZES = (200_000, 300_000, 400_000, 500_000)  # bytes of each model's weights
BOUND = 1_000_000  # two or three of them fit
USERS, ROUNDS, KILLS = 3, 30, 12


def manifest_file(folder: Path, name: str, size: int) -> Path:
    """Of a new model with weights of that size."""
    source = folder / f"source-{name}"
    source.mkdir()
    (source / "config.json").write_bytes((folder / "model" / "config.json").read_bytes())
    (source / "tokenizer.json").write_text("{}")
    (source / "model.safetensors").write_bytes(random.Random(name).randbytes(size))
    spec = pin_folder(source, Source(f"file://{source}"), no_progress).to_spec()
    path = folder / f"{name}.json"
    path.write_text(json.dumps({"apiVersion": API_VERSION, "kind": KIND, "spec": spec}))
    return path


def user(folder: Path, seed: int, rounds: int, files: list[Path]) -> subprocess.Popen[str]:
    words: list[Any] = [sys.executable, cache_user.__file__, folder / "c", BOUND, seed, rounds, *files]
    return subprocess.Popen([str(w) for w in words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def in_cache(folder: Path) -> int:
    """Bytes; while they are added up nothing is removed, or let in."""
    total = 0
    with locked(folder / "c" / "locks" / "room"):
        for path in folder.glob("c/sha256-*/*"):
            with suppress(FileNotFoundError):  # a part that has just taken its name
                total += path.stat().st_size
    return total


def test_no_model_goes_under_its_user_and_the_bound_is_kept_though_users_are_killed(
    folder: Path, tmp_path: Path
) -> None:
    files = [manifest_file(tmp_path, str(i), size) for i, size in enumerate(SIZES)]
    steady = [user(tmp_path, seed, ROUNDS, files) for seed in range(USERS)]
    dice = random.Random(0)
    for i in range(KILLS):
        victim = user(tmp_path, 100 + i, 10**6, files)
        assert victim.stdout is not None
        victim.stdout.readline()
        time.sleep(dice.uniform(0.0, 0.05))
        victim.kill()
        log = victim.communicate()[1]
        assert "Traceback" not in log, log
        assert in_cache(tmp_path) <= BOUND
    said: Counter[str] = Counter()
    for process in steady:
        out, log = process.communicate(timeout=120)
        assert process.returncode == 0, log
        said.update(out.splitlines())
    assert set(said) <= {"whole", "full"}, said
    assert said["whole"] > ROUNDS, said
    last = user(tmp_path, 0, 1, files[-1:])
    assert last.communicate(timeout=60)[0] == "whole\n", "nobody who was killed has left a lock"
