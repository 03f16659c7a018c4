"""Where everything that is built, downloaded or running is kept: `$PINRAIL_CACHE`, by default ~/.cache/pinrail.

`bin/` and `buildah/` hold what is costly to make. `cluster/` holds the one cluster of this machine, with its
images; `cluster/run/` all that belongs to one `up`, and may be deleted whenever the cluster is down.
"""

import os
from pathlib import Path

CACHE = Path(os.environ.get("PINRAIL_CACHE") or Path.home() / ".cache" / "pinrail").absolute()
BINARIES = CACHE / "bin"
BUILD_STORAGE = CACHE / "buildah"  # the layers of images

CLUSTER = CACHE / "cluster"
RUN = CLUSTER / "run"
KUBECONFIG = CLUSTER / "kubeconfig"
CONTAINERD = CLUSTER / "containerd"  # images and their unpacked layers
REGISTRY = CLUSTER / "registry"
IMAGES = CLUSTER / "images.json"
