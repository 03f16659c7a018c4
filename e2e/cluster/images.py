"""Builds the images that users build, and puts them where the cluster's node gets them from: its registry.

    images.py build    build what has changed, push it, and have the node pull it
    images.py clean    remove what earlier builds left: about 0.5 GB for each change of the engine's requirements

Both need the cluster to be up.

Layers are kept between runs. A change of our source alone builds and moves small layers, never the one that holds the
dependencies. The result, with digests, is printed and written to `images.json` in the cluster's folder.
"""

import argparse
import hashlib
import json
import os
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

import image_scan
import network
import node
import parts
import pause_image
from cache import CACHE, IMAGES, KUBECONFIG
from image_scan import BUILDAH
from progress import ClusterError, run_main, say, step

ROOT = Path(__file__).resolve().parents[2]
IMAGE_NAMES = ("engine", "operator")

# The base stands in for python:3.11-slim-bookworm, which is Debian with a Python too.
SUITE = "bookworm"
BASE_PACKAGES = ("ca-certificates", "python3", "python3-venv")
BASE_CLEANING = ("var/cache/apt/archives", "var/lib/apt/lists", "var/log")
BASE_DOCKERFILE = "FROM scratch\nADD base.tar /\nENV LANG=C.UTF-8\n"

# And this, that with a C++ compiler, for python:3.11-bookworm: it stays here, where wheels are built.
BUILD_PACKAGES = ("g++",)
BUILD_DOCKERFILE = f"""\
ARG BASE_IMAGE
FROM ${{BASE_IMAGE}}
RUN apt-get -q update && apt-get -q install -y --no-install-recommends {" ".join(BUILD_PACKAGES)}
"""

BUILD = (*BUILDAH, "bud", "--isolation", "chroot", "--layers")
BUNDLE = "/etc/ssl/certs/ca-certificates.crt"  # Debian's path, in the image as on the machine


def build() -> int:
    if not network.exists():
        raise ClusterError("images go to the cluster's registry: run cluster.py up first")
    base = _build_base()
    bases = {"BASE_IMAGE": base, "BUILD_IMAGE": _build_compiler(base)}
    for name in IMAGE_NAMES:
        with step(f"building {name} (a minute, where its requirements have changed)"):
            _build(name, bases)
            image_scan.scan(name)
    network.enter()
    references = {"base": _push(base, "base")}
    for name in IMAGE_NAMES:
        references[name] = _push(_local(name), name)
    with step("having the node pull what it lacks (minutes, the first time)"):
        _pull(references)
    IMAGES.write_text(json.dumps(references, indent=1) + "\n")
    for name, reference in references.items():
        say(f"{name}: {reference}")
    return 0


def _local(name: str, tag: str = "latest") -> str:
    return f"localhost/pinrail-{name}:{tag}"


def _by_recipe(name: str, *recipe: object) -> str:
    """An image's name, with a tag that says what it is made by."""
    return _local(name, hashlib.sha256(repr(recipe).encode()).hexdigest()[:12])


def _exists(image: str) -> bool:
    return subprocess.run([*BUILDAH, "inspect", "--type=image", image], capture_output=True).returncode == 0


def _build_base() -> str:
    """Debian with Python, from Debian's packages; made again when its recipe changes, for minutes."""
    image = _by_recipe("base", SUITE, BASE_PACKAGES, BASE_CLEANING, BASE_DOCKERFILE)
    if _exists(image):
        return image
    CACHE.mkdir(parents=True, exist_ok=True)
    with step("building the base image (about 2 min, the first time)"), tempfile.TemporaryDirectory(dir=CACHE) as aside:
        files, context = Path(aside, "files"), Path(aside, "context")
        context.mkdir()
        _run("debootstrap", "--variant=minbase", f"--include={','.join(BASE_PACKAGES)}", SUITE, str(files))
        for folder in BASE_CLEANING:
            _run("find", str(files / folder), "-type", "f", "-delete")
        _run("tar", "--create", f"--file={context / 'base.tar'}", f"--directory={files}", "--exclude=./dev/*", ".")
        (context / "Dockerfile").write_text(BASE_DOCKERFILE)
        _run(*BUILD, "--tag", image, str(context))
    return image


def _build_compiler(base: str) -> str:
    """The base with a C++ compiler."""
    image = _by_recipe("compiler", base, BUILD_DOCKERFILE)
    if _exists(image):
        return image
    with step("adding a C++ compiler (about 1 min, the first time)"), tempfile.TemporaryDirectory(dir=CACHE) as context:
        Path(context, "Dockerfile").write_text(BUILD_DOCKERFILE)
        _run(*BUILD, f"--build-arg=BASE_IMAGE={base}", "--tag", image, context)
    return image


def _build(name: str, bases: Mapping[str, str]) -> None:
    """As `docker build -f images/NAME/Dockerfile .` would, on our bases and with this machine's pip settings."""
    folder = ROOT / "images" / name
    settings = dict(bases)
    settings |= {key: os.environ[key] for key in ("PIP_INDEX_URL", "PIP_DEFAULT_TIMEOUT") if key in os.environ}
    volumes = []
    certificates = os.environ.get("PIP_CERT") or os.environ.get("SSL_CERT_FILE")
    if certificates:
        settings["PIP_CERT"] = BUNDLE
        volumes = [f"--volume={certificates}:{BUNDLE}:ro"]
    _run(
        *BUILD,
        f"--file={folder / 'Dockerfile'}",
        f"--ignorefile={folder / 'Dockerfile.dockerignore'}",
        *(f"--build-arg={key}={value}" for key, value in settings.items()),
        *volumes,
        f"--tag={_local(name)}",
        str(ROOT),
    )


def _push(image: str, name: str) -> str:
    """Push the layers that the registry lacks, uncompressed; returns the name that holds the digest."""
    repository = f"{node.REGISTRY_ADDRESS}/pinrail-{name}"
    with step(f"pushing {name}"), tempfile.NamedTemporaryFile("r") as digest:
        target = f"docker://{repository}:latest"
        options = ("--tls-verify=false", "--disable-compression", f"--digestfile={digest.name}")
        _run(*BUILDAH, "push", *options, image, target)
        return f"{repository}@{digest.read().strip()}"


def _pull(references: Mapping[str, str]) -> None:
    """Run a Pod with each that does nothing, so that the image comes as it does for any other Pod."""
    kubectl = (str(parts.KUBERNETES.program("kubectl")), f"--kubeconfig={KUBECONFIG}", "--namespace=kube-system")
    pods = [f"pull-{name}" for name in references]
    _run(*kubectl, "delete", "pod", *pods, "--ignore-not-found", "--grace-period=0", "--force")
    for pod, reference in zip(pods, references.values(), strict=True):
        _run(*kubectl, "run", pod, f"--image={reference}", "--restart=Never", "--command", "--", "/bin/true")
    _run(*kubectl, "wait", "pod", *pods, "--for=jsonpath={.status.phase}=Succeeded", "--timeout=600s")
    _run(*kubectl, "delete", "pod", *pods, "--wait=false")


def clean() -> int:
    """Remove every layer that no image of the last build has."""
    current = {reference.partition("@")[2] for reference in json.loads(IMAGES.read_text()).values()}
    with step("removing old layers of builds"):
        _run(*BUILDAH, "rmi", "--prune")
    with step("removing old layers of the registry"):
        _run("docker-registry", "garbage-collect", "--delete-untagged", str(node.REGISTRY_CONFIG))
    network.enter()
    with step("removing old images of the node"):
        for line in node.ctr("images", "list").splitlines()[1:]:
            name, _, digest, *_ = line.split()
            if digest not in current and name != pause_image.NAME:
                node.ctr("images", "remove", name)
    return 0


def _run(*command: str) -> None:
    """Run it; if it fails, show what it said."""
    done = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode != 0:
        raise ClusterError(f"{' '.join(command)} failed:\n{done.stdout[-4000:]}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=["build", "clean"])
    return {"build": build, "clean": clean}[parser.parse_args().action]()


if __name__ == "__main__":
    run_main(main)
