"""The flags that `pinrail bench cpu` and `pinrail bench http` share."""

import argparse
from dataclasses import dataclass
from typing import Self

from .fixed import Fixed
from .options import integer

EPILOG = "Other flags are those of `pinrail serve`."


@dataclass(frozen=True, slots=True)
class FixedOptions:
    workloads: tuple[Fixed, ...]  # at least one, in their own order
    runs: int  # of each
    json: bool

    @classmethod
    def of(cls, args: argparse.Namespace) -> Self:
        chosen = tuple(w for w in Fixed if not args.workload or w in args.workload)
        return cls(chosen, args.runs, args.json)


def add_fixed_flags(parser: argparse.ArgumentParser) -> None:
    runs = "how often each is measured, with other tokens each time; medians are told"
    parser.add_argument("--runs", type=integer(1), default=5, help=runs)
    which = "only this one; may be given several times"
    parser.add_argument("--workload", action="append", choices=list(Fixed), type=Fixed, help=which)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
