"""A small case that is worked out by hand: its TOML file, what its result has in common, and what is right of it."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self, TypeVar

import numpy as np
from jaxtyping import Float
from pydantic import BeforeValidator, Field, ValidationError

from lemma.errors import InputError, SpecError, describe_unknown
from lemma.report.numbers import escape_invisible, format_number, pluralize, shorten
from lemma.report.result import Block, Heading, Result, Table
from lemma.report.text import wrap_lines
from lemma.spec.base import Spec, read_toml, to_toml

Array = Float[np.ndarray, "..."]
Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
NumberRow = Annotated[tuple[Number, ...], Field(min_length=1, max_length=100)]
NumberRows = Annotated[tuple[NumberRow, ...], Field(min_length=1, max_length=100)]
Strings = Annotated[tuple[str, ...], BeforeValidator(lambda value: (value,) if isinstance(value, str) else value)]
"""Texts; one alone needs no brackets."""
MAX_MAGNITUDE = 1e100
"""Numbers past this are refused: their products could overflow."""
MAX_FILE_BYTES = 1 << 20

KIND_FIELDS = {"attention": "sentences", "cross": "queries", "graph": "edges", "lstm": "c_prev", "matching": "W_i"}
"""For each kind of case the word that only its files hold."""
EXAMPLES = Path(__file__).parent / "examples"

# What is expected under a word of a file, and how it is written.
MATRIX_FIELDS = ("W_Q", "W_K", "W_V", "W_u", "W_f", "W_o", "W_c", "W_y", "W_i", "W_t", "I", "T", "X", "W")
VECTOR_FIELDS = ("gamma_u", "gamma_f", "gamma_o", "candidate", "c_prev", "a_prev", "h_prev", "x", "da_next", "dh_next")
VECTOR_FIELDS += ("dc_next", "b_u", "b_f", "b_o", "b_c", "b_y")
NAMED_VECTOR_FIELDS = ("vectors", "queries", "source")
LIST_FIELDS = ("sentences", "focus", "nodes", "edges", "image_names", "sentence_names")
FIELD_FORMS = {
    **{name: ("a matrix", f"{name} = [[1, 0], [0, 1]]") for name in MATRIX_FIELDS},
    **{name: ("a vector", f"{name} = [0.5, 0.9]") for name in VECTOR_FIELDS},
    **{name: ("named vectors", f"{name} = {{cat = [1, 0], dog = [0, 1]}}") for name in NAMED_VECTOR_FIELDS},
    "y": ("a one-hot vector", "y = [0, 1, 0]"),
    "other_words": ("a vector", "other_words = [0, 0]"),
    "sentences": ("one sentence or several", 'sentences = ["the cat sat"]'),
    "focus": ("a word or several", 'focus = ["cat"]'),
    "nodes": ("names", 'nodes = ["a", "b"]'),
    "edges": ("pairs of nodes", 'edges = [["a", "b"], ["b", "c"]]'),
    "image_names": ("names", 'image_names = ["a cat", "a dog"]'),
    "sentence_names": ("names", 'sentence_names = ["a cat", "a dog"]'),
}


class Case(Spec):
    """What the file of every case has in common. Mistakes are named in the words of the file."""

    kind: ClassVar[str]

    title: str = ""
    """What the case shows."""

    @classmethod
    def read(cls, settings: Mapping[str, Any], source: str) -> Self:
        """Check a case as a person wrote it."""
        known = cls.setting_names()
        misplaced = [
            f"{source}: {word} is inside the table [{name}]; move it above the tables."
            for name in NAMED_VECTOR_FIELDS
            if isinstance(settings.get(name), Mapping)
            for word, value in settings[name].items()
            if word in known
            and word not in settings
            and (word in (*MATRIX_FIELDS, "other_words") or not _is_vector(value))
        ]
        if misplaced:  # below the heading of a table, TOML takes a word for a part of it
            raise SpecError("\n".join(misplaced))
        try:
            return cls.model_validate(settings)
        except ValidationError as error:
            lines = [
                describe_unknown(f"{source}: the setting", str(mistake["loc"][0]), known)
                if mistake["type"] == "extra_forbidden"
                else f"{source}: {_describe_error(mistake, settings)}"
                for mistake in error.errors()
                # entries that do not fit are not counted; each has been named already
                if mistake["type"] != "too_short" or not mistake["input"]
            ]
            raise SpecError("\n".join(dict.fromkeys(lines))) from None


def _describe_error(mistake: Any, words: Mapping[str, Any]) -> str:
    """One of pydantic's mistakes, said with its place in the file; rows and numbers are counted from 1."""
    word, *path = mistake["loc"] or ("",)
    kind, got = mistake["type"], shorten(repr(mistake["input"]), 40)
    what, example = FIELD_FORMS.get(str(word), ("", ""))
    wanted = f" Give {what}, as in {example}." if what else ""
    if kind == "missing":
        return f"{word} is missing.{wanted}"
    if what and kind in ("tuple_type", "dict_type"):
        return f"{word} = {shorten(repr(words.get(str(word))), 40)}: expected {what}, as in {example}."
    counts = ("row", "number") if word in MATRIX_FIELDS else ("entry",) if word in LIST_FIELDS else ("number",)
    steps = [step + 1 for step in path if isinstance(step, int)]
    names = ".".join([str(word), *(step for step in path if isinstance(step, str))])
    places = ", ".join(f"{count} {step}" for count, step in zip(counts, steps, strict=False))
    place = f"{names}: {places}" if places else names
    if kind == "too_short":
        return f"{place} is empty.{wanted}"
    if kind == "too_long":
        there, limit = len(mistake["input"]), mistake["ctx"]["max_length"]
        return f"{place} is too long for work by hand: {there:,}, at most {limit}."
    if kind in ("float_type", "finite_number"):
        return f"{place} = {got}: give a finite number."
    return f"{place} = {got}: {mistake['msg'][0].lower()}{mistake['msg'][1:]}."


def _is_vector(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str) and all(isinstance(x, int | float) for x in value)


CaseLike = str | Path | Mapping[str, Any]
"""The name of an example, the path of a TOML file, or the words of a case."""
CaseT = TypeVar("CaseT", bound=Case)


@dataclass(frozen=True)
class CaseExamples:
    """The cases of one kind that come with Lemma: titles by name."""

    kind: str
    titles: Mapping[str, str]

    def __str__(self) -> str:
        width, first = max(map(len, self.titles)), next(iter(self.titles))
        lines = [f"{name:<{width}}  {title}" for name, title in self.titles.items()]
        lines.append(f"Look at one:          {case_command(self.kind)} {first}")
        lines.append(f"A copy to start from: {case_command(self.kind)} {first} --out mine.toml")
        return wrap_lines("\n".join(lines))

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {"kind": self.kind, "examples": [{"name": name, "title": title} for name, title in self.titles.items()]}


def list_examples(kind: str) -> CaseExamples:
    """The cases of a kind that come with Lemma."""
    tables = {path.stem: read_toml(path) for path in sorted(EXAMPLES.glob("*.toml"))}
    titles = {name: str(table.get("title", "")) for name, table in tables.items() if detect_kind(table) == kind}
    return CaseExamples(kind, titles)


def detect_kind(words: Mapping[str, Any]) -> str:
    """The kind of a case by the words that it holds; empty if they are of no kind."""
    return next((kind for kind, mark in KIND_FIELDS.items() if mark in words), "")


def case_command(kind: str) -> str:
    """The command for a case of this kind, without the name of the case."""
    return "lemma search --matrices" if kind == "matching" else f"lemma look {kind}"


def read_case(case_class: type[CaseT], source: CaseLike, overrides: Mapping[str, Any]) -> tuple[CaseT, str, str]:
    """A case, where it was found (for messages) and its text; `changes` that are not None replace what it says."""
    if isinstance(source, Mapping):
        where, text, words = "the case", "", dict(source)
    else:
        path, where = Path(source), str(source)
        if not path.suffix and path.name == where and not path.is_file():  # a name
            if (EXAMPLES / f"{where}.toml").is_file():
                path = EXAMPLES / f"{where}.toml"
            elif not path.exists():
                known = describe_unknown("example", where, list_examples(case_class.kind).titles)
                raise SpecError(f"{known} Or give the path of a TOML file.")
        if path.is_file() and (size := path.stat().st_size) > MAX_FILE_BYTES:
            raise SpecError(
                f"{where}: {size:,} bytes are too many for a case by hand; at most {MAX_FILE_BYTES:,} are read."
            )
        words = read_toml(path)
        text = path.read_text(encoding="utf-8")
    found = detect_kind(words)
    if found and found != case_class.kind:
        raise SpecError(
            f"{where}: it holds '{KIND_FIELDS[found]}', so it is a case for: {case_command(found)} {where}. "
            f"A case for {case_class.kind} holds '{KIND_FIELDS[case_class.kind]}'."
        )
    changed = {word: value for word, value in overrides.items() if value is not None}
    case = case_class.read({**words, **changed}, where)
    return case, where, text or to_toml(case.to_dict())


def as_matrix(name: str, rows: Sequence[Sequence[float]], where: str, names: Sequence[str] = ()) -> Array:
    """A matrix as it was written, or named vectors as its rows; they must be equally long."""
    odd = next((place for place, row in enumerate(rows) if len(row) != len(rows[0])), None)
    if odd is not None:
        here, first = (f"'{names[place]}'" if names else f"row {place + 1}" for place in (odd, 0))
        raise SpecError(
            f"{where}: {name}: {here} has {pluralize(len(rows[odd]), 'number')}, {first} has {len(rows[0])}; "
            f"all {'vectors' if names else 'rows of a matrix'} are equally long."
        )
    return np.array(rows, dtype=np.float64)


def check_magnitudes(where: str, *made: Array) -> None:
    """Refuse results that grow too large to work with."""
    if not all(np.abs(one).max() <= MAX_MAGNITUDE for one in made):
        raise InputError(
            f"{where}: a number grows past {MAX_MAGNITUDE:.0e}, too large to work with. Give smaller ones."
        )


def argmax_names(names: Sequence[str], values: Float[np.ndarray, " names"]) -> tuple[str, ...]:
    """The names of the largest values; equal up to rounding counts as equal."""
    near = np.isclose(values, np.nanmax(values), rtol=1e-12, atol=1e-15)
    return tuple(name for name, chosen in zip(names, near, strict=True) if chosen)


def unit_vectors(vectors: Float[np.ndarray, "names width"]) -> Float[np.ndarray, "names width"]:
    """Vectors of length 1, NaN for a zero vector; first brought to size 1, so that squares are not lost."""
    sizes = np.abs(vectors).max(axis=1, keepdims=True)
    vectors = np.divide(vectors, sizes, out=np.full_like(vectors, np.nan), where=sizes > 0)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def json_rows(values: Float[np.ndarray, "rows columns"]) -> list[list[float | None]]:
    """The rows of a matrix for JSON, which has no infinity and no NaN: these become None."""
    return [[value if np.isfinite(value) else None for value in row] for row in values.tolist()]


Best = TypeVar("Best")


def best_matches(
    kind: Callable[..., Best], rows: Sequence[str], columns: Sequence[str], by: Array, cosines: Array
) -> list[Best]:
    """For every row the columns of the largest value and of the largest cosine, with both, and whether they agree."""
    found: list[Best] = []
    for name, values, row in zip(rows, by, cosines, strict=True):
        defined = not np.isnan(row).all()
        best, nearest = argmax_names(columns, values), argmax_names(columns, row) if defined else ()
        cosine = float(np.nanmax(row)) if defined else None
        found.append(kind(name, best, float(values.max()), nearest, cosine, best == nearest))
    return found


def best_table(header: tuple[str, str], found: Iterable[tuple[Any, ...]], decimals: int, title: str = "") -> Table:
    """The rows of `best_of` as a table; `header` names the first choice and its value."""
    rows = [
        (
            name,
            " = ".join(best),
            format_number(value, decimals),
            " = ".join(nearest) or "none",
            "undefined" if cosine is None else format_number(cosine, decimals),
            "yes" if agree else "no",
        )
        for name, best, value, nearest, cosine, agree in found
    ]
    return Table(("", *header, "by cosine", "cosine", "agree"), rows, title, is_text=True)


Labels = tuple[str, ...]


@dataclass(frozen=True, eq=False)
class ExpectedValue:
    """What is right under one name of a worked case: one value, a vector or a matrix."""

    unit: ClassVar[str]

    name: str
    values: Any
    labels: tuple[Labels, ...]
    """The labels of each axis."""
    meaning: str = ""
    aliases: Labels = ()
    """What else a person may call it."""
    label_aliases: Labels = ()
    """Of a vector: what else its labels may be called, one for each."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes of its axes."""
        return tuple(map(len, self.labels))

    @property
    def shape_text(self) -> str:
        """What is to be given, in words."""
        sizes = "×".join(map(str, self.shape)) or f"a {self.unit}"
        return f"{sizes} {self.unit}s" if len(self.shape) == 1 else sizes


@dataclass(frozen=True, eq=False)
class ExpectedNumbers(ExpectedValue):
    """An array; `slips` are what comes out by a known mistake, by what the mistake is."""

    unit: ClassVar[str] = "number"

    mistakes: Mapping[str, Array] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class ExpectedWords(ExpectedValue):
    """For each place the words that are right, any of them: several where they tie."""

    unit: ClassVar[str] = "word"


def number_labels(count: int, prefix: str = "") -> Labels:
    """Labels that are counted from 1.

    >>> numbered(2, "x_")
    ('x_1', 'x_2')
    """
    return tuple(f"{prefix}{place}" for place in range(1, count + 1))


def expect_numbers(
    names: str,
    values: Array | float,
    labels: Iterable[Iterable[str]] = (),
    meaning: str = "",
    mistakes: Mapping[str, Array] | None = None,
) -> ExpectedNumbers:
    """Numbers under a name, and what else they may be called, separated by blanks; slips of another shape are left out.

    Axes without labels are counted from 1.
    """
    name, *spellings = names.split()
    array, named = np.asarray(values, dtype=np.float64), tuple(map(tuple, labels))
    named += tuple(map(number_labels, array.shape[len(named) :]))
    own = {said: made for said, made in (mistakes or {}).items() if made.shape == array.shape}
    return ExpectedNumbers(name, array, named, meaning, tuple(spellings), mistakes=own)


@dataclass(frozen=True, eq=False)
class WorkedCase(Result):
    """A case with every number on the way, and what may be claimed of it."""

    indent: ClassVar[str] = "  "
    default_title: ClassVar[str]
    """The title of a case that has none."""
    hint: ClassVar[str] = ""
    """How to see what is left out of a large case."""

    case: Case
    source: str
    """The case as it was written."""
    full: bool = field(default=False, kw_only=True)
    """Whether everything is printed, however large the case is."""
    decimals: int = field(default=4, kw_only=True)

    @property
    def title(self) -> str:
        """The title of the case."""
        return escape_invisible(self.case.title) or self.default_title

    @property
    def is_abridged(self) -> bool:
        """Whether something is not printed unless `full`."""
        return False

    def blocks(self) -> list[Block]:
        """What is printed: of a large case only the most important, unless `full`."""
        hint = [Heading(self.hint)] if self.is_abridged else []
        return [Heading(self.title, 1, underlined=True), *self.step_blocks(self.full), *hint]

    def details(self) -> list[Block]:
        """The same with every matrix."""
        return [Heading(self.title, 1, underlined=True), *self.step_blocks(every_matrix=True)]

    def step_blocks(self, every_matrix: bool) -> list[Block]:
        """The steps, one after the other."""
        raise NotImplementedError

    def expected(self) -> list[ExpectedValue]:
        """Everything that may be claimed of the case, by name."""
        raise NotImplementedError

    def writers(self) -> dict[str, Callable[[], str]]:
        """The usual files, and the case itself to start another from."""
        return super().writers() | {".toml": lambda: self.source}
