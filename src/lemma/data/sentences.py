"""Plain English text cut into sentences and words, as in the treebanks of Universal Dependencies."""

import re

MAX_WORDS = 257  # of a text: one more than a classifier reads, so that a longer text is recognised
MAX_SENTENCE = 100  # words; a longer sentence is cut, since the scores of a parser grow with the square
SENTENCE_ENDS = frozenset({".", "!", "?", "...", "…"})
AFTER_END = frozenset({'"', "'", "”", "’", ")", "]", "}", "»", "''"})
CLITIC = re.compile(r"(?i)(?<=\w)(n['’]t|['’](?:s|re|ve|ll|d|m))$")
OPENING = re.compile(r"^([\"'“‘¿¡(\[{<«]+)(?=.)")
CLOSING = re.compile(r"(?<=[^.…])(\.\.\.|…|[.,;:!?\"'”’)\]}>»%])$")
ABBREVIATION = re.compile(r"(?i)^(?:[a-z]\.)+$|^(?:mr|mrs|ms|dr|prof|st|vs|etc|inc|co|jr|sr)\.$")


def split_sentences(text: str) -> list[list[str]]:
    """Split the first `MAX_WORDS` words of a text into sentences, at line breaks and after full stops.

    >>> split_sentences('"Is it?" Yes! So be it')
    [['"', 'Is', 'it', '?', '"'], ['Yes', '!'], ['So', 'be', 'it']]
    """
    sentences: list[list[str]] = []
    remaining = MAX_WORDS
    for line in text.splitlines():
        words = split_words(line)[:remaining]
        remaining -= len(words)
        start = 0
        for end, word in enumerate(words, start=1):
            following = words[end] if end < len(words) else ""
            is_closing = word in AFTER_END and end > 1 and words[end - 2] in SENTENCE_ENDS
            is_end = (word in SENTENCE_ENDS or is_closing) and following not in SENTENCE_ENDS | AFTER_END
            if is_end or end == len(words) or end - start == MAX_SENTENCE:
                sentences.append(words[start:end])
                start = end
    return sentences


def split_words(line: str) -> list[str]:
    """Split a sentence into words nearly as the English treebanks do; words that are split already stay.

    >>> split_words("I don't know (yet), Dr. Who.")
    ['I', 'do', "n't", 'know', '(', 'yet', ')', ',', 'Dr.', 'Who', '.']
    """
    words: list[str] = []
    for chunk in line.split():
        after: list[str] = []
        if opening := OPENING.match(chunk):
            words += opening[1]
            chunk = chunk[opening.end() :]
        while not ABBREVIATION.match(chunk) and not CLITIC.search(chunk) and (closing := CLOSING.search(chunk)):
            after.insert(0, closing[1])
            chunk = chunk[: closing.start()]
        if clitic := CLITIC.search(chunk):
            after.insert(0, clitic[1])
            chunk = chunk[: clitic.start()]
        words += [*([chunk] if chunk else []), *after]
    return words
