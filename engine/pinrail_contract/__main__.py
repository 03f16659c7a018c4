"""The `pinrail` command: finds the subcommands that the installed packages offer, and runs one.

An error of ours is one sentence on stderr and exit code 1; a traceback is a bug.
"""

import os
import signal
import sys
from importlib.metadata import EntryPoint, entry_points

from .command import GROUP, Command
from .errors import PinrailError
from .termination import ExitCode


def main(argv: list[str] | None = None) -> int:
    words = sys.argv[1:] if argv is None else argv
    _heed_signals()
    offered = {e.name: e for e in entry_points(group=GROUP)}
    if not words or words[0] in ("-h", "--help"):
        print(_usage(offered))
        return ExitCode.OK
    if words[0] not in offered:
        print(f"pinrail: no command {words[0]!r}; there are {', '.join(sorted(offered))}", file=sys.stderr)
        return ExitCode.USAGE
    try:
        return _load(offered[words[0]]).run(words[1:])
    except PinrailError as e:
        print(f"pinrail {words[0]}: {e}", file=sys.stderr)
        return ExitCode.FAILED
    except OSError as e:
        if e.filename is None:
            raise
        print(f"pinrail {words[0]}: {e.filename}: {e.strerror}", file=sys.stderr)
        return ExitCode.FAILED
    except KeyboardInterrupt:
        return 130


def _heed_signals() -> None:
    """The first process of a container ignores what it has no handler for: one that loads a model would not end."""
    if os.getpid() == 1:
        signal.signal(signal.SIGTERM, lambda *_: os._exit(128 + signal.SIGTERM))


_OF_OPERATOR = ("up", "operator", "status", "explain", "diff", "history", "rollback")
_EXTRAS = {"import": "tools", **dict.fromkeys(_OF_OPERATOR, "operator")}
"""What a command's package is installed with, other than `cpu`."""


def _load(entry: EntryPoint) -> Command:
    try:
        command = entry.load()
    except ModuleNotFoundError as e:
        extra = _EXTRAS.get(entry.name, "cpu")
        raise PinrailError(f"needs {e.name}, which is not installed here: pip install 'pinrail[{extra}]'") from e
    assert isinstance(command, Command)
    return command


def _usage(offered: dict[str, EntryPoint]) -> str:
    lines = ["usage: pinrail COMMAND …", "", "Pinned LLM inference: what a manifest names is what runs.", ""]
    for name in sorted(offered):
        try:
            lines.append(f"  {name:<10} {_load(offered[name]).help}")
        except PinrailError:
            continue  # its package is not in this image
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
