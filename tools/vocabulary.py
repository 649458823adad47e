"""Reject vague words in names and docstrings that start with a clause: `python -m tools.vocabulary`.

A name should say what a thing is in the field's words (docs/glossary.md); words such as `found`, `given` and `place`
say nothing about it. The docstring of a function starts with a verb, that of a class with a noun. Words, limits and
exceptions with their reasons are in vocabulary.toml.
"""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).parents[1]
SETTINGS = Path(__file__).with_name("vocabulary.toml")


@dataclass(frozen=True)
class Finding:
    """A vague name or a docstring that starts with a clause."""

    path: str
    line: int
    kind: str  # "name" or "docstring"
    text: str
    word: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.kind} '{self.text}' uses '{self.word}'"


def words_of(name: str) -> list[str]:
    """Split an identifier into lower-case words: `KVCache_size` gives kv, cache, size."""
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)]


def names_in(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield every name that a module defines, with its line: functions, classes, arguments, variables, attributes.

    Names of tests are left out: they are sentences.
    """
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) if name.startswith("test_"):
                pass
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.name, node.lineno
            case ast.arg():
                yield node.arg, node.lineno
            case ast.Name(ctx=ast.Store()):
                yield node.id, node.lineno
            case ast.Attribute(ctx=ast.Store()):
                yield node.attr, node.lineno


def docstrings_in(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield the first line of every docstring of a function or class, with its line number."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and (
            text := ast.get_docstring(node)
        ):
            yield text.splitlines()[0], node.lineno


def check_file(path: Path, vague: frozenset[str], clauses: frozenset[str]) -> tuple[list[Finding], int, int]:
    """Return the findings in a file, and how many names and docstrings it has."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    relative = path.relative_to(ROOT).as_posix()
    findings, names, docstrings = [], 0, 0
    for name, line in names_in(tree):
        names += 1
        findings += [Finding(relative, line, "name", name, word) for word in words_of(name) if word in vague]
    for text, line in docstrings_in(tree):
        docstrings += 1
        first = re.match(r"[A-Za-z]+", text)
        if first and first[0] in clauses:
            findings.append(Finding(relative, line, "docstring", text, first[0]))
    return findings, names, docstrings


def main() -> int:
    """Print rates per group of folders, and the findings of a group that exceeds its limits."""
    settings = tomllib.loads(SETTINGS.read_text(encoding="utf-8"))
    vague, clauses = frozenset(settings["vague"]), frozenset(settings["clauses"])
    exceptions = settings["exceptions"]
    failed = False
    for group in settings["groups"]:
        findings, names, docstrings = [], 0, 0
        for folder in group["folders"]:
            for path in sorted((ROOT / folder).rglob("*.py")):
                new, more_names, more_docstrings = check_file(path, vague, clauses)
                findings += [
                    finding
                    for finding in new
                    if not any(
                        finding.word in exception["words"] and fnmatch(finding.path, exception["files"])
                        for exception in exceptions
                    )
                ]
                names, docstrings = names + more_names, docstrings + more_docstrings
        name_rate = 1000 * sum(finding.kind == "name" for finding in findings) / max(1, names)
        clause_rate = 100 * sum(finding.kind == "docstring" for finding in findings) / max(1, docstrings)
        too_many = name_rate > group["names_per_1000"] or clause_rate > group["clause_percent"]
        failed |= too_many
        print(
            f"{' '.join(group['folders'])}: {name_rate:.1f} vague names per 1,000 (limit {group['names_per_1000']}), "
            f"{clause_rate:.1f} % of docstrings start with a clause (limit {group['clause_percent']})"
        )
        if too_many or "--all" in sys.argv:
            print("\n".join(map(str, findings)))
    return failed


if __name__ == "__main__":
    sys.exit(main())
