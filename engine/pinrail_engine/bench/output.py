"""How runs leave the program: a table or JSON on stdout, and a picture where asked for."""

import json
from collections.abc import Sequence

from .options import Options
from .records import Run
from .report import figures
from .table import render
from .workload import Workload


def show(workload: Workload, runs: Sequence[Run], options: Options) -> None:
    """Args: runs: at least one; the first is what the others are compared with."""
    told = [figures(run, options.slo) for run in runs]
    if options.json:
        about = {"name": workload.name, "requests": len(workload.jobs), "cut": workload.cut}
        print(json.dumps({"workload": about, "runs": [f.to_json() for f in told]}, ensure_ascii=False))
    else:
        print(f"{_about(workload)}\n\n{render(told, options.slo)}")
    if options.plot is not None:
        from .plot import plot

        plot(runs, _about(workload), options.plot)


def _about(workload: Workload) -> str:
    tokens_in, tokens_out = sum(j.prompt_len for j in workload.jobs), sum(j.output_len for j in workload.jobs)
    cut = f", {workload.cut:,} cut to fit" if workload.cut else ""
    return f"{workload.name}: {len(workload.jobs):,} requests, {tokens_in:,} tokens in, {tokens_out:,} out{cut}"
