"""What a built image holds, against what it may hold: read from its files and its settings, in seconds.

    image_scan.py engine operator

| it looks at                    | and wants                                                             |
|--------------------------------|-----------------------------------------------------------------------|
| installed distributions        | those of its lock file, in those versions, and ours: nothing else     |
| who it runs as                 | the user of our pods, by number, who owns no file and can write none  |
| setuid and setgid              | on no file                                                            |
| what anybody may write         | the temporary folders alone                                           |
| programs                       | no compiler, no pip of ours, nothing that fetches or logs in          |
| what was left behind           | no repository, key, password file or cache; no password in its history|

A shell, apt and a pip of the base's own are there: both Dockerfiles begin with python:3.11-slim. Our pods cannot write
to the root, have no capability and gain no privilege.
"""

import argparse
import json
import re
import stat
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from email.parser import HeaderParser
from pathlib import Path
from typing import Any

from cache import BUILD_STORAGE
from progress import ClusterError, run_main, say

ROOT = Path(__file__).resolve().parents[2]
LOCKS = {"engine": "engine-cpu", "operator": "operator"}
OURS = "pinrail"
INSTALLED = "opt/pinrail"
USER = 65532
TEMPORARY = {"tmp", "var/tmp", "run/lock", "dev/shm", "dev/mqueue"}

COMPILERS = {"cc", "gcc", "g++", "c++", "clang", "ld", "as", "make", "cmake", "ninja", "go", "rustc", "nvcc"}
FETCHERS = {
    "curl",
    "wget",
    "git",
    "ssh",
    "scp",
    "sftp",
    "nc",
    "ncat",
    "telnet",
    "ftp",
    "rsync",
    "sudo",
    "gdb",
    "strace",
}
LEFTOVERS = re.compile(
    r"\.git|\.ssh|\.aws|\.docker|\.kube|\.netrc|\.pypirc|\.npmrc|\.env|\.bash_history|pip\.conf|id_(rsa|dsa|ecdsa|ed25519)"
    r"|.*\.(key|pfx|p12|kubeconfig)|\.cache|\.pytest_cache|\.hypothesis"
)
PRIVATE_KEY = b"PRIVATE KEY-----"
PASSWORD = re.compile(r"://[^/\s:@]*:[^/\s@]+@|(?i:(password|passwd|secret|token|api_?key)[A-Z_]*=)\S+")

RUN_STORAGE = "/run/pinrail-build"
BUILDAH = ("buildah", "--storage-driver", "overlay", "--root", str(BUILD_STORAGE), "--runroot", RUN_STORAGE)


@dataclass(frozen=True, slots=True)
class Image:
    """One that is built, opened."""

    root: Path  # its files
    config: Mapping[str, Any]  # as the OCI's image specification has it
    history: tuple[str, ...]  # what each layer was made by


def findings(image: Image, lock: str) -> list[str]:
    """What is not as it should be, in words that name it; `lock` is the text of its lock file."""
    return [
        *_distributions(image.root, lock),
        *_settings(image),
        *(said for path in _files(image.root) for said in _file(image.root, path)),
    ]


def locked(text: str) -> dict[str, str]:
    """Versions by name."""
    return dict(re.findall(r"^([a-z0-9][a-z0-9._-]*)==([^\s;]+)", text, re.MULTILINE))


def installed(root: Path) -> dict[str, str]:
    """Versions by name, of every distribution in our environment."""
    found = {}
    for file in root.glob(f"{INSTALLED}/lib/python3.*/site-packages/*.dist-info/METADATA"):
        head = HeaderParser().parsestr(file.read_text(encoding="utf-8"), headersonly=True)
        found[re.sub(r"[-_.]+", "-", head["Name"]).lower()] = head["Version"]
    return found


def _distributions(root: Path, lock: str) -> Iterator[str]:
    wanted, has = locked(lock), installed(root)
    if OURS not in has:
        yield f"{OURS} is not installed"
    for name in sorted({*wanted, *has} - {OURS}):
        if wanted.get(name) != has.get(name):
            yield f"{name}: has {has.get(name, 'none')}, want {wanted.get(name, 'none')} as the lock file has it"


def _settings(image: Image) -> Iterator[str]:
    user = str(image.config.get("User", ""))
    if user != f"{USER}:{USER}":
        yield f"runs as {user or 'root'}, want {USER}:{USER}"
    if image.config.get("Entrypoint") != ["pinrail"]:
        yield f"begins with {image.config.get('Entrypoint')}, want ['pinrail']"
    for variable in image.config.get("Env", []):
        if PASSWORD.search(variable):
            yield f"the variable {variable.partition('=')[0]} holds a password"
    for number, line in enumerate(image.history, 1):
        if PASSWORD.search(line):
            yield f"step {number} of its history holds a password"


def _files(root: Path) -> Iterator[Path]:
    """All of them and all folders, links left as they are."""
    waiting = [root]
    while waiting:
        for path in sorted(waiting.pop().iterdir()):
            yield path
            if path.is_dir() and not path.is_symlink():
                waiting.append(path)


def _file(root: Path, path: Path) -> Iterator[str]:
    name, found = str(path.relative_to(root)), path.lstat()
    if stat.S_ISLNK(found.st_mode):
        return
    is_file = stat.S_ISREG(found.st_mode)
    if is_file and found.st_mode & (stat.S_ISUID | stat.S_ISGID):
        yield f"/{name} is setuid or setgid"
    if (is_file or stat.S_ISDIR(found.st_mode)) and found.st_mode & stat.S_IWOTH and name not in TEMPORARY:
        yield f"/{name} can be written by anybody"
    if USER in (found.st_uid, found.st_gid):
        yield f"/{name} belongs to the user that it runs as"
    if LEFTOVERS.fullmatch(path.name) or (is_file and path.suffix == ".pem" and PRIVATE_KEY in path.read_bytes()):
        yield f"/{name} was left behind"
    if is_file and _is_program(name) and _is_unwanted(path.name):
        yield f"/{name} is of no use to what runs here"


def _is_program(name: str) -> bool:
    return name.rpartition("/")[0] in ("bin", "sbin", "usr/bin", "usr/sbin", "usr/local/bin", f"{INSTALLED}/bin")


def _is_unwanted(name: str) -> bool:
    """By itself, or with a version or a target: pip3.11, gcc-12, x86_64-linux-gnu-g++."""
    bare = re.sub(r"-?[0-9][0-9.]*$", "", name)
    return bare in COMPILERS | FETCHERS | {"pip"} or bare.rpartition("-linux-gnu-")[2] in COMPILERS


def opened(name: str, container: str) -> Image:
    """Mount the image that the last build made, as `container`."""
    told = json.loads(_told("inspect", "--type=image", f"localhost/pinrail-{name}:latest"))["OCIv1"]
    _told("from", "--pull-never", f"--name={container}", f"localhost/pinrail-{name}:latest")
    history = tuple(layer.get("created_by", "") for layer in told.get("history", []))
    return Image(Path(_told("mount", container).strip()), told["config"], history)


def scan(name: str) -> None:
    """Raises ClusterError that says everything which is not as it should be."""
    container = f"scan-{name}"
    subprocess.run([*BUILDAH, "rm", container], capture_output=True)  # one that an interrupted scan left
    try:
        lock = (ROOT / "requirements" / f"{LOCKS[name]}.txt").read_text(encoding="utf-8")
        found = findings(opened(name, container), lock)
    finally:
        subprocess.run([*BUILDAH, "rm", container], capture_output=True)
    if found:
        more = f"\n… and {len(found) - 40} more" if len(found) > 40 else ""
        raise ClusterError(f"the image {name} is not as it should be:\n" + "\n".join(found[:40]) + more)


def _told(*words: str) -> str:
    done = subprocess.run([*BUILDAH, *words], text=True, capture_output=True)
    if done.returncode != 0:
        raise ClusterError(f"buildah {' '.join(words)} failed:\n{done.stderr[-2000:]}")
    return done.stdout


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("image", nargs="+", choices=sorted(LOCKS))
    for name in parser.parse_args().image:
        scan(name)
        say(f"{name}: as it should be")
    return 0


if __name__ == "__main__":
    run_main(main)
