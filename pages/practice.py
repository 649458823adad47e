"""The page of exercises: statements of all that come with Lemma, with hints and solutions behind a click."""

import tomllib
from html import escape
from pathlib import Path

from lemma.checking.exercises.base import HelpLevel
from lemma.checking.exercises.registry import list_library, read_exercise
from lemma.spec.exercises import KINDS

INTRODUCTION = """# Exercises

{number} exercises of {kinds} kinds, next to the [39 problems](problems/index.md). Work them on paper, and check any
line of your answer in the terminal; a wrong one is explained, and nothing is given away before you ask:

```bash
lemma check {kind} {name} "{asked} = …"
lemma check {kind} {name} --names          # the names that an answer can use
lemma check {kind} {name} --show hint      # then: --show where "your answer", --show solution
```

Each is a TOML file of at most 15 lines in `lemma/checking/exercises/library`; how to write your own:
[kinds of exercises](exercises.md). Made by `python -m pages practice docs/practice.md`.
"""


def write_practice(page: Path) -> None:
    """Write the page of all exercises in the library."""
    page.write_text(format_practice(), encoding="utf-8")


def format_practice() -> str:
    """Return the page as Markdown: a section for each kind, and in it every exercise of the library."""
    library = {name: tomllib.loads(path.read_text(encoding="utf-8")) for name, path in list_library().items()}
    by_kind = {kind: [name for name, table in library.items() if table["kind"] == kind] for kind in KINDS}
    by_kind = {kind: names for kind, names in by_kind.items() if names}
    kind, (name, *_) = next(iter(by_kind.items()))
    asked = (library[name].get("asks") or ["NAME"])[0]
    head = INTRODUCTION.format(number=len(library), kinds=len(by_kind), kind=kind, name=name, asked=asked)
    sections = [head]
    for kind, names in by_kind.items():
        sections.append(f"## {kind[:1].upper()}{kind[1:]}\n\n{KINDS[kind].summary}\n")
        sections += [format_exercise(name) for name in names]
    return "\n".join(sections)


def format_exercise(name: str) -> str:
    """Return one exercise as Markdown: title, statement, what is asked for, and help behind clicks."""
    exercise = read_exercise(name)
    asked = f"\nAsked for: {', '.join(f'`{ask}`' for ask in exercise.asks)}.\n" if exercise.asks else ""
    levels: tuple[HelpLevel, ...] = ("hint", "solution")
    helps = "\n".join(format_help(level, exercise.help_with(level).lines) for level in levels)
    command = f"`lemma check {exercise.kind} {name}`"
    return f"### {exercise.title}\n\n{exercise.text.strip()}\n{asked}\n{command}\n\n{helps}"


def format_help(level: str, lines: tuple[str, ...]) -> str:
    """Return lines of help behind a click, as HTML."""
    body = escape("\n".join(lines))
    return f"<details><summary>{level.capitalize()}</summary><pre>{body}</pre></details>\n"
