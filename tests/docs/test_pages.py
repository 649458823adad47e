"""Every code block and every `$ lemma …` line of the README and the docs runs, page by page, in order.

The gallery runs as it stands. On all other pages every training is cut short, to a few steps and one validation;
nothing else is changed, and what a page prints where nothing is trained must be what it shows. Commands run in this
process, except the first of each block of the README, which runs as a person starts it.
"""

import functools
import re
from pathlib import Path

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
BOOK = "It was the best of times, it was the worst of times.\n" * 400


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path) -> list[Block]:
    return read_blocks(page.read_text(encoding="utf-8"))


def can_be_compared(code: str) -> bool:
    """Of code that needs a trained run nothing is expected, since the run is short here."""
    return bool(code) and not RUN.search(code) and all(words[1] != "study" for words in commands(code))


@functools.cache
def made_by() -> dict[str, list[str]]:
    return makers(PAGES)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where runs that several pages use are kept."""
    return tmp_path_factory.mktemp("cache")


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)], ids=name)
def test_what_a_page_shows_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mybook.txt").write_text(BOOK, encoding="utf-8")
    for run in runs_from_elsewhere(page):
        fetch_run(run, cache, made_by())
    wrong = []
    for shown in outputs(map(shortened, blocks(page)), page.name, in_subprocess=page.name == "README.md"):
        if can_be_compared(shown.code):
            wrong += differences(shown.block.body, shown.printed)
    assert wrong == []


@pytest.mark.parametrize("page", GALLERY, ids=name)
def test_the_gallery_prints_what_it_shows_uncut(page: Path) -> None:
    check_page(page)
    assert blocks(page) or page.stem == "index"


def test_a_wrong_figure_a_broken_command_and_a_long_training_are_seen(tmp_path: Path) -> None:
    shown = "a  5\n\nb … 7\n"
    assert differences(shown, "a 5\n\nb 6 and 7\n") == []
    assert differences(shown, "a 50\n\nb 6 and 8\n") == ["a  5", "b … 7"]
    assert can_be_compared("$ lemma count rnn\n") and not can_be_compared("$ lemma evaluate runs/a\n")
    assert run_in_process(["lemma", "count", "no-such-model"]).status == 2
    with pytest.raises(PageError, match="no-such-model"):
        run_command(["lemma", "count", "no-such-model"], "a page")
    long = ["lemma", "train", "rnn", "--out", "runs/a"]
    assert shorten([*long, "steps=900"]) == [*long, f"steps={STEPS}", f"evaluate_every={STEPS}"]
    block = shortened(Block("console", "$ lemma train rnn steps=900  # long\n", 0, 0))
    assert commands(block.body) == [["lemma", "train", "rnn", f"steps={STEPS}", f"evaluate_every={STEPS}"]]


def test_a_page_is_filled_in_with_what_it_prints_and_a_figure_changed_afterwards_is_seen(tmp_path: Path) -> None:
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
def test_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text(encoding="utf-8"))
    assert [target for target in targets if not (page.parent / target).exists()] == []
