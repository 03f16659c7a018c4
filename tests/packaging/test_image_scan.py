"""What a scan of an image finds: a small image that is as it should be, and one change at a time."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from image_scan import INSTALLED, LOCKS, USER, Image, findings

LOCK = "idna==3.20 \\\n    --hash=sha256:00\ntyping-extensions==4.16.0 \\\n    --hash=sha256:00\n"
SITE = f"{INSTALLED}/lib/python3.11/site-packages"
CONFIG = {"User": f"{USER}:{USER}", "Entrypoint": ["pinrail"], "Env": ["PATH=/opt/pinrail/bin:/usr/bin"]}

Change = Callable[[Path], object]


def put(root: Path, name: str, text: str = "", mode: int = 0o644) -> Path:
    file = root / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    file.chmod(mode)
    return file


def install(root: Path, name: str, version: str) -> None:
    put(
        root,
        f"{SITE}/{name}-{version}.dist-info/METADATA",
        f"Metadata-Version: 2.4\nName: {name}\nVersion: {version}\n",
    )


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The files of an image: a base with a shell, ours in it."""
    put(tmp_path, "usr/bin/dash", mode=0o755)
    put(tmp_path, "usr/bin/python3.11", mode=0o755)
    put(tmp_path, "usr/share/doc/gcc/README")
    put(tmp_path, "etc/ssl/certs/authority.pem", "-----BEGIN CERTIFICATE-----")
    put(tmp_path, f"{INSTALLED}/bin/pinrail", mode=0o755)
    for name, version in (("idna", "3.20"), ("typing_extensions", "4.16.0"), ("pinrail", "0.1.0")):
        install(tmp_path, name, version)
    (tmp_path / "tmp").mkdir()
    (tmp_path / "tmp").chmod(0o1777)
    (tmp_path / "etc" / "link").symlink_to("/nowhere")
    return tmp_path


def found(root: Path, history: tuple[str, ...] = (), **config: Any) -> list[str]:
    return findings(Image(root, {**CONFIG, **config}, history), LOCK)


def test_an_image_that_is_as_it_should_be(root: Path) -> None:
    assert (
        found(root, ("|2 PIP_INDEX_URL=https://mirror.test/simple PIP_CERT=/etc/x /bin/sh -c python3 -m venv",)) == []
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        pytest.param(lambda r: install(r, "left-pad", "1.0"), "left-pad: has 1.0, want none as the lock", id="more"),
        pytest.param(lambda r: (r / SITE / "idna-3.20.dist-info" / "METADATA").unlink(),
                     "idna: has none, want 3.20 as the lock", id="less"),
        pytest.param(lambda r: put(r, f"{SITE}/idna-3.20.dist-info/METADATA", "Name: idna\nVersion: 3.19\n"),
                     "idna: has 3.19, want 3.20 as the lock", id="another version"),
        pytest.param(lambda r: (r / SITE / "pinrail-0.1.0.dist-info" / "METADATA").unlink(),
                     "pinrail is not installed", id="not ours"),
        pytest.param(lambda r: put(r, "usr/bin/su", mode=0o4755), "/usr/bin/su is setuid or setgid", id="setuid"),
        pytest.param(lambda r: put(r, "usr/bin/chage", mode=0o2755), "/usr/bin/chage is setuid or setgid", id="setgid"),
        pytest.param(lambda r: put(r, "etc/passwd", mode=0o666), "/etc/passwd can be written by anybody", id="file"),
        pytest.param(lambda r: (r / "etc").chmod(0o1777), "/etc can be written by anybody", id="folder"),
        pytest.param(lambda r: put(r, "tmp/x", mode=0o666), "/tmp/x can be written by anybody", id="file in tmp"),
        pytest.param(lambda r: os.chown(put(r, "opt/pinrail/x"), USER, 0), "/opt/pinrail/x belongs to the user",
                     id="owner", marks=pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")),
        pytest.param(lambda r: put(r, "usr/bin/gcc-12", mode=0o755), "/usr/bin/gcc-12 is of no use", id="compiler"),
        pytest.param(lambda r: put(r, "usr/bin/x86_64-linux-gnu-g++-12", mode=0o755), "g++-12 is of no", id="target"),
        pytest.param(lambda r: put(r, "opt/pinrail/bin/pip3.11", mode=0o755), "/opt/pinrail/bin/pip3.11 is", id="pip"),
        pytest.param(lambda r: put(r, "usr/bin/curl", mode=0o755), "/usr/bin/curl is of no use", id="fetcher"),
        pytest.param(lambda r: put(r, "app/.git/HEAD"), "/app/.git was left behind", id="repository"),
        pytest.param(lambda r: put(r, "root/.netrc"), "/root/.netrc was left behind", id="passwords"),
        pytest.param(lambda r: put(r, "etc/server.key"), "/etc/server.key was left behind", id="key"),
        pytest.param(lambda r: put(r, "etc/x.pem", "-----BEGIN RSA PRIVATE KEY-----"), "/etc/x.pem was left", id="pem"),
        pytest.param(lambda r: put(r, "root/.cache/pip/x"), "/root/.cache was left behind", id="cache"),
    ],
)  # fmt: skip
def test_what_an_image_must_not_hold(root: Path, change: Change, said: str) -> None:
    change(root)
    assert [line for line in found(root) if said in line], found(root)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"User": ""}, f"runs as root, want {USER}:{USER}"),
        ({"User": "pinrail"}, f"runs as pinrail, want {USER}:{USER}"),
        ({"Entrypoint": ["/bin/sh"]}, "begins with ['/bin/sh'], want ['pinrail']"),
        ({"Env": ["HF_TOKEN=hf_canary"]}, "the variable HF_TOKEN holds a password"),
        (
            {"history": ("|1 PIP_INDEX_URL=https://me:canary@mirror.test/simple /bin/sh",)},
            "step 1 of its history holds a",
        ),
    ],
    ids=["root", "by name", "a shell", "token", "index with a password"],
)
def test_what_an_image_must_not_say(root: Path, config: dict[str, Any], said: str) -> None:
    told = found(root, **config)
    assert [line for line in told if said in line], told
    assert "canary" not in str(told)


def test_every_image_of_the_cluster_is_scanned_against_the_lock_it_is_built_from() -> None:
    images = Path(__file__).parents[2] / "images"
    for name, lock in LOCKS.items():
        assert (
            f"COPY requirements/{lock}.txt /opt/pinrail/requirements.txt" in (images / name / "Dockerfile").read_text()
        )
