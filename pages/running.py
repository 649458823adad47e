"""Run a block of Python, or a command, and say what it printed."""

import contextlib
import io
import os
import shlex
import subprocess
import sys
import warnings
from dataclasses import dataclass
from typing import Any

from lemma.cli.main import main
from lemma.report.text import display_width
from pages import PageError
from pages.blocks import Block, commands

MOST = 80
"""Columns of a terminal."""


@dataclass(frozen=True)
class Done:
    """What a command or a block of Python came to."""

    status: int
    printed: str
    said: str = ""


def run_python(body: str, where: str, names: dict[str, Any]) -> Done:
    """Run a block of one of our own pages, with the names of the blocks before it."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(body, where, "exec"), names)
    return Done(0, printed.getvalue())


def run_here(words: list[str]) -> Done:
    """Run a command in this process: importing torch again for each would take most of the time."""
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
    """Run a command as a person starts it."""
    environment = {**os.environ, "PYTHONIOENCODING": "utf-8"}
    done = subprocess.run([sys.executable, "-m", *words], capture_output=True, text=True, env=environment)
    return Done(done.returncode, done.stdout, done.stderr)


def run_command(words: list[str], where: str, apart: bool = False) -> Done:
    """Run a command, which must go well; a page may show a wrong answer being judged."""
    done = (run_apart if apart else run_here)(words)
    if done.status not in ({0, 1} if words[1] == "check" else {0}):
        raise PageError(f"{where}: {shlex.join(words)}\n{done.said}")
    if wide := too_wide(words, done):
        raise PageError(f"{where}: {shlex.join(words)} prints more than {MOST} columns:\n{wide[0]}")
    return done


def too_wide(words: list[str], done: Done) -> list[str]:
    """The lines that do not fit a terminal; JSON, other forms and what a model writes may be of any width."""
    if {"--json", "--format"} & set(words) or words[1] == "generate":
        return []
    return [line for line in (done.printed + done.said).splitlines() if display_width(line) > MOST]


def run_block(block: Block, where: str, names: dict[str, Any], apart: bool = False) -> str:
    """Run a block and return what it printed; its first command `apart`, as a person starts it, if so asked."""
    if block.kind == "python":
        return run_python(block.body, where, names).printed
    asked = enumerate(commands(block.body))
    return "\n".join(run_command(words, where, apart and not place).printed for place, words in asked)
