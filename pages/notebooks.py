"""A page as a notebook: its text, its code as cells, and what it shows as their output."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

from pages.blocks import RUNS, Block, commands, read_blocks

METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


COMMAND = "import sys"
"""What a cell with commands begins with: the kernel's Python has Lemma, and its folder may not be on the PATH."""


def notebook(text: str) -> dict[str, Any]:
    """A page as a notebook of format 4.5; running it again gives what the page shows. Links stay as they are.

    >>> cells = notebook("# A\\n\\n```python\\nprint(1)\\n```\\n\\n```text\\n1\\n```\\n")["cells"]
    >>> [(cell["cell_type"], "".join(cell["source"])) for cell in cells]
    [('markdown', '# A'), ('code', 'print(1)')]
    """
    cells: list[dict[str, Any]] = []
    position = 0
    for block in read_blocks(text):
        cells += _words(text[position : block.opens])
        position = block.closes
        if block.kind in RUNS:
            cells.append(_code(block))
        else:
            cells[-1]["outputs"] = [{"output_type": "stream", "name": "stdout", "text": _lines(block.body)}]
    cells += _words(text[position:])
    for number, cell in enumerate(cells):
        cell["id"] = f"cell-{number}"
    return {"cells": cells, "metadata": METADATA, "nbformat": 4, "nbformat_minor": 5}


def _code(block: Block) -> dict[str, Any]:
    lines = [block.body]
    if block.kind == "console":
        lines = [COMMAND, *(f"!{{sys.executable}} -m {_literal(shlex.join(words))}" for words in commands(block.body))]
    source = _lines("\n".join(lines).strip("\n"))
    return {"cell_type": "code", "execution_count": None, "metadata": {}, "outputs": [], "source": source}


def _literal(command: str) -> str:
    """A command in which IPython finds nothing to fill in; one pair of braces that it cannot would leave all of them.

    It takes $name for a variable where no odd number of quotes follows, up to the next brace.

    >>> print(_literal("check '$d' $x 'c_{t-1}'"))
    check '$$d' $x 'c_{{t-1}}'
    """
    pieces = re.split(r"([{}])", command)
    variable = r"\$(?=[\w.]+(?:[^']*'[^']*')*[^']*$)"
    return "".join(piece * 2 if piece in "{}" else re.sub(variable, "$$", piece) for piece in pieces)


def _words(text: str) -> list[dict[str, Any]]:
    words = text.strip("\n")
    return [{"cell_type": "markdown", "metadata": {}, "source": _lines(words)}] if words.strip() else []


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def write_notebook(page: Path) -> Path:
    """Write a page's notebook next to it."""
    path = page.with_suffix(".ipynb")
    path.write_text(render_notebook(page), encoding="utf-8")
    return path


def render_notebook(page: Path) -> str:
    """The notebook's file."""
    return json.dumps(notebook(page.read_text(encoding="utf-8")), ensure_ascii=False, indent=1) + "\n"
