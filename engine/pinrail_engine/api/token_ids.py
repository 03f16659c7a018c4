"""Token ids that a client names. Pure."""

from collections.abc import Iterable

from .errors import MAX_LISTED, BadRequest


def check_ids(ids: Iterable[int], field: str, vocab_size: int) -> None:
    """Raises BadRequest with the ids that are no tokens: one outside the vocabulary would end the engine."""
    wrong = [i for i in ids if not 0 <= i < vocab_size]
    if wrong:
        named = ", ".join(str(i)[:20] for i in wrong[:MAX_LISTED])
        more = f" and {len(wrong) - MAX_LISTED} more" if len(wrong) > MAX_LISTED else ""
        raise BadRequest(f"{field}: got token id {named}{more}, want 0 to {vocab_size - 1}", param=field)
