"""Everything the operator raises on purpose.

OperatorError
├── SpecError      the user's object is wrong; only an edit can fix it
├── Refused        the API server will not take an object that the spec leads to; only an edit can fix it
│   └── Missing    what was to be changed is not there
├── Ending         the namespace is being deleted: nothing more is to be made there
├── Conflict       someone else wrote first; read again and decide again
├── NotLeader      another operator leads: this one writes nothing
└── Unavailable    something we depend on did not answer; trying again may help
"""

from pinrail_contract.errors import PinrailError


class OperatorError(PinrailError):
    """Base of the errors above; anything else that escapes is a bug."""


class SpecError(OperatorError):
    """A field holds a value that cannot be honoured.

    Args:
        field: JSON path inside the object, e.g. "spec.scaling.maxReplicas".
        problem: What was seen and what is wanted.
    """

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field


class Refused(OperatorError):
    """The API server's own words, with the object they are about."""


class Missing(Refused):
    """What was to be changed is gone, or never was."""


class Ending(OperatorError):
    """The namespace is being deleted; what it holds goes with it."""


class Conflict(OperatorError):
    """A write was based on a version that is no longer the newest."""


class NotLeader(OperatorError):
    """Raised before a write, by a process that does not hold the Lease."""


class Unavailable(OperatorError):
    """A dependency did not answer; `retry_after` is in seconds."""

    def __init__(self, what: str, *, retry_after: float = 10.0) -> None:
        super().__init__(f"{what} is unavailable")
        self.retry_after = retry_after
