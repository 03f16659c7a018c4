"""`make audit` is green only where somebody was asked who knows: a program in pip-audit's place answers as it does."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
AUDIT = ROOT / "requirements" / "audit.py"

VULNERABLE = {"name": "jinja2", "version": "3.1.2", "vulns": [{"id": "PYSEC-1", "fix_versions": ["3.1.3"]}]}
BLANK = {"name": "jinja2", "version": "3.1.2", "vulns": []}
UNKNOWN = {"name": "jinja2", "skip_reason": "Dependency not found on PyPI and could not be audited: jinja2 (3.1.2)"}
SOUND = {"name": "idna", "version": "3.20", "vulns": []}
UNMENDED = {"name": "idna", "version": "3.20", "vulns": [{"id": "PYSEC-2", "fix_versions": []}]}
SILENT = "requests.exceptions.ConnectionError: nobody there"


def stand_in(folder: Path, known: Any, locked: Any) -> Path:
    """What it says of the version whose faults everybody knows, and of the locks: a dependency, or no JSON at all."""
    program = folder / "pip-audit"
    program.write_text(f"""#!{sys.executable}
import json, sys
said = {locked!r} if "--require-hashes" in sys.argv else {known!r}
if isinstance(said, str):
    sys.exit(said)
print(json.dumps({{"dependencies": [said], "fixes": []}}))
sys.exit(bool(said.get("vulns")))
""")
    program.chmod(0o755)
    return program


@pytest.mark.parametrize(
    ("known", "locked", "code", "said"),
    [
        pytest.param(VULNERABLE, SOUND, 0, "no known fault in 1 versions of 1 lock files", id="sound"),
        pytest.param(VULNERABLE, UNMENDED, 1, "idna 3.20: PYSEC-2, mended in no version yet", id="a fault"),
        pytest.param(VULNERABLE, VULNERABLE, 1, "jinja2 3.1.2: PYSEC-1, mended in 3.1.3", id="a fault that is mended"),
        pytest.param(
            BLANK, SOUND, 2, "no fault of jinja2==3.1.2 is known there", id="an index that tells of no faults"
        ),
        pytest.param(UNKNOWN, SOUND, 2, "jinja2: Dependency not found on PyPI", id="an index without the answers"),
        pytest.param(VULNERABLE, UNKNOWN, 2, "jinja2: Dependency not found on PyPI", id="one package is not known"),
        pytest.param(SILENT, SOUND, 2, "ConnectionError: nobody there", id="no network"),
        pytest.param(VULNERABLE, SILENT, 2, "ConnectionError: nobody there", id="no network any more"),
    ],
)
def test_an_audit(tmp_path: Path, known: Any, locked: Any, code: int, said: str) -> None:
    lock = tmp_path / "lock.txt"
    lock.write_text("idna==3.20\n")
    command = [sys.executable, str(AUDIT), str(stand_in(tmp_path, known, locked)), str(lock)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert (done.returncode, said in done.stdout + done.stderr) == (code, True), done.stdout + done.stderr
