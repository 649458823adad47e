"""Regular expressions of foreign files, matched without backtracking, so that none takes exponential time.

Python's `re` tries one way through a pattern after the other, and `(a+)+$` has exponentially many. Here the set of all
positions that a part of the pattern can end at is carried from part to part, and a budget bounds the work.
"""

import re
from collections.abc import Collection
from functools import lru_cache
from re import _constants as ops  # pyright: ignore[reportAttributeAccessIssue]
from re import _parser as parser  # pyright: ignore[reportAttributeAccessIssue]
from typing import Any

from lemma.errors import RunError

MAX_STEPS = 1_000_000
"""Positions that matching one text may visit."""
CATEGORIES = {
    ops.CATEGORY_DIGIT: re.compile(r"\d"),
    ops.CATEGORY_NOT_DIGIT: re.compile(r"\D"),
    ops.CATEGORY_WORD: re.compile(r"\w"),
    ops.CATEGORY_NOT_WORD: re.compile(r"\W"),
    ops.CATEGORY_SPACE: re.compile(r"\s"),
    ops.CATEGORY_NOT_SPACE: re.compile(r"\S"),
}
CHARACTERS = (ops.LITERAL, ops.NOT_LITERAL, ops.ANY, ops.IN)
BEGINNINGS, ENDS = (ops.AT_BEGINNING, ops.AT_BEGINNING_STRING), (ops.AT_END, ops.AT_END_STRING)


def matches_to_end(pattern: str, text: str, starts: Collection[int] = (0,)) -> bool:
    r"""Return whether a regular expression matches a text from one of the offsets `starts` to its end.

    Supported: characters, `.`, classes, groups, alternatives, repetitions, `^` and `$`; others are a RunError.

    >>> matches_to_end(r"layers\.(0|1\d)\..*proj", "layers.12.q_proj"), matches_to_end("(a+)+b", "a" * 200)
    (True, False)
    """
    return len(text) in PatternMatcher(text).find_ends(_parse_pattern(pattern), set(starts))


@lru_cache(maxsize=4096)
def _parse_pattern(pattern: str) -> list[Any]:
    """Return a regular expression as a list of (operation, argument) of Python's parser, cached."""
    try:
        parsed = parser.parse(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise RunError(f"{pattern[:100]!r} is not a regular expression: {error}.") from None
    if parsed.state.flags & ~re.UNICODE:
        raise RunError(f"the regular expression {pattern[:100]!r} has flags, which are not supported.")
    return list(parsed)


class PatternMatcher:
    """Matches parsed patterns in one text by sets of positions."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.steps = 0

    def find_ends(self, parts: Any, starts: set[int]) -> set[int]:
        """Return all offsets at which parts of a pattern, matched one after the other from `starts`, can end."""
        for operation, argument in parts:
            starts = self._find_part_ends(operation, argument, starts)
        return starts

    def _find_part_ends(self, operation: Any, argument: Any, starts: set[int]) -> set[int]:
        """Return all offsets at which one operation of a pattern, matched from `starts`, can end."""
        self.steps += len(starts) + 1
        if self.steps > MAX_STEPS:
            raise RunError("a regular expression takes too much work to match. Name the modules one by one.")
        if operation in CHARACTERS:
            return {
                at + 1
                for at in starts
                if at < len(self.text) and _matches_character(operation, argument, self.text[at])
            }
        if operation is ops.SUBPATTERN and not argument[1] and not argument[2]:
            return self.find_ends(argument[3], starts)
        if operation is ops.BRANCH:
            return set[int]().union(*(self.find_ends(choice, starts) for choice in argument[1]))
        if operation in (ops.MAX_REPEAT, ops.MIN_REPEAT):
            least, most, part = argument
            return self._find_repeat_ends(least, most, part, starts)
        if operation is ops.AT and argument in BEGINNINGS:
            return starts & {0}
        if operation is ops.AT and argument in ENDS:
            return starts & {len(self.text)}
        raise RunError(
            f"a regular expression with {str(operation).lower()} is not supported: only characters, classes, groups, "
            "alternatives and repetitions are. Name the modules one by one."
        )

    def _find_repeat_ends(self, least: int, most: int, part: Any, starts: set[int]) -> set[int]:
        """Return all offsets at which `least` to `most` repetitions of a part can end."""
        rounds = len(self.text) + 1
        for _ in range(min(least, rounds)):
            starts = self.find_ends(part, starts)
        reached, latest = starts, starts
        for _ in range(min(most - least, rounds)):
            latest = self.find_ends(part, latest) - reached
            if not latest:
                break
            reached = reached | latest
        return reached


def _matches_character(operation: Any, argument: Any, character: str) -> bool:
    """Return whether an operation that matches one character (a literal, `.`, a class) matches this one."""
    if operation is ops.ANY:
        return character != "\n"
    if operation is ops.LITERAL:
        return ord(character) == argument
    if operation is ops.NOT_LITERAL:
        return ord(character) != argument
    negated = argument[0][0] is ops.NEGATE
    return negated != any(_in_class(kind, value, character) for kind, value in argument[negated:])


def _in_class(kind: Any, value: Any, character: str) -> bool:
    r"""Return whether a character is in an element of a class such as [a-z_\d]."""
    if kind is ops.RANGE:
        return value[0] <= ord(character) <= value[1]
    if kind is ops.CATEGORY:
        return bool(CATEGORIES[value].match(character))
    return ord(character) == value
