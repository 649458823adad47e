"""`python -m pages ACT FILE…`: run pages, fill in what they print, make and execute notebooks, find dead links.

check PAGE…            run pages as they stand, and compare what they show with what is printed
write PAGE…            run pages, and put into each `text` block what is printed
notebook PAGE…         write the notebook of each page next to it
practice PAGE          write the page of the exercises that come with Lemma
execute NOTEBOOK…      run notebooks from their first cell to their last
links FOLDER…          look for dead links, and for anything fetched from elsewhere, in a site that was built
screenshot REPORT OUT  take a screenshot of a report, such as that of `make demo`
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pages import PageError
from pages.executing import execute_notebook
from pages.links import check_site
from pages.notebooks import write_notebook
from pages.outputs import check_page, write_page
from pages.practice import write_practice
from pages.screenshot import take_screenshot

ACTS: dict[str, Callable[[Path], Any]] = {
    "check": check_page,
    "write": write_page,
    "notebook": write_notebook,
    "practice": write_practice,
    "execute": execute_notebook,
    "links": check_site,
}


def main(words: list[str]) -> None:
    """Do one act to each file."""
    act, files = (words or [""])[0], [Path(name).resolve() for name in words[1:]]
    if act == "screenshot" and len(files) == 2:
        take_screenshot(*files)
    elif act in ACTS and files:
        for file in files:
            do(act, file)
    else:
        sys.exit(str(__doc__))


def do(act: str, file: Path) -> None:
    """Do one act to one file, and say so; what is wrong with it ends the program."""
    try:
        ACTS[act](file)
    except PageError as error:
        sys.exit(f"{act}: {file.name}\n{error}")
    print(f"{act}: {file.name}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
