"""Everything the contract raises on purpose.

PinrailError
├── ManifestError   a manifest, or the document it stands in, is wrong; only an edit can fix it
├── ModelError      the files on disk are not those that the manifest names
├── SourceError     the place that files come from did not answer, or answered with other bytes
├── CacheError      a cache of fetched models cannot be written, or has no room
└── SampleError     a metrics page lacks a figure, or holds one that cannot be
"""


class PinrailError(Exception):
    """Base of the errors above; the command line prints it as one sentence and exits with 1."""


class ManifestError(PinrailError):
    """A field of a manifest holds a value that cannot be honoured.

    Args:
        field: JSON path inside the object, e.g. "spec.files[2].sha256".
        problem: What was seen and what is wanted.
    """

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field


class ModelError(PinrailError):
    """The folder's content differs from the manifest; the message names every file."""


class SourceError(PinrailError):
    """A source did not deliver; trying again may help."""


class CacheError(PinrailError):
    """A cache of fetched models cannot take a model in; a person has to give it room, or the right to write."""


class SampleError(PinrailError):
    """A metrics page cannot be trusted as a load sample."""
