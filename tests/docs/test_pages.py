"""Execute every code block and every `$ lemma …` line of the README and the docs, page by page, in order.

The gallery runs unchanged. On all other pages every training is cut to a few steps and one validation; nothing else is
changed, and the output of blocks without training must equal the documented output. Commands run in this process,
except the first of each block of the README, which runs as a user starts it. `make test` executes the pages in
`SAMPLE`; `make pages` and `make docs` execute all of them (marker `page`).
"""

import functools
import re
from pathlib import Path
from typing import Any

import pytest

from pages import PageError
from pages.blocks import Block, commands, read_blocks
from pages.outputs import check_page, differences, outputs, write_page
from pages.running import run_command, run_in_process
from pages.sharing import RUN, fetch_run, makers, runs_from_elsewhere
from pages.shortening import STEPS, shorten, shortened

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
GALLERY = sorted((DOCS / "problems").glob("*.md"))
FOLLOWED = sorted((DOCS / "extending").glob("*.md"))  # test_extending.py does what they say, in a package of its own
PAGES = [ROOT / "README.md", *sorted({*DOCS.rglob("*.md")} - {*GALLERY} - {*FOLLOWED})]
SAMPLE = {"README.md", "docs/evaluate.md", "docs/problems/d.md"}
BOOK = "It was the best of times, it was the worst of times.\n" * 400


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def page_parameters(pages: list[Path]) -> list[Any]:
    """Return one parameter per page; pages outside the sample are marked, so that `make test` skips them."""
    return [pytest.param(page, id=name(page), marks=() if name(page) in SAMPLE else pytest.mark.page) for page in pages]


def blocks(page: Path) -> list[Block]:
    return read_blocks(page.read_text(encoding="utf-8"))


def can_be_compared(code: str) -> bool:
    """Return False for code that needs a trained run, since its training was cut."""
    return bool(code) and not RUN.search(code) and all(words[1] != "study" for words in commands(code))


@functools.cache
def made_by() -> dict[str, list[str]]:
    return makers(PAGES)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder for runs that multiple pages use."""
    return tmp_path_factory.mktemp("cache")


@pytest.mark.parametrize("page", page_parameters([page for page in PAGES if blocks(page)]))
def test_pages_run_and_print_their_documented_output(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mybook.txt").write_text(BOOK, encoding="utf-8")
    for run in runs_from_elsewhere(page):
        fetch_run(run, cache, made_by())
    wrong = []
    for output in outputs(map(shortened, blocks(page)), page.name, in_subprocess=page.name == "README.md"):
        if can_be_compared(output.code):
            wrong += differences(output.block.body, output.printed)
    assert wrong == []


@pytest.mark.parametrize("page", page_parameters(GALLERY))
def test_gallery_pages_print_their_documented_output(page: Path) -> None:
    check_page(page)
    assert blocks(page) or page.stem == "index"


def test_page_check_reports_wrong_figures_and_shortens_training() -> None:
    documented = "a  5\n\nb … 7\n"
    assert differences(documented, "a 5\n\nb 6 and 7\n") == []
    assert differences(documented, "a 50\n\nb 6 and 8\n") == ["a  5", "b … 7"]
    assert can_be_compared("$ lemma count rnn\n") and not can_be_compared("$ lemma evaluate runs/a\n")
    assert run_in_process(["lemma", "count", "no-such-model"]).status == 2
    with pytest.raises(PageError, match="no-such-model"):
        run_command(["lemma", "count", "no-such-model"], "a page")
    long = ["lemma", "train", "rnn", "--out", "runs/a"]
    assert shorten([*long, "steps=900"]) == [*long, f"steps={STEPS}", f"evaluate_every={STEPS}"]
    block = shortened(Block("console", "$ lemma train rnn steps=900  # long\n", 0, 0))
    assert commands(block.body) == [["lemma", "train", "rnn", f"steps={STEPS}", f"evaluate_every={STEPS}"]]


def test_write_page_fills_outputs_that_check_page_verifies(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```python\nprint(6 * 7)\n```\n\n```text\n```\n", encoding="utf-8")
    with pytest.raises(PageError, match="empty"):
        check_page(page)
    write_page(page)
    assert page.read_text(encoding="utf-8") == "```python\nprint(6 * 7)\n```\n\n```text\n42\n```\n"
    check_page(page)
    page.write_text(page.read_text(encoding="utf-8").replace("42", "43"), encoding="utf-8")
    with pytest.raises(PageError, match=r"page.md shows \['43'\]"):
        check_page(page)


@pytest.mark.parametrize("page", [*PAGES, *GALLERY, *FOLLOWED], ids=name)
def test_relative_links_of_pages_resolve(page: Path) -> None:
    targets = re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text(encoding="utf-8"))
    assert [target for target in targets if not (page.parent / target).exists()] == []
