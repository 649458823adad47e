"""Output fits 80 columns when piped, and the width of a narrow or wide terminal."""

import contextlib
import io
import os
import pty
import re
import shlex
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from lemma.checking.identities import IDENTITIES
from lemma.cli.main import app, main
from lemma.report.text import (
    display_width,
    format_table,
    keep_together,
    set_text_width,
    stream_width,
    text_width,
    wrap,
    wrap_lines,
    wrap_paragraph,
)
from lemma.spec.choose import PRESETS

WORKED = {
    "attention": ("e1", "e1 --full", "e1 --word they --passes 3 --scaled"),
    "bpe": ("'abbc abb abc abb'", "'the cat sat on the mat, the dog on the log' --merges 5"),
    "cross": ("e8", "e8 --full"),
    "graph": ("d4", "karate", "cycle", "d4 --full"),
    "lstm": ("c1 --backward", "e9 --backward --full"),
}
CHECKS = (
    "parameters feed-forward '|V|(d + d_h) + (N-1)d d_h'",
    "parameters feed-forward 'V*d'",
    "number table-a5 parameters '65 % increase from 2 to 4 layers'",
    "gradient lstm 'dW_y = (y_hat - y) @ a.T' 'db_y = (y_hat - y) @ a.T'",
    *(f"gradient {cell} --names" for cell in ("lstm", "gru", "rnn", "attention", "softmax-cross-entropy")),
    "identity",
    *(f"identity {name}" for name in IDENTITIES),
)
WRONG = (
    "frob",
    "train",
    "train lstm",
    "train lstmm --text a --out b",
    "train lstm --text no-such-file.txt --out b",
    "train lstm widht=3 --text shakespeare --out b",
    "train decoder positions=rotory --text shakespeare --out b",
    "train lstm --txt a",
    "count no-such-model",
    "count decoder d=500 h=12",
    "count lstm --only nothing",
    "count lstm d=abc",
    "check parameters lstm 'V*d + zz'",
    "check parameters lstm 'V*d + 4*D*(d + D + 1) + V*(D+1) + L*(D+1) + V*d*D*L + 7*V*d*D*L + ('",
    "check identity zzz",
    "look nothing",
    "evaluate runs/none",
    "generate runs/none",
    "adapt runs/none --labels tweets --out b",
    "search",
    "study nothing",
    "serve runs/none",
)
SMALL = ("feed-forward", "lstm")
"""Presets whose whole account is printed; of the others only the parameters, which take less time to count."""


def run(line: str) -> str:
    """Return stdout and stderr of a command; neither is a terminal."""
    streams, formatting = io.StringIO(), warnings.formatwarning
    with contextlib.redirect_stdout(streams), contextlib.redirect_stderr(streams), contextlib.suppress(SystemExit):
        main(shlex.split(line))
    warnings.formatwarning = formatting
    return streams.getvalue()


def too_wide(text: str, most: int = 80) -> list[str]:
    return [line for line in text.splitlines() if display_width(line) > most]


def commands(command: Any, path: str = "") -> Iterator[str]:
    yield path
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, f"{path} {name}")


@pytest.mark.parametrize("path", list(commands(get_command(app))))
def test_help_of_every_command_fits_the_width(path: str) -> None:
    output = run(f"{path} --help")
    assert "Usage: lemma" in output and too_wide(output) == []
    assert not [line for line in output.partition("Commands:")[2].splitlines() if line.endswith("...")], "cut off"
    assert not re.search(r"\w\. {2,}\w", output), "a docstring's margin got into a line"


@pytest.mark.parametrize("words", [f"look {kind} {case}" for kind, cases in WORKED.items() for case in cases])
def test_worked_cases_fit_the_width(words: str) -> None:
    assert len(output := run(words)) > 200 and too_wide(output) == []


@pytest.mark.parametrize("words", CHECKS)
def test_checks_fit_the_width(words: str) -> None:
    assert (output := run(f"check {words}")).strip() and too_wide(output) == []


@pytest.mark.parametrize("words", WRONG)
def test_errors_fit_the_width(words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert (output := run(words)).strip() and too_wide(output) == []
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("preset", PRESETS)
def test_accounts_and_setting_lists_fit_the_width(preset: str) -> None:
    account = run(f"count {preset}" + ("" if preset in SMALL else " --only parameters"))
    assert "parameters = " in account and too_wide(account) == []
    rows = [line for line in account.splitlines() if re.match(r" *\w+\.weight ", line)]
    assert all(re.search(r"\d$", row) for row in rows), "a row keeps its count"
    assert too_wide(run(f"train {preset} --settings")) == []


def test_data_lists_and_worked_search_fit_the_width() -> None:
    for words in ("data", "look attention", "look lstm", "search --matrices e7 --full"):
        assert (output := run(words)) and too_wide(output) == []


# Wrapping and tables


def test_wrapping_loses_no_characters() -> None:
    text = "optimizer bytes = 8·(V·(d + D + 1) + 4·d·D + 2) + (L−1)·(32·D² + 4) + 8·L·(4·D² + 4·D + 1) = 3,942,424"
    for width in range(20, 110):
        lines = wrap(text, width, hanging="  ")
        assert "".join("".join(lines).split()) == "".join(text.split())
        assert max(map(display_width, lines)) <= width
        assert not any(line.endswith((" +", " =", " −")) for line in lines), "a sign stands with what follows it"


def test_paths_and_commands_are_not_wrapped() -> None:
    path = "/a/very/long/path" + "/folder" * 12
    assert path in wrap_lines(f"{path}: there is no such file.", 60)
    output = wrap_lines("lemma: --text is missing, as in: lemma train lstm --text shakespeare --out runs/a", 80)
    assert output.splitlines()[1] == "  lemma train lstm --text shakespeare --out runs/a"
    assert wrap("ab" * 6, 5, break_anywhere=True) == ["ababa", "babab", "ab"], (
        "what a model writes may be broken anywhere"
    )
    assert wrap(keep_together("d = 512") + " " + keep_together("h = 8"), 10) == ["d = 512", "h = 8"]


def test_continuation_lines_align_with_their_text() -> None:
    assert wrap_lines("loss    at most nats per token", 20).splitlines() == [
        "loss    at most nats",
        "        per token",
    ]
    assert wrap_lines("✓ one two three four", 12).splitlines() == ["✓ one two", "  three four"]
    assert wrap_paragraph("one two three four", 9).splitlines() == ["one two", "three", "four"]
    assert wrap_lines("short\n\n  lines stay", 20) == "short\n\n  lines stay"


def test_wide_characters_count_as_two_columns() -> None:
    assert max(map(display_width, wrap("日本語 日本語 日本語", 13))) <= 13
    assert format_table([["日本", "1"], ["a", "22"]], has_header=False) == ["日本   1", "a     22"]


def test_narrow_tables_wrap_header_then_cells_then_columns() -> None:
    rows = [["name", "a long head", "another head"], ["x", "1", "2"]]
    assert format_table(rows, width=40)[0] == "name  a long head  another head"
    narrow = format_table(rows, width=23)
    assert max(map(display_width, narrow)) <= 23 and " ".join(" ".join(narrow[:-1]).split()).count("head") == 2
    cells = [["name", "what it is"], ["x", "several words to be broken"]]
    assert max(map(display_width, format_table(cells, left=(0, 1), breakable=(1,), width=24))) <= 24
    folded = format_table([["n", *("c" * 9 for _ in range(6))], ["a", *map(str, range(6))]], width=30)
    assert max(map(display_width, folded)) <= 30 and folded.count("") == 2
    assert sum(line.count("ccccccccc") for line in folded) == 6 and sum(line.startswith("a ") for line in folded) == 3


def test_pipe_width_is_80_and_terminal_width_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    assert text_width() == stream_width(io.StringIO()) == stream_width(None) == 80
    for present, used in ((60, 60), (200, 100), (10, 40)):
        monkeypatch.setenv("COLUMNS", str(present))
        assert stream_width(Terminal()) == used and stream_width(io.StringIO()) == 80


@pytest.mark.parametrize("width", [50, 100])
def test_results_follow_the_configured_width(width: int) -> None:
    import lemma

    rendered: tuple[Any, ...] = (lemma.check("identity", "b5", I=16, samples=500), lemma.look("attention", "e1"))
    with set_text_width(width):
        texts = [str(item) for item in rendered]
    assert all(too_wide(text, width) == [] for text in texts)
    assert width < 80 or any(too_wide(text) for text in texts)


@pytest.mark.parametrize("setting", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_no_color_terminal_gets_no_escape_codes(setting: dict[str, str]) -> None:
    """Run the command in a pseudo-terminal of 60 columns."""
    ours, reference = pty.openpty()
    environment = {**os.environ, "COLUMNS": "60", **setting}
    command = [sys.executable, "-m", "lemma", "train", "lstmm", "--text", "a", "--out", "b"]
    done = subprocess.run(command, stdout=reference, stderr=reference, env=environment, check=False, timeout=60)
    os.close(reference)
    printed = os.read(ours, 65536).decode()
    os.close(ours)
    assert done.returncode == 2 and "unknown model 'lstmm'" in printed
    assert "\x1b" not in printed and too_wide(printed, 60) == []


def test_underlined_columns_may_be_one_space_apart() -> None:
    rows = [["a", "1 ± 2", "3 ± 4"], ["b", "5 ± 6", "7 ± 8"]]
    assert format_table(rows, underline_header=True, width=13) == ["a 1 ± 2 3 ± 4", "─ ───── ─────", "b 5 ± 6 7 ± 8"]
    assert "" in format_table(rows, width=13), "without a rule one could not tell where a cell ends"


def test_first_row_without_header_is_aligned_to_the_top() -> None:
    rows = [["a", "one two three four"], ["b", "five"]]
    base = format_table(rows, left=(0, 1), breakable=(1,), has_header=False, width=16)
    assert base == ["a  one two three", "   four", "b  five"]
    assert format_table(rows, left=(0, 1), breakable=(1,), width=16) == ["   one two three", "a  four", "b  five"]
