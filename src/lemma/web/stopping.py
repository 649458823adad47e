"""Text that ends before the first of some strings, told piece by piece without ever telling half of one."""

from collections.abc import Sequence


class Ending:
    """Lets text pass until a stop string comes; what may yet become one waits.

    >>> ending = Ending(["###"])
    >>> [ending.add(piece) for piece in ("a#", "#b", "c##", "# d")], ending.found, ending.rest()
    (['a', '##b', 'c', ''], True, '')
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops, self._held, self.found = tuple(stops), "", False

    def add(self, piece: str) -> str:
        """Take a piece and return what can be told by now; nothing after the stop."""
        if self.found:
            return ""
        text = self._held + piece
        places = [place for place in map(text.find, self._stops) if place >= 0]
        self.found = bool(places)
        told = min(places) if places else len(text) - self._beginning(text)
        self._held = "" if places else text[told:]
        return text[:told]

    def rest(self) -> str:
        """Return what was held back for nothing."""
        return self._held

    def _beginning(self, text: str) -> int:
        """How many characters at the end are the beginning of a stop string."""
        longest = max((len(stop) for stop in self._stops), default=1) - 1
        lengths = range(min(longest, len(text)), 0, -1)
        return next((size for size in lengths if any(stop.startswith(text[-size:]) for stop in self._stops)), 0)
