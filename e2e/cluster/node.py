"""The programs of the one node: containerd, kubelet, kube-proxy, and the registry that images come from.

All of them must be started inside the cluster's network namespace.
"""

import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import network
import parts
import pause_image
from cache import CONTAINERD, REGISTRY, RUN
from certs import Authority, Pair
from processes import Ledger, Process
from progress import wait_until

NAME = "pinrail"
CGROUP = "pinrail"  # under every cgroup controller; each pod's processes are below it
SOCKET = RUN / "containerd" / "containerd.sock"
REGISTRY_ADDRESS = f"{network.NODE_ADDRESS}:5000"
REGISTRY_CONFIG = RUN / "registry.yaml"
REGISTRY_HOSTS = RUN / "registries"  # tells containerd that this registry speaks plain HTTP
CTR = ("ctr", "--address", str(SOCKET), "--namespace", "k8s.io")
LOGS = RUN / "log"

CONTAINERD_CONFIG = f"""
version = 2
root = "{CONTAINERD}"
state = "{RUN}/containerd"
[grpc]
  address = "{SOCKET}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause_image.NAME}"
  netns_mounts_under_state_dir = true
  # Without CAP_SYS_RESOURCE, runc could not lower a sandbox's score, and would fail with "can't get final child's PID".
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{RUN}/cni"
  [plugins."io.containerd.grpc.v1.cri".registry]
    config_path = "{REGISTRY_HOSTS}"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    discard_unpacked_layers = true
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        Root = "{RUN}/runc"
"""

REGISTRY_HOST = f"""
server = "http://{REGISTRY_ADDRESS}"
[host."http://{REGISTRY_ADDRESS}"]
  capabilities = ["pull", "resolve"]
"""


@dataclass(frozen=True, slots=True)
class Node:
    """What the node's programs need to know of the cluster."""

    url: str  # the API server's
    authority: Authority
    ledger: Ledger

    def start_registry(self) -> None:
        config = {
            "version": "0.1",
            "storage": {"filesystem": {"rootdirectory": str(REGISTRY)}},
            "http": {"addr": REGISTRY_ADDRESS},
        }
        self._start("registry", "docker-registry", "serve", _write_json(REGISTRY_CONFIG, config))

    def start_containerd(self) -> None:
        """Start it with the images of earlier runs, and without their containers."""
        _write(RUN / "containerd.toml", CONTAINERD_CONFIG)
        _write(REGISTRY_HOSTS / REGISTRY_ADDRESS / "hosts.toml", REGISTRY_HOST)
        _write_json(RUN / "cni" / "pods.conflist", _pod_network())
        containerd = self._start_containerd()
        left = ctr("containers", "list", "--quiet").split()
        if left:
            ctr("containers", "remove", *left)
            containerd.stop(grace=5)
            self._start_containerd()  # it learns of its containers only when it starts
        ctr("images", "import", pause_image.write(RUN / "pause.tar"))

    def _start_containerd(self) -> Process:
        process = self._start("containerd", "containerd", "--config", RUN / "containerd.toml")
        wait_until(lambda: _answers("version"), "containerd's answer", timeout=30)
        return process

    def start_controllers(self, tokens: Pair) -> None:
        """The controller manager and the scheduler.

        Args:
            tokens: The key that service-account tokens are signed with.
        """
        ca = self.authority.ca
        self._start(
            "kube-controller-manager",
            parts.KUBERNETES.program("kube-controller-manager"),
            f"--kubeconfig={self.kubeconfig('system:kube-controller-manager')}",
            f"--service-account-private-key-file={tokens.key}",
            f"--root-ca-file={ca.cert}",
            f"--cluster-signing-cert-file={ca.cert}",
            f"--cluster-signing-key-file={ca.key}",
            "--use-service-account-credentials",
            "--leader-elect=false",
            "--bind-address=127.0.0.1",
            # An API server that was away for longer finds all nodes silent, and takes their pods out of every Service.
            "--node-monitor-grace-period=15m",
        )
        self._start(
            "kube-scheduler",
            parts.KUBERNETES.program("kube-scheduler"),
            f"--kubeconfig={self.kubeconfig('system:kube-scheduler')}",
            "--leader-elect=false",
            "--bind-address=127.0.0.1",
        )

    def start_kubelet(self) -> None:
        serving = self.authority.issue("kubelet", sans=[f"DNS:{NAME}", f"IP:{network.NODE_ADDRESS}"])
        config = {
            **_kubelet_config(),
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(self.authority.ca.cert)},
            },
            "tlsCertFile": str(serving.cert),
            "tlsPrivateKeyFile": str(serving.key),
        }
        _make_cgroups()
        self._start(
            "kubelet",
            parts.KUBERNETES.program("kubelet"),
            f"--config={_write_json(RUN / 'kubelet.yaml', config)}",
            f"--kubeconfig={self.kubeconfig(f'system:node:{NAME}', 'system:nodes')}",
            f"--root-dir={RUN / 'kubelet'}",
            f"--hostname-override={NAME}",
            f"--node-ip={network.NODE_ADDRESS}",
        )

    def start_kube_proxy(self) -> None:
        config = {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "mode": "nftables",
            "clientConnection": {"kubeconfig": str(self.kubeconfig("system:kube-proxy"))},
            "clusterCIDR": network.POD_RANGE,
            "hostnameOverride": NAME,
            "conntrack": {"maxPerCore": 0},  # the table's size belongs to the machine
        }
        program = parts.KUBERNETES.program("kube-proxy")
        self._start("kube-proxy", program, f"--config={_write_json(RUN / 'kube-proxy.yaml', config)}")

    def kubeconfig(self, user: str, group: str = "") -> Path:
        """A kubeconfig for a program of the cluster."""
        file = RUN / f"{user.replace(':', '-')}.kubeconfig"
        return self.authority.kubeconfig(file, self.url, self.authority.issue(user, group=group))

    def _start(self, name: str, *command: str | Path) -> Process:
        process = Process.start(name, command, LOGS / f"{name}.log")
        self.ledger.add(process)
        return process


def _kubelet_config() -> dict[str, object]:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": network.NODE_ADDRESS,
        "authorization": {"mode": "Webhook"},
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{CGROUP}",
        "failCgroupV1": False,
        "failSwapOn": False,
        "oomScoreAdj": 0,
        "containerRuntimeEndpoint": f"unix://{SOCKET}",
        "clusterDomain": "cluster.local",
        "clusterDNS": ["10.96.0.10"],  # nobody is there; without an address there is an event for each pod
        "resolvConf": "",
        "serializeImagePulls": False,  # one heavy image must not hold up the rest
        "syncFrequency": "10s",  # a changed Secret reaches its pods as fast; a minute is usual
        "podLogsDir": str(RUN / "pods"),
        "volumePluginDir": str(RUN / "volume-plugins"),
        # The disk is the machine's: its being full of other things must neither remove images nor evict pods.
        "imageGCHighThresholdPercent": 100,
        "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
    }


def _pod_network() -> dict[str, object]:
    addresses = {
        "type": "host-local",
        "ranges": [[{"subnet": network.POD_RANGE}]],
        "routes": [{"dst": "0.0.0.0/0"}],
        "dataDir": str(RUN / "addresses"),
    }
    bridge = {
        "type": "bridge",
        "bridge": network.POD_BRIDGE,
        "isGateway": True,
        "hairpinMode": True,
        "ipam": addresses,
    }
    port_map = {"type": "portmap", "capabilities": {"portMappings": True}}
    return {"cniVersion": "1.0.0", "name": NAME, "plugins": [bridge, port_map]}


def cgroup_folders() -> list[Path]:
    """The cluster's folder under each controller, or the only one where cgroups are of version 2."""
    root = Path("/sys/fs/cgroup")
    if (root / "cgroup.controllers").exists():
        return [root / CGROUP]
    controllers = (folder for folder in root.iterdir() if (folder / "cgroup.procs").exists())
    return sorted(folder / CGROUP for folder in controllers if not folder.is_symlink())


def _make_cgroups() -> None:
    for folder in cgroup_folders():
        folder.mkdir(exist_ok=True)


def _answers(*words: str) -> bool:
    return subprocess.run([*CTR, *words], capture_output=True).returncode == 0


def ctr(*words: str | Path) -> str:
    """Ask our containerd; returns what `ctr` printed."""
    return subprocess.run([*CTR, *map(str, words)], check=True, stdout=subprocess.PIPE, text=True).stdout


def _write(file: Path, text: str) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


def _write_json(file: Path, content: Mapping[str, object]) -> Path:
    """JSON is YAML too."""
    return _write(file, json.dumps(content, indent=1))
