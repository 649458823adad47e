"""What an index knows of one picture: enough to see that it has changed, moved or could not be read."""

import json
from collections.abc import Sequence
from typing import NamedTuple

from lemma.errors import RunError

GOOD = b', ""]'
"""How the line of a picture ends that is not broken."""


class Entry(NamedTuple):
    """A picture by its name, as it was when it was read."""

    name: str
    """Its path within the folder, with / between folders."""
    size: int
    time: int
    """When it was last changed, in nanoseconds."""
    sum: str = ""
    """The SHA-256 of the file; empty before it is read."""
    broken: str = ""
    """Why it could not be read; a broken picture owns no vector."""

    def same_file(self, other: "Entry") -> bool:
        """Whether size and time say that nothing has changed."""
        return (self.size, self.time) == (other.size, other.time)

    def found_as(self, listed: "Entry") -> "Entry":
        """The same picture under the name and time that it has now."""
        return self._replace(name=listed.name, time=listed.time)

    def line(self) -> str:
        """The entry as a line of JSON.

        >>> Entry("a.png", 3, 5, "ab").line()
        '["a.png", 3, 5, "ab", ""]\\n'
        """
        return json.dumps(list(self)) + "\n"


def read_entries_of(lines: Sequence[bytes], where: str) -> tuple[Entry, ...]:
    """Read such lines; damage is a RunError."""
    try:
        found = tuple(Entry(*words) for words in json.loads(b"[" + b",".join(lines) + b"]"))
    except (ValueError, TypeError):
        raise RunError(f"{where} is damaged. Remove its folder: the index is made again.") from None
    if len(found) != len(lines) or any(type(entry.name) is not str or type(entry.size) is not int for entry in found):
        raise RunError(f"{where} is damaged: an entry is none. Remove its folder: the index is made again.")
    return found
