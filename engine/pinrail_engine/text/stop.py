"""Stop strings while text streams. Pure.

Held back is only the longest suffix of the text that is a proper prefix of some stop string, usually nothing. The match
that ends first wins; of those that end at the same character, the longest. Both hold however the text was cut.
"""

from collections.abc import Sequence


class StopMatcher:
    """`push` returns text that is safe to send; once `matched` is set the answer is over.

    Args:
        stops: Stop strings, none empty. The match itself is never returned.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self.matched: str | None = None
        self._held = ""
        self._automata = [_Automaton(stop) for stop in sorted(stops, key=len, reverse=True)]

    def push(self, text: str, *, may_stop: bool = True) -> str:
        """Where `may_stop` is False, no match ends in this text; one that begins in it may still end in a later one."""
        text = self._held + text
        for end in range(len(self._held) + 1, len(text) + 1):
            stop = self._step(text[end - 1])
            if stop is not None and may_stop:
                self.matched, self._held = stop, ""
                return text[: end - len(stop)]
        keep = len(text) - max((a.length for a in self._automata), default=0)
        self._held = text[keep:]
        return text[:keep]

    def flush(self) -> str:
        """The text that was held back for a match that never came."""
        text, self._held = self._held, ""
        return text

    def _step(self, char: str) -> str | None:
        whole = [a.stop for a in self._automata if a.step(char)]
        return whole[0] if whole else None


class _Automaton:
    """Knuth-Morris-Pratt: `length` is that of the longest suffix of the text which is a proper prefix of `stop`."""

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self.length = 0
        self._shorter = [0, 0]  # for each prefix length: the next shorter prefix that is also its suffix
        for char in stop[1:]:
            self._shorter.append(self._extend(self._shorter[-1], char))

    def step(self, char: str) -> bool:
        """True when `char` completes the stop string."""
        self.length = self._extend(self.length, char)
        is_whole = self.length == len(self.stop)
        if is_whole:
            self.length = self._shorter[self.length]
        return is_whole

    def _extend(self, length: int, char: str) -> int:
        while length and self.stop[length] != char:
            length = self._shorter[length]
        return length + 1 if self.stop[length] == char else 0
