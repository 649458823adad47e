"""The fenced blocks of a page, and the commands in them."""

import re
import shlex
from dataclasses import dataclass

FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
RUNS = {"python", "console"}


@dataclass(frozen=True)
class Block:
    """Fenced block of a page: its language, its body and the offsets of the body."""

    kind: str
    body: str
    start: int
    stop: int

    @property
    def opens(self) -> int:
        """Return the offset at which the opening fence starts."""
        return self.start - len(f"```{self.kind}\n")

    @property
    def closes(self) -> int:
        """Return the offset at which the closing fence ends."""
        return self.stop + len("```")


def read_blocks(text: str) -> list[Block]:
    """The blocks of a page that are run, or that show what was printed.

    >>> [block.kind for block in read_blocks("```python\\n1\\n```\\n```toml\\na=1\\n```\\n```text\\n1\\n```\\n")]
    ['python', 'text']
    """
    blocks = [Block(match[1], match[2], match.start(2), match.end(2)) for match in FENCE.finditer(text)]
    return [block for block in blocks if block.kind in {*RUNS, "text"}]


def commands(body: str) -> list[list[str]]:
    """The words of each `$ lemma …` line.

    >>> commands("$ lemma count rnn  # a remark\\n$ make demo\\n")
    [['lemma', 'count', 'rnn']]
    """
    lines = [line[2:] for line in body.splitlines() if line.startswith("$ lemma ")]
    return [shlex.split(line, comments=True) for line in lines]


def page_commands(text: str) -> list[list[str]]:
    """The words of each `$ lemma …` line of a page."""
    return [words for block in read_blocks(text) if block.kind == "console" for words in commands(block.body)]
