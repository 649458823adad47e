"""Tests without assertions are rejected."""

import ast
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
CHECKS = {"raises", "warns", "assert_close", "assert_array_equal", "assert_allclose", "gradcheck"}


def checks_something(function: ast.FunctionDef, helpers: set[str]) -> bool:
    """Return whether a test asserts, expects an error, or calls a helper of its file that does."""
    for node in ast.walk(function):
        if isinstance(node, ast.Assert):
            return True
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name in CHECKS or name in helpers or name.startswith("assert_"):
                return True
    return False


def functions(tree: ast.Module) -> list[ast.FunctionDef]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]


@pytest.mark.parametrize("path", sorted(TESTS.rglob("test_*.py")), ids=lambda path: str(path.relative_to(TESTS)))
def test_every_test_checks_something(path: Path) -> None:
    everything = functions(ast.parse(path.read_text(encoding="utf-8")))
    helpers = {f.name for f in everything if not f.name.startswith("test_") and checks_something(f, set())}
    idle = [f.name for f in everything if f.name.startswith("test_") and not checks_something(f, helpers)]
    assert not idle


def test_check_detects_tests_without_assertions() -> None:
    tree = ast.parse("def test_idle():\n    print(1)\ndef test_busy():\n    assert 1 + 1 == 2\n")
    assert [checks_something(f, set()) for f in functions(tree)] == [False, True]
