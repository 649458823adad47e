"""The TOML file of a worked case, read and checked."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, Self, TypeVar, cast

import numpy as np
from jaxtyping import Float
from pydantic import AliasChoices, BeforeValidator, Field, ValidationError, field_validator, model_validator

from lemma.errors import SpecError, unknown
from lemma.report.numbers import shortened
from lemma.report.text import fit
from lemma.spec.base import Spec, read_toml, to_toml

# What does not fit in a case, said in the words of the file that it was written in.


TABLES = ("vectors", "queries", "source")
MATRICES = ("W_Q", "W_K", "W_V", "W_u", "W_f", "W_o", "W_c", "W_y", "W_i", "W_t", "I", "T", "X", "W")
GATES = ("gamma_u", "gamma_f", "gamma_o", "candidate")
STATES = ("c_prev", "a_prev", "h_prev", "x", "da_next", "dh_next", "dc_next", "b_u", "b_f", "b_o", "b_c", "b_y")
NAMED = ("sentences", "focus", "nodes", "edges", "image_names", "sentence_names")
FORMS = {
    **{name: ("a matrix", f"{name} = [[1, 0], [0, 1]]") for name in MATRICES},
    **{name: ("a vector", f"{name} = [0.5, 0.9]") for name in (*GATES, *STATES)},
    "y": ("a one-hot vector", "y = [0, 1, 0]"),
    **{name: ("named vectors", f"{name} = {{cat = [1, 0], dog = [0, 1]}}") for name in TABLES},
    "sentences": ("one sentence or several", 'sentences = ["the cat sat"]'),
    "other_words": ("a vector", "other_words = [0, 0]"),
    "focus": ("a word or several", 'focus = ["cat"]'),
    "nodes": ("names", 'nodes = ["a", "b"]'),
    "edges": ("pairs of nodes", 'edges = [["a", "b"], ["b", "c"]]'),
    **{name: ("names", f'{name} = ["a cat", "a dog"]') for name in ("image_names", "sentence_names")},
}
"""What is expected under a word, and how it is written."""


def misplaced(words: Mapping[str, Any], where: str, known: Sequence[str]) -> str:
    """Name the words that stand below a table's heading, where TOML takes them for the table's own; or nothing."""
    tables = {name: words[name] for name in TABLES if isinstance(words.get(name), Mapping)}
    lines = [
        f"{where}: {word} stands inside [{name}]; move it above the tables."
        for name, table in tables.items()
        for word, value in table.items()
        if word in known and word not in words and (word in (*MATRICES, "other_words") or not _is_vector(value))
    ]
    return "\n".join(lines)


def mistakes(error: ValidationError, words: Mapping[str, Any], where: str, known: list[str]) -> str:
    """Turn pydantic's report into one line a mistake, each said once."""
    return "\n".join(dict.fromkeys(_said(error, words, where, known)))


def _said(error: ValidationError, words: Mapping[str, Any], where: str, known: list[str]) -> Iterator[str]:
    for mistake in error.errors():
        word, *path = mistake["loc"] or ("",)
        if mistake["type"] == "too_short" and mistake["input"]:
            continue  # entries that do not fit are not counted; each has been named already
        if mistake["type"] == "extra_forbidden":
            yield unknown(f"{where}: the word", str(word), known)
        else:
            yield f"{where}: " + _one(mistake, str(word), path, words.get(str(word)))


def _one(mistake: Any, word: str, path: list[Any], value: Any) -> str:
    kind, place = mistake["type"], _place(word, path)
    if kind == "missing":
        return f"{word} is missing.{_wanted(word)}"
    if kind == "too_short":
        return f"{place} is empty.{_wanted(word)}"
    if kind == "too_long":
        limit, there = mistake["ctx"]["max_length"], len(mistake["input"])
        return f"{place} is too long for work by hand: {there:,}, at most {limit}."
    if word in FORMS and kind in ("tuple_type", "dict_type"):
        what = "no matrix" if word in MATRICES else f"not {FORMS[word][0]}"
        return f"{word} = {_written(value)} is {what}.{_wanted(word)}"
    if kind in ("float_type", "finite_number"):
        return f"{place} = {_written(mistake['input'])}: give a finite number."
    return f"{place} = {_written(mistake['input'])}: {mistake['msg'][0].lower()}{mistake['msg'][1:]}."


def _wanted(word: str) -> str:
    return f" Give {FORMS[word][0]}, as in {FORMS[word][1]}." if word in FORMS else ""


def _place(word: str, path: list[Any]) -> str:
    """Where in the file: rows and numbers are counted from 1, as a person counts them."""
    names = [word, *(step for step in path if isinstance(step, str))]
    steps = [step + 1 for step in path if isinstance(step, int)]
    kinds = ("row", "number") if word in MATRICES else ("number",) if word not in NAMED else ("entry",)
    counts = [f"{kind} {step}" for kind, step in zip(kinds, steps, strict=False)]
    return ": ".join([".".join(names), *([", ".join(counts)] if counts else [])])


def _written(value: Any) -> str:
    """A value as it stands in a file, cut where it is long."""
    return shortened(repr(value), 40)


def _is_vector(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str) and all(isinstance(x, int | float) for x in value)


# What a person writes in a file to have a small case worked out; of attention: vectors, three matrices, and how.


Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Vector = Annotated[tuple[Number, ...], Field(min_length=1, max_length=100)]
Rows = Annotated[tuple[Vector, ...], Field(min_length=1, max_length=100)]
Vectors = Annotated[dict[str, Vector], Field(min_length=1, max_length=100)]
MOST_WORDS = 100
"""A longer sentence is no small case: its tables could not be read."""


class Case(Spec):
    """What every case has in common."""

    title: str = ""
    """What the case shows."""

    @classmethod
    def read(cls, words: Mapping[str, Any], where: str) -> Self:
        """Check a case as a person wrote it; what does not fit is said in the words of the file."""
        found = misplaced(words, where, cls.known_words())
        if found:
            raise SpecError(found)
        try:
            return cls.model_validate(words)
        except ValidationError as error:
            raise SpecError(mistakes(error, words, where, cls.known_words())) from None


class Attending(Case):
    """What attention and cross-attention have in common."""

    focus: tuple[str, ...] = ()
    """The words, or named vectors, whose row of arithmetic is shown."""
    scaled: bool = True
    """Whether q·k is divided by the square root of the key's length."""
    apply: Literal["W x", "x W"] = "W x"
    """How a matrix is written: with a row for each output, or with a row for each input."""
    W_Q: Rows
    """The query map."""
    W_K: Rows
    """The key map."""
    W_V: Rows
    """The value map."""

    @field_validator("focus", mode="before")
    @classmethod
    def _one_focus(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value


class AttentionCase(Attending):
    """Sentences whose words look at each other."""

    sentences: Annotated[tuple[str, ...], Field(min_length=1, max_length=20)]
    """Each a text whose words stand between white space."""
    passes: Annotated[int, Field(strict=True, ge=1, le=50)] = 1
    """How often attention is applied; the outputs of one pass are the encodings of the next."""
    mask: Literal["none", "causal"] = "none"
    """Whether later words are hidden."""
    vectors: dict[str, Vector] = Field(default_factory=dict)
    """The encoding of each word."""
    other_words: Vector | None = None
    """The encoding of every word that is not listed."""

    @field_validator("sentences", mode="before")
    @classmethod
    def _one_sentence(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value


class CrossCase(Attending):
    """Named vectors that look at other named vectors."""

    queries: Vectors
    """The vectors that look."""
    source: Vectors
    """The vectors that are looked at."""


# What a person writes in a file to have an LSTM step worked out: gate values or weights, and what follows them.


LETTERS = "ufoc"
"""Update, forget and output gate, and the candidate."""
SPELLINGS: dict[str, tuple[str, ...]] = {
    **{f"gamma_{letter}": (f"Γ_{letter}", f"G_{letter}", f"Gamma_{letter}") for letter in "ufo"},
    "candidate": ("c_tilde", "c̃"),
    "a_prev": ("h_prev",),
    "da_next": ("dh_next",),
}
"""Other ways to write a word."""
OF_WEIGHTS = ("a_prev", "x", *(f"{kind}_{letter}" for kind in "Wb" for letter in LETTERS))
"""The words of a case whose gates are worked out."""


def _as_vector(value: Any) -> Any:
    """A bare number is a cell of one unit."""
    return (value,) if isinstance(value, (int, float)) and not isinstance(value, bool) else value


def _also(word: str) -> Any:
    return Field(validation_alias=AliasChoices(word, *SPELLINGS[word]))


Unit = Annotated[Vector, BeforeValidator(_as_vector)]


class LstmCase(Case):
    """What both kinds of case have in common: the state before, the output layer, and what arrives from later steps."""

    letter: Literal["a", "h"] = "a"
    """What the hidden state is called; h where the case says h_prev or dh_next."""
    c_prev: Unit
    """The cell state before the step."""
    W_y: Rows | None = None
    """The output layer, a row for each class."""
    b_y: Unit | None = None
    """Its bias; 0 if none is given."""
    y: Vector | None = None
    """The target: one-hot, or shares that add up to 1."""
    da_next: Annotated[Unit | None, _also("da_next")] = None
    """The gradient of a_t that arrives from the next step; 0 if none is given."""
    dc_next: Unit | None = None
    """The gradient of c_t that arrives from the next step; 0 if none is given."""

    @classmethod
    def read(cls, words: Mapping[str, Any], where: str) -> Self:
        """Check a case: one with gates given or one with weights given, as its words tell."""
        _refuse_twice(words, where)
        kind = _kind_of(words, where) if cls is LstmCase else cls
        return cast(Self, super(LstmCase, kind).read(words, where))

    @classmethod
    def known_words(cls) -> list[str]:
        """The words of the case, and h for a."""
        names = super().known_words()
        return [*names, *(word for name in names for word in SPELLINGS.get(name, ()) if "h_" in word)]

    @model_validator(mode="before")
    @classmethod
    def _read_letter(cls, words: Any) -> Any:
        says_h = isinstance(words, Mapping) and {"h_prev", "dh_next"} & set(words)
        return {"letter": "h", **words} if says_h else words

    def written(self, name: str) -> str:
        """A word with the case's own letter for the hidden state."""
        return name.replace("a_", f"{self.letter}_") if name in ("a_prev", "a_t", "da_next", "da_prev") else name


class GivenGates(LstmCase):
    """The values of the gates are given (problem E9)."""

    gamma_u: Annotated[Unit, _also("gamma_u")]
    """The update gate."""
    gamma_f: Annotated[Unit, _also("gamma_f")]
    """The forget gate."""
    gamma_o: Annotated[Unit, _also("gamma_o")]
    """The output gate."""
    candidate: Annotated[Unit, _also("candidate")]
    """The candidate c̃."""


class GivenWeights(LstmCase):
    """The weights are given; they act on [a_prev; x], one stacked on the other (problem C1)."""

    a_prev: Annotated[Unit, _also("a_prev")]
    """The hidden state before the step."""
    x: Unit
    """The input."""
    W_u: Rows
    """The update gate's weights, a row for each unit."""
    W_f: Rows
    """The forget gate's weights."""
    W_o: Rows
    """The output gate's weights."""
    W_c: Rows
    """The candidate's weights."""
    b_u: Unit | None = None
    """The update gate's bias; with none of the four, all are 0."""
    b_f: Unit | None = None
    """The forget gate's bias."""
    b_o: Unit | None = None
    """The output gate's bias."""
    b_c: Unit | None = None
    """The candidate's bias."""


def _refuse_twice(words: Mapping[str, Any], where: str) -> None:
    for name, others in SPELLINGS.items():
        given = [word for word in (name, *others) if word in words]
        if len(given) > 1:
            raise SpecError(f"{where}: {given[0]} and {given[1]} are the same word. Give one of them.")


def _kind_of(words: Mapping[str, Any], where: str) -> type[LstmCase]:
    """Gates given or weights given; words of both, or of neither, are a mistake."""
    gates, weights = _there(words, GATES), _there(words, OF_WEIGHTS)
    if gates and weights:
        raise SpecError(
            f"{where}: it holds {gates[0]} (gates given) and {weights[0]} (gates worked out from weights). "
            f"Leave out {', '.join(weights)}, or {', '.join(gates)}."
        )
    if not gates and not weights:
        raise SpecError(
            f"{where}: it holds neither gates nor weights. Give {', '.join(GATES)} and c_prev; or W_u, W_f, W_o, W_c, "
            "b_u, b_f, b_o, b_c, a_prev, c_prev and x. As in: lemma look lstm e9 --out mine.toml"
        )
    return GivenGates if gates else GivenWeights


def _there(words: Mapping[str, Any], names: tuple[str, ...]) -> list[str]:
    """The words among these that are there, as they are written."""
    return [word for name in names for word in (name, *SPELLINGS.get(name, ())) if word in words]


# What a person writes in a file to have a small graph worked out: nodes, edges and, if wanted, X and W.


MOST_NODES = 500
"""A larger graph is no small case: its eigenvalues alone would take a while."""


def _as_name(value: Any) -> Any:
    """A node may be called by a number."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


Name = Annotated[str, BeforeValidator(_as_name), Field(min_length=1)]
Row = Annotated[tuple[Number, ...], Field(min_length=1, max_length=MOST_NODES)]
Matrix = Annotated[tuple[Row, ...], Field(min_length=1, max_length=MOST_NODES)]


class GraphCase(Case):
    """An undirected graph, what its nodes know, and a layer (problem D4)."""

    nodes: tuple[Name, ...] = ()
    """The nodes by name; if none is given, those of the edges in their order."""
    edges: Annotated[tuple[tuple[Name, ...], ...], Field(max_length=100_000)]
    """Pairs of nodes; an edge counts for both of its ends, whichever stands first."""
    X: Matrix | None = None
    """The features, a row for each node."""
    start: Literal["ones", "units"] = "ones"
    """What stands for X where none is given: a one at every node, or a unit vector for each."""
    W: Matrix | None = None
    """The map of a layer Â X W, a row for each feature."""
    powers: Annotated[int, Field(strict=True, ge=1, le=50)] = 8
    """How often the features are multiplied."""
    focus: tuple[Name, ...] = ()
    """The nodes whose row of arithmetic is shown; if none is named, one of the most and one of the fewest edges."""

    @field_validator("focus", mode="before")
    @classmethod
    def _one_focus(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str | int) else value


# What a person writes in a file to have images and sentences matched by hand: their vectors and two maps.


Names = Annotated[tuple[str, ...], Field(max_length=100)]


class MatchingCase(Case):
    """Images and sentences, each a row of numbers, and the maps that take both to one space."""

    I: Rows  # noqa: E741  (the problem's own letter)
    """The images, a row each."""
    T: Rows
    """The sentences, a row each."""
    W_i: Rows
    """The images' map: a row for each number of an image, a column for each number of the shared space."""
    W_t: Rows
    """The sentences' map, with as many columns."""
    image_names: Names = ()
    """What the images are called; image 1, image 2 … if no names are given."""
    sentence_names: Names = ()
    """What the sentences are called."""
    focus: tuple[str, ...] = ()
    """The images whose arithmetic is shown; the first few if none is named."""

    @field_validator("focus", "image_names", "sentence_names", mode="before")
    @classmethod
    def _one_name(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value


# From what a person names (an example, a file, a table) to a checked case.


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
    return {name: Example(name, _reading_kind_of(table), str(table.get("title", ""))) for name, table in tables.items()}


def _folder() -> Path:
    return Path(str(files("lemma.checking.worked"))) / "examples"


def _reading_kind_of(table: Mapping[str, Any]) -> str:
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
    found = _reading_kind_of(table)
    if found and found != kind:
        raise SpecError(
            f"{where}: it holds '{MARKS[found]}', so it is a case for: {command(found)} {where}. "
            f"A case for {kind} holds '{MARKS[kind]}'."
        )


# How alike vectors are, and which value of several is the largest, ties told.


def largest(names: Sequence[str], values: Float[np.ndarray, "names"]) -> tuple[str, ...]:
    """The names of the largest values; equal up to rounding counts as equal."""
    near = np.isclose(values, np.nanmax(values), rtol=1e-12, atol=1e-15)
    return tuple(name for name, chosen in zip(names, near, strict=True) if chosen)


def directions(vectors: Float[np.ndarray, "names width"]) -> Float[np.ndarray, "names width"]:
    """Vectors of length 1; first brought to size 1, so that squares of very small or large numbers are not lost."""
    sizes = np.abs(vectors).max(axis=1, keepdims=True)
    vectors = np.divide(vectors, sizes, out=np.full_like(vectors, np.nan), where=sizes > 0)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
