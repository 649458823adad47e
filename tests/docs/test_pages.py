"""Every code block and every `$ lemma …` line of the README and the docs runs, page by page, in order.

Every training is cut short here, to a few steps; nothing else is changed.
"""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
STEPS = 12
BEFORE = {"evaluate.md": "train.md", "generate.md": "train.md"}  # the pages that go on where another one ended


def blocks(page: Path) -> list[tuple[str, str]]:
    text = re.sub(r"\bsteps=\d+", f"steps={STEPS}", page.read_text(encoding="utf-8"))
    return [(kind, body) for kind, body in BLOCK.findall(text) if kind in {"python", "console"}]


def commands(body: str) -> list[list[str]]:
    lines = [line[2:] for line in body.splitlines() if line.startswith("$ lemma ")]
    return [_short(shlex.split(line, comments=True)) for line in lines]


def _short(words: list[str]) -> list[str]:
    long = words[1] == "train" and "--words" not in words and not any(word.startswith("steps=") for word in words)
    return [*words, f"steps={STEPS}"] if long and "--resume" not in words else words


def run_page(page: Path, folder: Path) -> None:
    names: dict = {}
    for kind, body in blocks(page):
        if kind == "python":
            exec(compile(body, page.name, "exec"), names)  # our own pages
        for command in commands(body) if kind == "console" else []:
            done = subprocess.run([sys.executable, "-m", *command], capture_output=True, text=True, cwd=folder)
            fine = {0, 1} if command[1] == "check" else {0}  # a page may show a wrong answer being judged
            assert done.returncode in fine, f"{page.name}: {shlex.join(command)}\n{done.stderr}"


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)], ids=lambda page: page.name)
def test_what_a_page_shows_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    book = "It was the best of times, it was the worst of times.\n" * 400
    (tmp_path / "mybook.txt").write_text(book, encoding="utf-8")
    if page.name in BEFORE:
        run_page(page.with_name(BEFORE[page.name]), tmp_path)
    run_page(page, tmp_path)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text(encoding="utf-8"))
    assert [target for target in targets if not (page.parent / target).exists()] == []
