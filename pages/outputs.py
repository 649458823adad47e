"""What a page shows, against what its blocks print; and the outputs written into a page."""

import contextlib
import re
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pages import PageError
from pages.blocks import RUNS, Block, read_blocks
from pages.running import run_block


@dataclass(frozen=True)
class PageOutput:
    """A block that shows output, the block before it that was run (if there is one), and what that printed."""

    block: Block
    code: str
    printed: str


def pattern(line: str) -> re.Pattern[str]:
    """A line as it may be printed: spaces do not count, and … stands for anything."""
    return re.compile(".*".join(re.escape(" ".join(part.split())) for part in line.split("…")).replace(r"\ ", r"\s*"))


def differences(documented: str, printed: str) -> list[str]:
    """The lines that a page shows and that are not printed.

    >>> differences("a  5\\nb … 7\\n", "a 5\\nb 6 and 8\\n")
    ['b … 7']
    """
    printed_lines = [" ".join(line.split()) for line in printed.splitlines()]
    return [line for line in documented.splitlines() if not any(map(pattern(line).fullmatch, printed_lines))]


def outputs(blocks: Iterable[Block], page_name: str, in_subprocess: bool = False) -> Iterator[PageOutput]:
    """Run a page's blocks in order, and pair each `text` block with what the block before it printed."""
    names: dict[str, Any] = {}
    code, printed = "", ""
    for block in blocks:
        if block.kind in RUNS:
            code, printed = block.body, run_block(block, page_name, names, in_subprocess)
        else:
            yield PageOutput(block, code, printed)


def require(output: PageOutput, page_name: str) -> None:
    """Raise an error if the output in the page differs from the printed one."""
    if missing := differences(output.block.body, output.printed):
        raise PageError(f"{page_name} shows {missing}, which is not printed:\n{output.printed}")


def check_page(path: Path) -> None:
    """Run a page as it stands, in a folder of its own; what it shows must be what is printed."""
    blocks = read_blocks(path.read_text(encoding="utf-8"))
    with temporary_working_directory():
        for output in outputs(blocks, path.name):
            if not output.block.body.strip():
                raise PageError(f"{path.name} has an empty output. To fill it in: python -m pages write {path.name}")
            require(output, path.name)


def write_page(path: Path) -> None:
    """Run a page and put into each `text` block what the block before it prints; blocks with … are only checked."""
    text = path.read_text(encoding="utf-8")
    with temporary_working_directory():
        page_outputs = list(outputs(read_blocks(text), path.name))
    for output in reversed(page_outputs):
        if "…" in output.block.body and not differences(output.block.body, output.printed):
            continue
        text = text[: output.block.start] + tidy(output.printed) + text[output.block.stop :]
    path.write_text(text, encoding="utf-8")


def tidy(printed: str) -> str:
    """Output without blanks at the ends of its lines and blank lines around it."""
    lines = [line.rstrip() for line in printed.strip("\n").splitlines()]
    return "".join(f"{line}\n" for line in lines)


@contextlib.contextmanager
def temporary_working_directory() -> Iterator[Path]:
    """Work in a new folder that is gone afterwards."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        yield Path(folder)
