"""From what a person names (an example, a file, a table) to a checked case."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, Generic, TypeVar

from lemma.errors import SpecError, unknown
from lemma.looking.worked.cases import AttentionCase, Case, CrossCase
from lemma.looking.worked.graph_case import GraphCase
from lemma.looking.worked.lstm_case import LstmCase
from lemma.looking.worked.matching_case import MatchingCase
from lemma.spec.toml import read_toml, to_toml
from lemma.typeset import fit

Given = str | Path | Mapping[str, Any]
"""An example's name, the path of a TOML file, or the words themselves."""
Kind = TypeVar("Kind", bound=Case)
COMMANDS: dict[type[Case], str] = {
    AttentionCase: "attention",
    CrossCase: "cross",
    GraphCase: "graph",
    LstmCase: "lstm",
    MatchingCase: "matching",
}
MARKS = {"attention": "sentences", "cross": "queries", "graph": "edges", "lstm": "c_prev", "matching": "W_i"}
"""The word that tells a file of one kind from those of the others."""
LARGEST = 1 << 20


@dataclass(frozen=True)
class Example:
    """A case that comes with Lemma."""

    name: str
    kind: str
    title: str


@dataclass(frozen=True)
class Examples:
    """The cases that come with Lemma, for one kind of looking."""

    kind: str
    listed: tuple[Example, ...]

    def __str__(self) -> str:
        width = max(len(example.name) for example in self.listed)
        lines = [f"{example.name:<{width}}  {example.title}" for example in self.listed]
        name = self.listed[0].name
        return fit(
            "\n".join(
                [
                    *lines,
                    f"Look at one:          {command(self.kind)} {name}",
                    f"A copy to start from: {command(self.kind)} {name} --out mine.toml",
                ]
            )
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {"kind": self.kind, "examples": [{"name": one.name, "title": one.title} for one in self.listed]}


@dataclass(frozen=True)
class Found(Generic[Kind]):
    """A case, where it was found (for messages) and its text."""

    case: Kind
    where: str
    text: str


def read_case(kind: type[Kind], given: Given, changes: Mapping[str, Any]) -> Found[Kind]:
    """Find a case and check it; `changes` that are not None take the place of what it says."""
    where, text, table = _find(COMMANDS[kind], given)
    _refuse_other_kind(COMMANDS[kind], where, table)
    changed = {word: value for word, value in changes.items() if value is not None}
    case = kind.read({**table, **changed}, where)
    return Found(case, where, text or to_toml(case.to_dict()))


def command(kind: str) -> str:
    """What is typed before the name of a case of this kind."""
    return "lemma search --matrices" if kind == "matching" else f"lemma look {kind}"


def list_examples(kind: str) -> Examples:
    """The shipped cases of a kind."""
    return Examples(kind, tuple(example for example in _shipped().values() if example.kind == kind))


def _shipped() -> dict[str, Example]:
    tables = {path.stem: read_toml(path) for path in sorted(_folder().glob("*.toml"))}
    return {name: Example(name, _kind_of(table), str(table.get("title", ""))) for name, table in tables.items()}


def _folder() -> Path:
    return Path(str(files("lemma.looking.worked"))) / "examples"


def _kind_of(table: Mapping[str, Any]) -> str:
    return next((kind for kind, mark in MARKS.items() if mark in table), "")


def _find(kind: str, given: Given) -> tuple[str, str, dict[str, Any]]:
    """Where the case is, its text (none if it was given as words) and its words."""
    if isinstance(given, Mapping):
        return "the case", "", dict(given)
    path = _file(kind, given)
    where = str(given)
    if path.is_file() and path.stat().st_size > LARGEST:
        raise SpecError(f"{where}: {path.stat().st_size:,} bytes are no small case; at most {LARGEST:,} are read.")
    table = read_toml(path)
    return where, path.read_text(encoding="utf-8"), table


def _file(kind: str, given: str | Path) -> Path:
    path, shipped = Path(given), _shipped()
    if str(given) in shipped and not path.is_file():
        return _folder() / f"{given}.toml"
    if not path.suffix and path.name == str(given) and not path.exists():
        known = [name for name, example in shipped.items() if example.kind == kind]
        raise SpecError(unknown("example", str(given), known) + " Or give the path of a TOML file.")
    return path


def _refuse_other_kind(kind: str, where: str, table: Mapping[str, Any]) -> None:
    found = _kind_of(table)
    if found and found != kind:
        raise SpecError(
            f"{where}: it holds '{MARKS[found]}', so it is a case for: {command(found)} {where}. "
            f"A case for {kind} holds '{MARKS[kind]}'."
        )
