"""The little Markdown that sheets and answers are written in: headings, fenced blocks, and the lines between."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from lemma.errors import InputError

LARGEST_FILE = 2**20
SUFFIXES = (".toml", ".md", ".markdown")
FENCE = re.compile(r"\s*(```+|~~~+)\s*(\w*)")


@dataclass
class Section:
    """What stands under one heading: plain lines, and fenced blocks with the language they name."""

    heading: str
    lines: list[str] = field(default_factory=list)
    blocks: list[tuple[str, str]] = field(default_factory=list)


def read_text(path: Path) -> str:
    """Read a sheet or an answers file, if it is one and not too large."""
    if path.suffix.lower() not in SUFFIXES:
        raise InputError(f"{path}: expected a file that ends in {', '.join(SUFFIXES)}.")
    try:
        content = path.read_bytes()[: LARGEST_FILE + 1]
        if len(content) > LARGEST_FILE:
            raise InputError(f"{path}: has more than {LARGEST_FILE:,} bytes; that is no sheet and no answer to one.")
        return content.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = "there is no such file" if isinstance(error, FileNotFoundError) else f"cannot be read ({error})"
        raise InputError(f"{path}: {reason}.") from None


def sections(text: str) -> tuple[Section, list[Section]]:
    r"""Split a text at its headings: what stands under the title, and every section of the second level.

    >>> top, (first,) = sections("# Week 3\n## Q1\nHow many?\n```\nV*d\n```\n")
    >>> top.heading, first.heading, first.lines, first.blocks
    ('Week 3', 'Q1', ['How many?'], [('', 'V*d')])
    """
    found = [Section("")]
    for line in _pieces(text):
        if isinstance(line, tuple):
            found[-1].blocks.append(line)
        elif line.startswith("## "):
            found.append(Section(line[3:].strip()))
        elif line.startswith("# ") and len(found) == 1 and not found[0].heading:
            found[0].heading = line[2:].strip()
        else:
            found[-1].lines.append(line)
    return found[0], found[1:]


def _pieces(text: str) -> Iterator[str | tuple[str, str]]:
    """Lines, and fenced blocks with their language; one that is not closed ends with the text."""
    lines = iter(text.splitlines())
    for line in lines:
        opening = FENCE.fullmatch(line.rstrip())
        if opening is None:
            yield line
            continue
        block: list[str] = []
        for inner in lines:
            if inner.strip() == opening[1]:
                break
            block.append(inner)
        yield opening[2], "\n".join(block)
