"""A line of plain text into the words of a treebank: punctuation and clitics stand for themselves."""

import re

CLITIC = re.compile(r"(?i)(?<=\w)(n['’]t|['’](?:s|re|ve|ll|d|m))$")
OPENING = re.compile(r"^([\"'“‘¿¡(\[{<«]+)(?=.)")
CLOSING = re.compile(r"(?<=[^.…])(\.\.\.|…|[.,;:!?\"'”’)\]}>»%])$")
ABBREVIATION = re.compile(r"(?i)^(?:[a-z]\.)+$|^(?:mr|mrs|ms|dr|prof|st|vs|etc|inc|co|jr|sr)\.$")


def split_sentence(line: str) -> list[str]:
    """Cut a sentence into words as UD's English treebanks do, nearly: what is cut already stays as it is.

    >>> split_sentence("I don't know (yet), Dr. Who.")
    ['I', 'do', "n't", 'know', '(', 'yet', ')', ',', 'Dr.', 'Who', '.']
    """
    return [word for chunk in line.split() for word in _cut(chunk)]


def _cut(chunk: str) -> list[str]:
    before: list[str] = []
    after: list[str] = []
    if opening := OPENING.match(chunk):
        before, chunk = list(opening[1]), chunk[opening.end() :]
    while not ABBREVIATION.match(chunk) and not CLITIC.search(chunk) and (closing := CLOSING.search(chunk)):
        after.insert(0, closing[1])
        chunk = chunk[: closing.start()]
    if clitic := CLITIC.search(chunk):
        after.insert(0, clitic[1])
        chunk = chunk[: clitic.start()]
    return [*before, *([chunk] if chunk else []), *after]
