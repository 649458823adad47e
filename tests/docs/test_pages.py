"""Every code block and every `$ lemma …` line of the README and the docs runs, page by page, in order.

Every training is cut short here, to a few steps and one validation; nothing else is changed. What a page prints where
nothing is trained must be what it shows. Commands run in this process, except the README's, which run as a person
starts them.
"""

import contextlib
import functools
import io
import re
import shlex
import shutil
import subprocess
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path

import pytest

from lemma.cli.main import main

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
RUN = re.compile(r"runs/[\w-]+")
STEPS = 4
LEARNING = {"train", "adapt"}
NOT_LEARNING = {"--words", "--resume", "--merge", "--to-peft", "--from-peft", "--help"}
BOOK = "It was the best of times, it was the worst of times.\n" * 400


@dataclass(frozen=True)
class Done:
    """What a command or a block of Python came to."""

    status: int
    printed: str
    said: str = ""


def blocks(page: Path) -> list[tuple[str, str]]:
    text = page.read_text(encoding="utf-8")
    return [(kind, body) for kind, body in BLOCK.findall(text) if kind in {"python", "console", "text"}]


def commands(body: str) -> list[list[str]]:
    lines = [line[2:] for line in body.splitlines() if line.startswith("$ lemma ")]
    return [shorten(shlex.split(line, comments=True)) for line in lines]


def shorten(words: list[str]) -> list[str]:
    """A training with few steps and one validation."""
    if words[1] not in LEARNING or NOT_LEARNING & set(words):
        return words
    kept = [word for word in words if not word.startswith(("steps=", "evaluate_every="))]
    return [*kept, f"steps={STEPS}", f"evaluate_every={STEPS}"]


def shorten_python(body: str) -> str:
    return re.sub(r"\bsteps=\d+", f"steps={STEPS}, evaluate_every={STEPS}", body)


def run_python(body: str, page: Path, names: dict) -> Done:
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(shorten_python(body), page.name, "exec"), names)  # our own pages
    return Done(0, printed.getvalue())


def run_here(words: list[str]) -> Done:
    """Run a command in this process: importing torch anew for each would take most of the time."""
    printed, said, formatting = io.StringIO(), io.StringIO(), warnings.formatwarning
    try:
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(said):
            main(words[1:])
        status = 0
    except SystemExit as left:
        status = left.code if isinstance(left.code, int) else int(left.code is not None)
    except Exception as error:
        error.add_note(f"in: {shlex.join(words)}")
        raise
    finally:
        warnings.formatwarning = formatting
    return Done(status, printed.getvalue(), said.getvalue())


def run_apart(words: list[str]) -> Done:
    done = subprocess.run([sys.executable, "-m", *words], capture_output=True, text=True)
    return Done(done.returncode, done.stdout, done.stderr)


def run_command(words: list[str], page: Path) -> Done:
    done = (run_apart if page.name == "README.md" else run_here)(words)
    fine = {0, 1} if words[1] == "check" else {0}  # a page may show a wrong answer being judged
    assert done.status in fine, f"{page.name}: {shlex.join(words)}\n{done.said}"
    return done


def run_page(page: Path) -> None:
    names: dict = {}
    code, printed = "", ""
    for kind, body in blocks(page):
        if kind == "text":
            assert differences(body, code, printed) == [], f"{page.name} shows what is not printed:\n{printed}"
            continue
        code = body
        done = [run_python(body, page, names)] if kind == "python" else [run_command(c, page) for c in commands(body)]
        printed = "\n".join(one.printed for one in done)


def pattern(line: str) -> re.Pattern[str]:
    """A line as it may be printed: spaces do not count, and … stands for anything."""
    return re.compile(".*".join(re.escape(" ".join(part.split())) for part in line.split("…")).replace(r"\ ", r"\s*"))


def differences(shown: str, code: str, printed: str) -> list[str]:
    """The lines of a page that its code does not print; of code that needs a trained run nothing is expected."""
    if not code or RUN.search(code) or any(words[1] == "study" for words in commands(code)):
        return []
    there = [" ".join(line.split()) for line in printed.splitlines()]
    return [line for line in shown.splitlines() if not any(map(pattern(line).fullmatch, there))]


@functools.cache
def makers() -> dict[str, list[str]]:
    """The command that makes each run, wherever it stands."""
    shown = [words for page in PAGES for kind, body in blocks(page) if kind == "console" for words in commands(body)]
    return {words[words.index("--out") + 1]: words for words in shown if words[1] in LEARNING and "--out" in words}


def runs_from_elsewhere(page: Path) -> list[str]:
    """The runs that a page uses but does not make."""
    text = "".join(body for _, body in blocks(page))
    made = set(re.findall(r"(?:--out |out=\")(runs/[\w-]+)", text))
    return sorted(set(RUN.findall(text)) - made)


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where runs that several pages use are kept."""
    return tmp_path_factory.mktemp("shelf")


def fetch_run(run: str, shelf: Path) -> None:
    """Make a run as the page that shows it does, once; and before it the run that it starts from."""
    assert run in makers(), f"no page shows a command that makes {run}"
    if (shelf / run).exists():
        shutil.copytree(shelf / run, run, dirs_exist_ok=True)
        return
    for other in set(RUN.findall(shlex.join(makers()[run]))) - {run}:
        fetch_run(other, shelf)
    run_command(makers()[run], ROOT / "docs")
    shutil.copytree(run, shelf / run)


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)], ids=lambda page: page.name)
def test_what_a_page_shows_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shelf: Path) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mybook.txt").write_text(BOOK, encoding="utf-8")
    for run in runs_from_elsewhere(page):
        fetch_run(run, shelf)
    run_page(page)


def test_a_wrong_figure_a_broken_command_and_a_long_training_are_seen() -> None:
    shown, code = "a  5\n\nb … 7\n", "$ lemma count rnn\n"
    assert differences(shown, code, "a 5\n\nb 6 and 7\n") == []
    assert differences(shown, code, "a 50\n\nb 6 and 8\n") == ["a  5", "b … 7"]
    assert differences(shown, "$ lemma evaluate runs/a\n", "") == []
    assert run_here(["lemma", "count", "no-such-model"]).status == 2
    long = ["lemma", "train", "rnn", "--out", "runs/a"]
    assert shorten([*long, "steps=900"]) == [*long, f"steps={STEPS}", f"evaluate_every={STEPS}"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text(encoding="utf-8"))
    assert [target for target in targets if not (page.parent / target).exists()] == []
