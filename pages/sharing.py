"""Runs that one page makes and others use."""

import re
import shlex
import shutil
from pathlib import Path

from pages import PageError
from pages.blocks import page_commands, read_blocks
from pages.running import run_command
from pages.shortening import is_training, shorten

RUN = re.compile(r"runs/[\w-]+")
OUTPUT_FOLDER = re.compile(r"(?:--out |out=\")(runs/[\w-]+)")


def makers(pages: list[Path]) -> dict[str, list[str]]:
    """The command that makes each run, wherever it stands."""
    all_commands = [words for page in pages for words in page_commands(page.read_text(encoding="utf-8"))]
    return {words[words.index("--out") + 1]: words for words in all_commands if is_training(words) and "--out" in words}


def runs_from_elsewhere(page: Path) -> list[str]:
    """The runs that a page uses but does not make."""
    text = "".join(block.body for block in read_blocks(page.read_text(encoding="utf-8")))
    return sorted(set(RUN.findall(text)) - set(OUTPUT_FOLDER.findall(text)))


def fetch_run(run: str, cache: Path, commands_by_run: dict[str, list[str]]) -> None:
    """Make a run as the page that shows it does, once, but short; and before it the run that it starts from."""
    if run not in commands_by_run:
        raise PageError(f"no page shows a command that makes {run}")
    if (cache / run).exists():
        shutil.copytree(cache / run, run, dirs_exist_ok=True)
        return
    for other in set(RUN.findall(shlex.join(commands_by_run[run]))) - {run}:
        fetch_run(other, cache, commands_by_run)
    run_command(shorten(commands_by_run[run]), run)
    shutil.copytree(run, cache / run)
