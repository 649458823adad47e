"""Every table of benchmarks says when it was measured, on what, and by which command."""

import re
from pathlib import Path

PAGE = (Path(__file__).parents[2] / "docs" / "benchmarks.md").read_text(encoding="utf-8")
SAID = re.compile(
    r"^\*\d{4}-\d{2}-\d{2}, .*(?:cores|H200|not recorded).*`(?:make bench|python -m benchmarks[\w. ]*)`", re.MULTILINE
)


def without_provenance(page: str) -> list[str]:
    parts = page.split("\n## ")[1:]
    return [part.splitlines()[0] for part in parts if "\n|" in part and not SAID.search(part)]


def test_every_table_is_dated_and_names_its_machine_and_command() -> None:
    assert without_provenance(PAGE) == []


def test_a_table_without_a_date_is_seen() -> None:
    assert without_provenance("# B\n\n## Speed\n\n| a |\n|---|\n| 5 ms |\n") == ["Speed"]
