"""A real Kubernetes of one node on this machine, in a network namespace of its own. Needs root on Linux.

    cluster.py up               start it, with nothing in it (what is missing is built first); no-op if it is up
    cluster.py exec -- CMD...   run a command inside, with KUBECONFIG, and kubectl and helm on PATH
    cluster.py status           what runs
    cluster.py down             end it; images stay for the next time

`up` after a crash, or after a reboot, cleans up first.
"""

import argparse
import os
import shutil
import subprocess

import leftovers
import network
import node
import parts
from cache import CLUSTER, KUBECONFIG, RUN
from control_plane import ControlPlane
from node import Node
from processes import Ledger
from progress import ClusterError, run_main, say, step, wait_until

LEDGER = Ledger(CLUSTER / "processes.json")
API_PORT = 6443
ROOM = 2 << 30  # bytes of disk, without images


def up() -> int:
    if _is_up():
        say("the cluster is already up; `down` first for an empty one")
        return 0
    _check_machine()
    parts.ensure_all()
    with step("removing what an earlier cluster left"):
        leftovers.end(LEDGER)
        shutil.rmtree(RUN, ignore_errors=True)
    try:
        _start()
    except BaseException:
        say(f"it did not come up: ending it; the logs are in {RUN}")
        leftovers.end(LEDGER)
        raise
    say(f"up: KUBECONFIG={KUBECONFIG}, to be used through `cluster.py exec -- ...`")
    return 0


def _start() -> None:
    network.create()
    network.enter()
    with step("starting etcd and the API server"):
        api = ControlPlane.start(RUN, address=network.NODE_ADDRESS, port=API_PORT, flags=(), started=LEDGER.add)
    this = Node(api.url, api.authority, LEDGER)
    with step("starting the registry and containerd"):
        this.start_registry()
        this.start_containerd()
    with step("starting the controllers, the kubelet and kube-proxy"):
        this.start_controllers(api.tokens)
        this.start_kubelet()
        this.start_kube_proxy()
        shutil.copyfile(api.kubeconfig, KUBECONFIG)
        KUBECONFIG.chmod(0o600)
        wait_until(_is_ready, "the node's readiness", timeout=90)


def down() -> int:
    with step("ending the cluster"):
        leftovers.end(LEDGER)
    return 0


def status() -> int:
    """0 if it is up, 1 if not."""
    for process in LEDGER.read():
        say(f"{process.name}: {'runs as' if process.is_alive() else 'has ended, was'} {process.pid}")
    up = _is_up()
    say("up" if up else "down")
    return 0 if up else 1


def execute(command: list[str]) -> int:
    """Become that command, inside the namespace."""
    if not command:
        raise ClusterError("exec needs a command: cluster.py exec -- kubectl get pods")
    network.enter()
    programs = f"{parts.KUBERNETES.binaries()}:{parts.HELM.binaries()}"
    os.environ |= {"KUBECONFIG": str(KUBECONFIG), "PATH": f"{programs}:{os.environ['PATH']}"}
    try:
        os.execvp(command[0], command)
    except FileNotFoundError:
        raise ClusterError(f"{command[0]}: no such command") from None


def _is_up() -> bool:
    processes = LEDGER.read()
    return bool(processes) and all(p.is_alive() for p in processes) and KUBECONFIG.exists()


def _is_ready() -> bool:
    """Whether a Pod could start: the node takes Pods, and the default service account is there."""
    for process in LEDGER.read():
        if not process.is_alive():
            raise ClusterError(f"{process.name} ended; its log is in {node.LOGS}")
    return "True" in _kubectl(
        "get", "node", node.NAME, "--output=jsonpath={.status.conditions[?(@.type=='Ready')].status}"
    ) and bool(_kubectl("get", "serviceaccount", "default", "--output=name"))


def _kubectl(*words: str) -> str:
    command = [str(parts.KUBERNETES.program("kubectl")), f"--kubeconfig={KUBECONFIG}", *words]
    return subprocess.run(command, capture_output=True, text=True).stdout


def _check_machine() -> None:
    if os.geteuid() != 0:
        raise ClusterError("the cluster needs root: it makes a network namespace, cgroups and mounts")
    CLUSTER.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(CLUSTER).free
    if free < ROOM:
        raise ClusterError(f"{CLUSTER} has {free >> 20} MiB free, and the cluster needs {ROOM >> 20}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    actions = parser.add_subparsers(dest="action", required=True)
    for name, action in {"up": up, "down": down, "status": status}.items():
        actions.add_parser(name).set_defaults(run=lambda _, action=action: action())
    inside = actions.add_parser("exec")
    inside.add_argument("command", nargs=argparse.REMAINDER)
    inside.set_defaults(run=lambda args: execute(args.command[args.command[:1] == ["--"] :]))
    args = parser.parse_args()
    return int(args.run(args))


if __name__ == "__main__":
    run_main(main)
