"""From a study to its cells: contenders × grid × seeds."""

import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from lemma.errors import SpecError, unknown
from lemma.spec import Choice, Contender, ModelSpec, Recipe, Spec, StudySpec, choose, distribute

Words = Mapping[str, Any]

FROM_TOKENIZER = "It comes from the tokenizer, the same for every run: set data.tokenizer.vocabulary."
RESERVED = {
    "vocabulary": FROM_TOKENIZER,
    "V": FROM_TOKENIZER,
    "seed": "Give the study `seeds`, as in seeds=[1,2,3].",
    "family": "Name another contender, as in model = 'lstm'.",
}


@dataclass(frozen=True)
class Cell:
    """One run of a study before its budget is spent: who, where in the grid, with which seed."""

    contender: str
    point: Words
    """The grid words of this cell and their values, as the study writes them."""
    seed: int
    model: ModelSpec
    recipe: Recipe
    fixed: frozenset[str] = field(default=frozenset())
    """Words of the model that the study sets itself, so that no budget may change them."""

    @property
    def row_name(self) -> str:
        """The name of its row, which all its seeds share: `lstm-depth-2`."""
        parts = [self.contender, *(f"{word}-{plain(value)}" for word, value in self.point.items())]
        return "-".join(re.sub(r"[^\w.]+", "-", part).strip("-.") for part in parts)

    @property
    def name(self) -> str:
        """A stable, readable name for the run's folder: `lstm-depth-2-seed-1`."""
        return f"{self.row_name}-seed-{self.seed}"

    @property
    def place(self) -> str:
        """Where in the grid it stands, in words: `depth=2, context=5`."""
        return ", ".join(f"{word}={plain(value)}" for word, value in self.point.items())

    def with_model(self, model: ModelSpec) -> Self:
        """Return the same cell with a model of other sizes."""
        return replace(self, model=model)

    def __str__(self) -> str:
        return ", ".join(part for part in (self.contender, self.place, f"seed {self.seed}") if part)


def open_grid(study: StudySpec) -> tuple[Cell, ...]:
    """Open a study into its cells: seeds run fastest, contenders slowest.

    >>> from lemma.spec import read_study
    >>> [cell.name for cell in open_grid(read_study("table-a5", {"seeds": [1], "grid.context": [3], "claims": []}))]
    ['table-a5-depth-2-context-3-seed-1', 'table-a5-depth-4-context-3-seed-1']
    """
    bases = {contender.title: choose(contender.model) for contender in study.contenders}
    _refuse_foreign_words(study, bases)
    cells = tuple(
        _cell(study, contender, bases[contender.title], dict(zip(study.grid, values, strict=True)), seed)
        for contender in study.contenders
        for values in itertools.product(*study.grid.values())
        for seed in study.seeds
    )
    _refuse_equal_names(cells)
    return cells


def _cell(study: StudySpec, contender: Contender, base: Choice, point: Words, seed: int) -> Cell:
    kinds = _kinds(base)
    known = {word: value for word, value in study.words.items() if _knows(kinds, word)}
    model: dict[str, Any] = {}
    recipe: dict[str, Any] = {}
    for words in (known, contender.words, point):
        shares = distribute(words, kinds)
        model |= shares["model"]
        recipe |= shares["recipe"]
    return Cell(
        contender=contender.title,
        point=point,
        seed=seed,
        model=base.model.replace(**model),
        recipe=base.recipe.replace(**recipe, seed=seed),
        fixed=frozenset(model),
    )


def _kinds(base: Choice) -> dict[str, type[Spec]]:
    return {"model": type(base.model), "recipe": Recipe}


def _knows(kinds: Mapping[str, type[Spec]], word: str) -> bool:
    return any(word.partition(".")[0] in kind.known_words() for kind in kinds.values())


def _refuse_foreign_words(study: StudySpec, bases: Mapping[str, Choice]) -> None:
    """Refuse words that no model knows, that a contender does not know, or that are not the study's to set."""
    everything = {word: None for base in bases.values() for word in _known_words(base)}
    for word in study.words:
        if not any(_knows(_kinds(base), word) for base in bases.values()):
            raise SpecError(unknown("study.words: the word", word, everything))
    for contender in study.contenders:
        _refuse_unknown(contender, study.grid, "study.grid", bases[contender.title])
        _refuse_unknown(contender, contender.words, "study.contenders", bases[contender.title])
        _refuse_set_twice(contender, study.grid, bases[contender.title])
    for word in [*study.words, *study.grid, *(word for contender in study.contenders for word in contender.words)]:
        _refuse_reserved(word)


def _refuse_unknown(contender: Contender, words: Words, where: str, base: Choice) -> None:
    for word in words:
        if not _knows(_kinds(base), word):
            raise SpecError(unknown(f"{where}: for {contender.title}, the word", word, _known_words(base)))


def _known_words(base: Choice) -> list[str]:
    return [word for kind in _kinds(base).values() for word in kind.known_words() if word not in RESERVED]


def _refuse_reserved(word: str) -> None:
    if word in RESERVED:
        raise SpecError(f"study: '{word}' is no word for single runs. {RESERVED[word]}")


def _refuse_set_twice(contender: Contender, grid: Words, base: Choice) -> None:
    ours, theirs = (distribute(words, _kinds(base)) for words in (grid, contender.words))
    for owner, words in ours.items():
        if both := sorted(words.keys() & theirs[owner].keys()):
            raise SpecError(f"study: {contender.title} sets {both[0]}, which the grid sets too. Take one away.")


def _refuse_equal_names(cells: tuple[Cell, ...]) -> None:
    seen: dict[str, Cell] = {}
    for cell in cells:
        other = seen.setdefault(cell.name.lower(), cell)
        if other is not cell:
            raise SpecError(
                f"study: '{other}' and '{cell}' would both run in the folder {cell.name}. "
                "Give the contenders or the values names that differ in letters or digits."
            )


def plain(value: Any) -> str:
    """Write a grid value as a person would.

    >>> plain(True), plain(0.001)
    ('true', '0.001')
    """
    return ("true" if value else "false") if isinstance(value, bool) else str(value)
