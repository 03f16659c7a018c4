"""How much of a workload a perfect prefix cache would find: one that holds everything, at once and for ever. Pure.

What a job can share is the longest beginning that some earlier job's prompt and output had too, in whole blocks, and
at least one token less than the prompt, which every engine must compute. Works on recipes, so it costs as many steps as
a prompt has pieces. Pieces of different keys are taken to differ in their first token.
"""

from collections.abc import Iterable, Iterator

from .workload import Job, Piece


class Oracle:
    """Remembers every job that it has seen, as a tree of pieces."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size  # tokens
        self._longest: dict[tuple[int, int], int] = {}  # (node, key) -> tokens seen of that piece there
        self._nodes: dict[tuple[int, Piece], int] = {}  # (node, piece) -> where those go on that had all of it
        self._root = 0

    def cached(self, job: Job) -> int:
        """Tokens of the prompt that would be found; the job is remembered for those that follow."""
        shared = self._shared(job)
        self._remember(job)
        return min(shared, job.prompt_len - 1) // self._block_size * self._block_size

    def _shared(self, job: Job) -> int:
        node: int | None = self._root
        shared = 0
        for piece in job.prompt:
            if node is None:
                break
            known = self._longest.get((node, piece.key), 0)
            shared += min(known, piece.length)
            node = self._nodes.get((node, piece)) if known >= piece.length else None
        return shared

    def _remember(self, job: Job) -> None:
        node = self._root
        for piece in _computed(job):
            place = node, piece.key
            self._longest[place] = max(self._longest.get(place, 0), piece.length)
            node = self._nodes.setdefault((node, piece), len(self._nodes) + 1)


def _computed(job: Job) -> Iterator[Piece]:
    """All but the last token of all: nothing comes after it, so it is never computed."""
    yield from job.prompt
    if job.output_len > 1:
        yield job.output._replace(length=job.output_len - 1)


def oracle_tokens(jobs: Iterable[Job], block_size: int) -> list[int]:
    """Per job, what the perfect cache would find of its prompt."""
    oracle = Oracle(block_size)
    return [oracle.cached(job) for job in jobs]
