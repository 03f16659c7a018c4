"""What workloads and measurements raise on purpose.

EngineError
└── BenchError       a workload, a server or an option cannot be used; the message says which and why
    └── TraceError   a line of a trace file is not what its format asks for
"""

from ..errors import EngineError


class BenchError(EngineError):
    """One sentence for whoever runs the benchmark."""


class TraceError(BenchError):
    """A field of a trace file holds a value that cannot be honoured.

    Args:
        file: Path, as the user gave it.
        line: From 1.
        field: Column or key; '' where the line as a whole is meant.
        seen: The value found there.
        wanted: What would be right, in words.
    """

    def __init__(self, file: str, line: int, field: str, seen: object, wanted: str) -> None:
        shown = repr(seen)
        place = f"{file}:{line}: {field}: " if field else f"{file}:{line}: "
        super().__init__(f"{place}got {shown if len(shown) < 200 else shown[:200] + '…'}, want {wanted}")
        self.line, self.field = line, field
