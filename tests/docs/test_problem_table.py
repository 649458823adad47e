"""The gallery's table: each problem once, with a numeric test, an executed command and an anchor."""

import ast
import re
import shlex
import unicodedata
from dataclasses import dataclass
from pathlib import Path

import pytest

from pages.blocks import page_commands, read_blocks

ROOT = Path(__file__).parents[2]
GALLERY = ROOT / "docs" / "problems"
SIZES = {"A": 6, "B": 8, "C": 11, "D": 5, "E": 9}
EXPECTED = [f"{group}{number}" for group, size in SIZES.items() for number in range(1, size + 1)]
ROW = re.compile(
    r"^\| \[(?P<row>[A-E]\d+)\]\((?P<page>\w+\.md)#(?P<anchor>[\w-]+)\) \| (?P<what>[^|]+) "
    r"\| (?P<tests>`tests/[^|]+`) \| `(?P<command>(?:lemma |[a-z_.]+\().+?)` \|$",
    re.MULTILINE,
)


@dataclass(frozen=True)
class Row:
    """Line of the table."""

    row: str
    page: str
    anchor: str
    what: str
    tests: str
    command: str

    @property
    def tested_by(self) -> list[str]:
        return re.findall(r"`([^`]+)`", self.tests)


def read_rows(text: str) -> list[Row]:
    return [Row(**result.groupdict()) for result in ROW.finditer(text)]


def table() -> list[Row]:
    return read_rows((GALLERY / "index.md").read_text(encoding="utf-8"))


def read_test(test_id: str, root: Path = ROOT) -> tuple[ast.FunctionDef, ast.Module] | None:
    """Return a test and its file, or None if it does not exist."""
    path, _, name = test_id.partition("::")
    if not (root / path).is_file():
        return None
    tree = ast.parse((root / path).read_text(encoding="utf-8"))
    return next(((n, tree) for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == name), None)


def holds_a_number(node: ast.AST) -> bool:
    return any(isinstance(part, ast.Constant) and type(part.value) in (int, float) for part in ast.walk(node))


def assertions(function: ast.FunctionDef) -> list[ast.AST]:
    """Return the asserted expressions of `assert` and of torch's and numpy's functions."""
    calls = [node for node in ast.walk(function) if isinstance(node, ast.Call)]
    return [node.test for node in ast.walk(function) if isinstance(node, ast.Assert)] + [
        call for call in calls if ast.unparse(call.func).split(".")[-1].startswith("assert_")
    ]


def pairs(target: ast.expr, value: ast.expr) -> list[tuple[ast.expr, ast.expr]]:
    """Return pairs of target and value; `a, b = 1, 2` gives two."""
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
        return list(zip(target.elts, value.elts, strict=True))
    return [(target, value)]


def meanings(function: ast.FunctionDef, tree: ast.Module) -> dict[str, list[ast.AST]]:
    """Return the values of each name of a test, by assignment or `parametrize`."""
    result: dict[str, list[ast.AST]] = {arg.arg: list(function.decorator_list) for arg in function.args.args}
    assigned = [node for node in [*tree.body, *ast.walk(function)] if isinstance(node, ast.Assign)]
    for target, value in (pair for node in assigned for arg in node.targets for pair in pairs(arg, node.value)):
        for name in (part.id for part in ast.walk(target) if isinstance(part, ast.Name)):
            result.setdefault(name, []).append(value)
    return result


def asserts_a_number(function: ast.FunctionDef, tree: ast.Module) -> bool:
    """Return whether an assertion of a test contains a number, directly or through a name."""
    existing = meanings(function, tree)
    for asserted in assertions(function):
        names = [part.id for part in ast.walk(asserted) if isinstance(part, ast.Name)]
        if holds_a_number(asserted) or any(holds_a_number(value) for name in names for value in existing.get(name, [])):
            return True
    return False


def slug(title: str) -> str:
    """Return a heading's anchor as the site generates it."""
    base = unicodedata.normalize("NFKD", title).encode("ascii", "ignore").decode("ascii")
    return re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", base).strip().lower())


def anchors(text: str) -> set[str]:
    """Return the anchors of the headings of a page, generated or explicit."""
    headings = re.findall(r"^#+ (.+?)(?: \{#([\w-]+)\})?$", text, re.MULTILINE)
    return {labelled or slug(title) for title, labelled in headings}


def section(row: str, text: str) -> str:
    """Return the section of a page on one problem."""
    return next(part for part in re.split(r"^## ", text, flags=re.MULTILINE) if part.startswith(f"{row} "))


def runs(command: str, text: str) -> bool:
    """Return whether a command is in an executed block; … in a Python call stands for further arguments."""
    if command.startswith("lemma "):
        return shlex.split(command) in page_commands(text)
    begins = re.sub(r",? ?…\)$", "", command)
    bodies = [block.body for block in read_blocks(text) if block.kind == "python"]
    calls = [ast.unparse(node) for body in bodies for node in ast.walk(ast.parse(body)) if isinstance(node, ast.Call)]
    return any(call.replace("'", '"').startswith(begins) for call in calls)


def test_problem_table_lists_each_problem_once_in_order() -> None:
    assert [row.row for row in table()] == EXPECTED
    assert len(EXPECTED) == 39


@pytest.mark.parametrize("row", EXPECTED)
def test_problem_row_links_to_a_test_a_command_and_an_anchor(row: str) -> None:
    result = next(item for item in table() if item.row == row)
    tests = [read_test(test_id) for test_id in result.tested_by]
    assert tests and all(test is not None and asserts_a_number(*test) for test in tests), result.tests
    page = (GALLERY / result.page).read_text(encoding="utf-8")
    assert result.page == f"{row[0].lower()}.md" and result.anchor in anchors(page)
    assert runs(result.command, section(row, page)), result.command


TESTS = """
HELD, WORD = 0.219, "right"
def test_a():
    assert f() == 3
def test_b():
    size = 3
    assert f() == WORD
def test_c():
    assert f() == HELD
@pytest.mark.parametrize("number", [5])
def test_d(number):
    torch.testing.assert_close(f(), number)
@pytest.mark.parametrize("word", ["five"])
def test_e(word):
    assert f(word)
"""


def test_broken_problem_rows_are_detected(tmp_path: Path) -> None:
    (tmp_path / "t.py").write_text(TESTS)
    asserted = {name: read_test(f"t.py::test_{name}", tmp_path) for name in "abcdef"}
    assert [name for name, test in asserted.items() if test and asserts_a_number(*test)] == ["a", "c", "d"]
    assert asserted["f"] is None and read_test("gone.py::test_a", tmp_path) is None
    assert anchors("## A1 A model's parts\n### B {#b-2}\n") == {"a1-a-models-parts", "b-2"}
    assert anchors("## C5 · An encoder–decoder\n") == {"c5-an-encoderdecoder"}
    page = "```console\n$ lemma count rnn d=3  # so\n```\n"
    assert runs("lemma count rnn d=3", page) and not runs("lemma count rnn d=4", page)
    call = '```python\nprint(lemma.check("identity", "b5", I=64))\n```\n'
    assert runs('lemma.check("identity", "b5", I=64)', call) and runs('lemma.check("identity", "b5", …)', call)
    assert not runs('lemma.check("identity", "b6", …)', call) and not runs("lemma check identity b5 I=64", call)
    line = "| [A1](a.md#a1) | what | `tests/t.py::test_a`, `tests/t.py::test_b` | `lemma count rnn` |"
    assert read_rows(line)[0].tested_by == ["tests/t.py::test_a", "tests/t.py::test_b"]
    assert read_rows(line.replace("lemma", "make")) == []
