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
    """Result of a command or of a block of Python."""

    status: int
    stdout: str
    stderr: str = ""


def run_python(body: str, page_name: str, names: dict[str, Any]) -> Done:
    """Run a block of one of our own pages, with the names of the blocks before it."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(body, page_name, "exec"), names)
    return Done(0, printed.getvalue())


def run_in_process(words: list[str]) -> Done:
    """Run a command in this process: importing torch again for each would take most of the time."""
    printed, errors, formatting = io.StringIO(), io.StringIO(), warnings.formatwarning
    try:
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(errors):
            main(words[1:])
        status = 0
    except SystemExit as left:
        status = left.code if isinstance(left.code, int) else int(left.code is not None)
    except Exception as error:
        error.add_note(f"in: {shlex.join(words)}")
        raise
    finally:
        warnings.formatwarning = formatting
    return Done(status, printed.getvalue(), errors.getvalue())


def run_in_subprocess(words: list[str]) -> Done:
    """Run a command as a person starts it."""
    environment = {**os.environ, "PYTHONIOENCODING": "utf-8"}
    done = subprocess.run([sys.executable, "-m", *words], capture_output=True, text=True, env=environment)
    return Done(done.returncode, done.stdout, done.stderr)


def run_command(words: list[str], page_name: str, in_subprocess: bool = False) -> Done:
    """Run a command, which must go well; a page may show a wrong answer being judged."""
    done = (run_in_subprocess if in_subprocess else run_in_process)(words)
    if done.status not in ({0, 1} if words[1] == "check" else {0}):
        raise PageError(f"{page_name}: {shlex.join(words)}\n{done.stderr}")
    if long_lines := find_long_lines(words, done):
        raise PageError(f"{page_name}: {shlex.join(words)} prints more than {MOST} columns:\n{long_lines[0]}")
    return done


def find_long_lines(words: list[str], done: Done) -> list[str]:
    """The lines that do not fit a terminal; JSON, other forms and what a model writes may be of any width."""
    if {"--json", "--format"} & set(words) or words[1] == "generate":
        return []
    return [line for line in (done.stdout + done.stderr).splitlines() if display_width(line) > MOST]


def run_block(block: Block, page_name: str, names: dict[str, Any], in_subprocess: bool = False) -> str:
    """Run a block and return what it printed; its first command `apart`, as a person starts it, if so asked."""
    if block.kind == "python":
        return run_python(block.body, page_name, names).stdout
    block_commands = enumerate(commands(block.body))
    return "\n".join(
        run_command(words, page_name, in_subprocess and not number).stdout for number, words in block_commands
    )
