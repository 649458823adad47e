"""Where a text may be cut in two without changing its tokens."""

import re
from collections.abc import Callable

_TAIL = 4096
# GPT-2's rule joins a space to the word after it and treats runs of white space together, but it never looks back:
# before a single space or newline between two characters that are no white space it starts anew.
_BYTE_PAIR_CUT = re.compile(r"(?<=\S)[\n ](?=\S)")


def _cut_characters(text: str) -> int:
    return len(text)


def _cut_words(text: str) -> int:
    return max(text.rfind("\n"), text.rfind(" ")) + 1


def _cut_byte_pairs(text: str) -> int:
    for start in (max(len(text) - _TAIL, 0), 0):  # nearly always there is a place near the end
        places = [match.start() for match in _BYTE_PAIR_CUT.finditer(text, start)]
        if places:
            return places[-1]
    return 0


_CUTS: dict[str, Callable[[str], int]] = {
    "characters": _cut_characters,
    "words": _cut_words,
    "byte-pairs": _cut_byte_pairs,
}


def last_cut(text: str, kind: str) -> int:
    """The last place where cutting leaves the tokens of this kind alone; 0 if there is none.

    >>> [last_cut("to be or not", kind) for kind in ("characters", "words", "byte-pairs")]
    [12, 9, 8]
    """
    return _CUTS[kind](text)
