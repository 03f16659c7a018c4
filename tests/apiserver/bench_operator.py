"""What the operator costs while it does nothing: the time of its imports, and the memory that it holds.

    make bench-operator

Prints one line for each, beside its aim. Nothing fails above an aim: machines differ.
"""

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "e2e" / "cluster"), str(ROOT / "tests" / "operator"), str(Path(__file__).parent)]

from control_plane import ControlPlane  # noqa: E402
from kubectl import Kube  # noqa: E402
from operator_process import Process, free_port, until  # noqa: E402

RUNS = 5
SETTLED = 10.0  # seconds after it leads
IMPORTS = "import resource, pinrail_operator.run; print(sum(resource.getrusage(resource.RUSAGE_SELF)[:2]))"


def import_times() -> tuple[float, float]:
    """Medians of wall and processor seconds of a fresh process that imports all of the operator."""
    walls, processors = [], []
    for _ in range(RUNS):
        began = time.perf_counter()
        done = subprocess.run([sys.executable, "-c", IMPORTS], check=True, capture_output=True, text=True)
        walls.append(time.perf_counter() - began)
        processors.append(float(done.stdout))
    return statistics.median(walls), statistics.median(processors)


def idle_memory(folder: Path) -> float:
    """MiB that an operator holds which leads, and has no service."""
    with ControlPlane.start(folder) as api:
        kube = Kube(api.kubeconfig)
        kube("apply", "--server-side", "-f", str(ROOT / "crds"))
        kube.wait_for_crds()
        operator = Process(api.kubeconfig, "default", folder / "operator.log", free_port())
        try:
            until(operator.leads, "leading")
            time.sleep(SETTLED)
            return operator.resident()
        finally:
            operator.stop()


def main() -> None:
    wall, processor = import_times()
    print(f"imports       {wall:.2f} s, {processor:.2f} s of a processor (median of {RUNS}; aim: under 1 s)")
    with tempfile.TemporaryDirectory() as folder:
        print(f"idle memory   {idle_memory(Path(folder)):.0f} MiB (no service; aim: under 120 MiB)")


if __name__ == "__main__":
    main()
