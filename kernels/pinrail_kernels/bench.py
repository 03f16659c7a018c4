"""`python -m pinrail_kernels.bench`: whether the kernels are right on the device that is here, and how fast.

First every operation against its definition, and its bits alone against its bits in a batch; then each one's share of
what the device's memory and multipliers can do, measured on the same device. Exit code 1 where something is wrong, 2
where there is no GPU. `--interpret` does the first part, with small shapes, in Triton's interpreter on the CPU.
"""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .bench_correctness import Check
    from .bench_speed import Speed


def main(argv: Sequence[str] | None = None) -> int:
    args = _parser().parse_args(argv)
    if args.interpret:
        os.environ["TRITON_INTERPRET"] = "1"  # read when triton is imported, so nothing below was imported above
    import torch

    from . import dispatch

    if not args.interpret and not (torch.cuda.is_available() and dispatch.INSTALLED):
        wanted = "a CUDA GPU and Triton, or --interpret for correctness on this CPU"
        print(
            f"bench: torch.cuda is {torch.cuda.is_available()}, Triton {dispatch.INSTALLED}; want {wanted}",
            file=sys.stderr,
        )
        return 2
    report = _run(interpret=args.interpret, quick=args.quick)
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(report, file, indent=1)
    return 0 if all(check["is_right"] for check in report["correctness"]) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m pinrail_kernels.bench", description=__doc__)
    parser.add_argument("--json", metavar="PATH", help="write all figures there")
    parser.add_argument("--quick", action="store_true", help="fewer shapes")
    parser.add_argument("--interpret", action="store_true", help="correctness alone, on the CPU")
    return parser


def _run(*, interpret: bool, quick: bool) -> dict[str, Any]:
    import torch

    from .bench_correctness import checks
    from .dispatch import triton

    place = torch.device("cpu" if interpret else "cuda")
    name = "Triton's interpreter" if interpret else torch.cuda.get_device_name()
    report: dict[str, Any] = {"device": name, "torch": torch.__version__, "triton": triton.__version__}
    print(f"{name}, torch {torch.__version__}, triton {triton.__version__}")
    report["correctness"] = []
    for check in checks(place, small=interpret, quick=quick):
        print(_line_of_check(check), flush=True)
        report["correctness"].append(asdict(check) | {"is_right": check.is_right})
    if not interpret:
        report |= _speeds(quick)
    return report


def _speeds(quick: bool) -> dict[str, Any]:
    from .bench_speed import measure_peaks, speeds

    peaks = measure_peaks()
    print(f"peaks: {peaks.bandwidth / 1e9:.0f} GB/s copied, {peaks.operations / 1e12:.0f} TFLOP/s bfloat16")
    rows = []
    for speed in speeds(peaks, quick=quick):
        print(_line_of_speed(speed), flush=True)
        rows.append(asdict(speed))
    return {"peaks": asdict(peaks), "speeds": rows}


def _line_of_check(check: "Check") -> str:
    verdict = "right" if check.is_right else "WRONG"
    return f"{verdict}  {check.name:<72} error {check.error:.1e} of {check.tolerance:.1e}"


def _line_of_speed(speed: "Speed") -> str:
    beside = "" if speed.torch_seconds is None else f"  torch {speed.torch_seconds * 1e6:9.1f} us"
    shares = f"{speed.bandwidth_share:6.1%} of bandwidth {speed.operations_share:6.1%} of operations"
    return f"{speed.name:<60} {speed.seconds * 1e6:9.1f} us {shares}{beside}"


if __name__ == "__main__":
    sys.exit(main())
