"""etcd and kube-apiserver: a real Kubernetes API, on its own or as the heart of a cluster.

On its own it needs no root, no network namespace and about 3 s (`parts.py apiserver` builds it once):

    with ControlPlane.start(folder) as api:
        subprocess.run(["kubectl", "--kubeconfig", api.kubeconfig, "get", "namespaces"])

RBAC is on, and the kubeconfig is an administrator's. No controller runs: nothing is garbage collected, no Deployment
gets Pods, and a Pod may name a service account that has no object.
"""

import socket
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import parts
from certs import Authority, Pair
from processes import Process
from progress import ClusterError, wait_until

SERVICE_RANGE = "10.96.0.0/16"
SERVICE_ADDRESS = "10.96.0.1"  # the API server's own, by convention the first
ALONE = ("--disable-admission-plugins=ServiceAccount", "--endpoint-reconciler-type=none")
STOP_GRACE = 5.0  # seconds; without watchers the API server is gone in less than one


@dataclass(frozen=True, slots=True)
class ControlPlane:
    """A running etcd and API server, with all their files in one folder."""

    url: str
    kubeconfig: Path
    """An administrator's."""

    authority: Authority
    tokens: Pair
    """The key that service-account tokens are signed with."""

    etcd: Process
    api_server: Process

    @classmethod
    def start(
        cls,
        folder: Path,
        *,
        address: str = "127.0.0.1",
        port: int = 0,
        flags: Sequence[str] = ALONE,
        started: Callable[[Process], None] = lambda _: None,
    ) -> Self:
        """Start both and return when the API server is ready to serve.

        Args:
            folder: A folder of this control plane's own; it must hold no earlier one's data.
            address: An address of this machine that the API server listens on. etcd stays on 127.0.0.1.
            port: The API server's port; 0 takes a free one.
            flags: More flags for the API server; the default suits one that no controllers serve.
            started: Told of each process as soon as it runs.

        Raises:
            ClusterError: A program is missing or did not come up; the message holds the end of its log.
        """
        program = parts.KUBERNETES.program("kube-apiserver")
        authority = Authority.create(folder / "certs")
        tokens = authority.signing_key("service-accounts")
        etcd_url, port = f"http://127.0.0.1:{_free_port()}", port or _free_port(address)
        server_flags = (*_api_server_flags(authority, tokens, etcd_url, address, port), *flags)
        url = f"https://{address}:{port}"
        admin = authority.issue("admin", group="system:masters")
        kubeconfig = authority.kubeconfig(folder / "kubeconfig", url, admin)

        etcd = Process.start("etcd", _etcd_command(folder, etcd_url), folder / "log" / "etcd.log")
        started(etcd)
        log = folder / "log" / "kube-apiserver.log"
        api_server = Process.start("kube-apiserver", (program, *server_flags), log)
        started(api_server)
        self = cls(url, kubeconfig, authority, tokens, etcd, api_server)
        try:
            wait_until(lambda: self._is_ready(folder), "the API server's readiness", timeout=60)
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """End both. The API server goes first, since without its etcd it would wait for long."""
        self.api_server.stop(STOP_GRACE)
        self.etcd.stop(STOP_GRACE)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def _is_ready(self, folder: Path) -> bool:
        for process in (self.etcd, self.api_server):
            if not process.is_alive():
                raise ClusterError(f"{process.name} ended:\n{log_end(folder / 'log' / f'{process.name}.log')}")
        trusted = urllib.request.HTTPSHandler(context=ssl.create_default_context(cafile=str(self.authority.ca.cert)))
        no_proxy = urllib.request.ProxyHandler({})
        try:
            with urllib.request.build_opener(no_proxy, trusted).open(f"{self.url}/readyz", timeout=2) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False


def log_end(log: Path, lines: int = 15) -> str:
    """The last lines of a log, for a message."""
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])


def _etcd_command(folder: Path, url: str) -> list[str]:
    peer = f"http://127.0.0.1:{_free_port()}"  # etcd insists on one, though it has no peers
    return [
        "etcd",
        f"--data-dir={folder / 'etcd'}",
        f"--listen-client-urls={url}",
        f"--advertise-client-urls={url}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=default={peer}",
        "--unsafe-no-fsync",  # nothing in it has to survive the machine
    ]


def _api_server_flags(authority: Authority, tokens: Pair, etcd_url: str, address: str, port: int) -> list[str]:
    names = ("kubernetes", "kubernetes.default", "kubernetes.default.svc", "localhost")
    addresses = dict.fromkeys((address, SERVICE_ADDRESS, "127.0.0.1"))
    sans = [*(f"DNS:{name}" for name in names), *(f"IP:{a}" for a in addresses)]
    serving = authority.issue("kube-apiserver", sans=sans)
    to_kubelet = authority.issue("kube-apiserver-kubelet-client", group="system:masters")
    return [
        f"--etcd-servers={etcd_url}",
        f"--bind-address={address}",
        f"--advertise-address={address}",
        f"--secure-port={port}",
        f"--tls-cert-file={serving.cert}",
        f"--tls-private-key-file={serving.key}",
        f"--client-ca-file={authority.ca.cert}",
        f"--kubelet-certificate-authority={authority.ca.cert}",
        f"--kubelet-client-certificate={to_kubelet.cert}",
        f"--kubelet-client-key={to_kubelet.key}",
        "--kubelet-preferred-address-types=InternalIP",  # or exec and logs would look the node's name up
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={tokens.cert}",
        f"--service-account-signing-key-file={tokens.key}",
        f"--service-cluster-ip-range={SERVICE_RANGE}",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged=true",
        "--profiling=false",
    ]


def _free_port(address: str = "127.0.0.1") -> int:
    with socket.socket() as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])
