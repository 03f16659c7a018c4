"""Asks for known faults of everything that the lock files name; `make audit` runs it.

    audit.py PIP_AUDIT LOCK...

| it found                                                          | exit code |
|-------------------------------------------------------------------|-----------|
| no fault                                                          | 0         |
| a fault                                                           | 1         |
| nobody to ask, or one who knows nothing: nothing was audited      | 2         |

An index may stand in for another and know its packages without their faults: each would pass. So first it is asked for
one whose faults everybody knows.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

KNOWN = "jinja2==3.1.2"  # CVE-2024-22195 and others
CLEAN, FAULTY, NOT_AUDITED = 0, 1, 2
TIMEOUT = 600  # seconds for all locks: each name is asked for once

Report = list[dict[str, Any]]


class NotAuditedError(Exception):
    """Nothing is known of what was asked for."""


def audited(program: str, *words: str) -> Report:
    """What pip-audit says of each dependency; raises NotAuditedError where it does not, or not of every one."""
    command = [program, "--disable-pip", "--progress-spinner=off", "--format=json", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT)
    try:
        found: Report = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError) as e:
        raise NotAuditedError((done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]) from e
    skipped = [f"{d['name']}: {d['skip_reason']}" for d in found if "skip_reason" in d]
    if skipped:
        raise NotAuditedError("; ".join(skipped[:3]) + (f", and {len(skipped) - 3} more" if skipped[3:] else ""))
    return found


def require_knowledge(program: str) -> None:
    """Raises NotAuditedError where the faults of KNOWN are not known."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write(KNOWN + "\n")
        file.flush()
        if not any(d["vulns"] for d in audited(program, "--no-deps", "--requirement", file.name)):
            raise NotAuditedError(f"no fault of {KNOWN} is known there")


def faults(report: Report) -> list[str]:
    """One line for each, with the versions that mend it."""
    return [
        f"{d['name']} {d['version']}: {v['id']}, mended in {', '.join(v['fix_versions']) or 'no version yet'}"
        for d in report
        for v in d["vulns"]
    ]


def main(program: str, *locks: str) -> int:
    try:
        require_knowledge(program)
        report = audited(program, "--require-hashes", *(f"--requirement={lock}" for lock in locks))
    except (NotAuditedError, subprocess.TimeoutExpired) as e:
        print(f"nothing was audited: {e}; next: run it where the package index tells of faults", file=sys.stderr)
        return NOT_AUDITED
    found = faults(report)
    print("\n".join(found) or f"no known fault in {len(report)} versions of {len(locks)} lock files")
    return FAULTY if found else CLEAN


if __name__ == "__main__":
    if len(sys.argv) < 3 or not Path(sys.argv[1]).exists():
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
