"""What a subcommand is. Packages register theirs as entry points of the group `pinrail.commands`.

Modules that hold one are named `*_command` and import what is heavy inside `run`, so that `pinrail --help` is quick.
"""

from collections.abc import Callable
from dataclasses import dataclass

GROUP = "pinrail.commands"


@dataclass(frozen=True, slots=True)
class Command:
    help: str  # one line
    run: Callable[[list[str]], int]
    """Takes the words after the subcommand, returns the exit code."""
