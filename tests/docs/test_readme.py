"""The README is short, lists the program's verbs, and its figures are checked or dated."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import lemma
from pages.blocks import FENCE

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
VERBS = ["count", "check", "train", "evaluate", "generate", "look", "adapt", "export", "search", "study", "serve"]
MACHINE = r"(?:on )?(?:two cores of|one) (?:an AMD EPYC|an Intel Xeon|H200)|machine not recorded"
DATED = re.compile(rf"\d{{4}}-\d{{2}}-\d{{2}},? (?:{MACHINE})")


def verbs_of_a_table(text: str) -> list[str]:
    return re.findall(r"^\| `?\[?(\w+)`?\]?(?:\(\w+\.md\))? \| (?!what you get)", text, re.MULTILINE)


def commands_of_help() -> list[str]:
    words = [sys.executable, "-m", "lemma", "--help"]
    output = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    return re.findall(r"^  (\w+)  +\S", output.split("Commands:")[1], re.MULTILINE)


def test_readme_is_short() -> None:
    lines = README.splitlines()
    assert len(lines) <= 120
    assert [line for line in lines if len(line) > 120] == []


def test_readme_verbs_match_command_line_python_and_docs() -> None:
    assert verbs_of_a_table(README) == [*VERBS, "data"]
    assert sorted(commands_of_help()) == sorted([*VERBS, "data", "verify"])  # docs/faults.md has the last
    assert set(lemma.__all__) == {*VERBS, "verify", "datasets"}  # `lemma data` in Python; lemma.data is a package
    assert verbs_of_a_table((ROOT / "docs" / "index.md").read_text(encoding="utf-8")) == VERBS
    assert [verb for verb in [*VERBS, "data"] if not (ROOT / "docs" / f"{verb}.md").is_file()] == []
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").split("- Verbs:")[1].split("- Tasks:")[0]
    assert re.findall(r"(\w+)\.md", nav) == [*VERBS, "data"]


def figures(text: str) -> list[str]:
    """Return the numbers of a text outside executed blocks, links, commands and dated sentences."""
    for away in (FENCE, re.compile(r"\]\([^)]*\)"), re.compile(r"`[^`]*`"), DATED):
        text = away.sub(" ", text)
    return re.findall(r"(?<![\w.])\d[\d.,]*(?<![.,])", text)


def test_readme_figures_are_checked_executed_or_dated() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    rows = re.findall(r"^\| \[([A-E]\d+)\]", (ROOT / "docs/problems/index.md").read_text("utf-8"), re.MULTILINE)
    true = {project["requires-python"].removeprefix(">="), str(len(set(rows))), "1", "0"}  # F1, temperature 0
    assert set(figures(README.replace(project["license"], ""))) <= true


def test_undated_figures_are_detected() -> None:
    assert figures("It takes 3.5 s and 1,200 MB.") == ["3.5", "1,200"]
    assert figures("Written on 2026-11-15 on two cores of an AMD EPYC.") == []
    assert figures("Written on 2026-11-15.") != []
    assert figures("Run `make 12` or [this](a3.md).\n```text\n17\n```\n") == []


def test_readme_screenshot_exists_with_its_command() -> None:
    assert "](docs/families.png)" in README and (ROOT / "docs/families.png").stat().st_size > 10_000
    from pages.__main__ import __doc__ as acts

    assert "python -m pages screenshot runs/demo/report.html docs/families.png" in README
    assert "screenshot REPORT OUT" in str(acts)
