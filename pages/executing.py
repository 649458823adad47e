"""A notebook run from its first cell to its last in a kernel of its own; what it prints next to what it shows."""

import json
import os
import sys
from pathlib import Path
from typing import Any

from pages import PageError
from pages.outputs import differences, temporary_working_directory

PLAIN_TEXT_ENVIRONMENT = {"NO_COLOR": "1", "TERM": "dumb", "COLUMNS": "80", "PYTHONIOENCODING": "utf-8"}


def execute_notebook(path: Path) -> None:
    """Run a notebook as it stands; a cell that fails, or that prints something else than it shows, is an error.

    The virtual environment is not on the kernel's PATH, as in a notebook server that was started elsewhere.
    """
    import nbformat
    from nbclient import NotebookClient

    text = path.read_text(encoding="utf-8")
    saved, book = json.loads(text), nbformat.reads(text, as_version=4)
    bin_folder = str(Path(sys.executable).parent)
    folders = [entry for entry in os.environ["PATH"].split(os.pathsep) if entry != bin_folder]
    os.environ.update(PLAIN_TEXT_ENVIRONMENT, PATH=os.pathsep.join(folders))
    with temporary_working_directory() as folder:
        NotebookClient(book, timeout=600, resources={"metadata": {"path": str(folder)}}).execute()
    for before, after in zip(saved["cells"], book["cells"], strict=True):
        missing = [line for line in differences(_printed(before), _printed(after)) if line.strip()]
        if missing:  # a blank line between the outputs of two commands stands on the page alone
            raise PageError(f"{path.name} shows {missing}, which is not printed:\n{_printed(after)}")


def _printed(cell: Any) -> str:
    return "".join("".join(output["text"]) for output in cell.get("outputs", []) if output.get("name") == "stdout")
