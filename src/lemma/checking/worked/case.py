"""Small cases worked by hand: their TOML files, the base of their results, and the values that may be claimed."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self, TypeVar

import numpy as np
from jaxtyping import Float
from pydantic import BeforeValidator, Field, ValidationError

from lemma.checking.expected_values import Array, ExpectedValue, Labels
from lemma.errors import InputError, SpecError, describe_unknown
from lemma.report.numbers import escape_invisible, format_number, pluralize, shorten
from lemma.report.result import Block, Heading, Result, Table
from lemma.report.text import wrap_lines
from lemma.spec.base import Spec, read_toml, to_toml

Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
NumberRow = Annotated[tuple[Number, ...], Field(min_length=1, max_length=100)]
NumberRows = Annotated[tuple[NumberRow, ...], Field(min_length=1, max_length=100)]
# a single string needs no brackets
Strings = Annotated[tuple[str, ...], BeforeValidator(lambda value: (value,) if isinstance(value, str) else value)]
MAX_MAGNITUDE = 1e100  # products of larger numbers could overflow
MAX_FILE_BYTES = 1 << 20
EXAMPLES = Path(__file__).parent / "examples"

# the field that only cases of this kind have
KIND_FIELDS = {"attention": "sentences", "cross": "queries", "graph": "edges", "lstm": "c_prev", "matching": "W_i"}
MATRIX_FIELDS = ("W_Q", "W_K", "W_V", "W_u", "W_f", "W_o", "W_c", "W_y", "W_i", "W_t", "I", "T", "X", "W")
VECTOR_FIELDS = ("gamma_u", "gamma_f", "gamma_o", "candidate", "c_prev", "a_prev", "h_prev", "x", "da_next", "dh_next")
VECTOR_FIELDS += ("dc_next", "b_u", "b_f", "b_o", "b_c", "b_y")
NAMED_VECTOR_FIELDS = ("vectors", "queries", "source")
LIST_FIELDS = ("sentences", "focus", "nodes", "edges", "image_names", "sentence_names")
FIELD_FORMS = {  # what a field holds, and an example
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
    """The base of cases: a small problem to work by hand, read from a TOML file; errors name its field and row."""

    kind: ClassVar[str]

    title: str = ""  # what the case shows

    @classmethod
    def read(cls, settings: Mapping[str, Any], source: str) -> Self:
        """Return the validated case with these fields; a SpecError names `source`, the file, and the field at fault."""
        fields = cls.setting_names()
        misplaced = [
            f"{source}: {field} is inside the table [{table}]; move it above the tables."
            for table in NAMED_VECTOR_FIELDS
            if isinstance(settings.get(table), Mapping)
            for field, value in settings[table].items()
            if field in fields
            and field not in settings
            and (field in (*MATRIX_FIELDS, "other_words") or not _is_vector(value))
        ]
        if misplaced:  # below the heading of a table, TOML takes a field for a part of it
            raise SpecError("\n".join(misplaced))
        try:
            return cls.model_validate(settings)
        except ValidationError as error:
            lines = [
                describe_unknown(f"{source}: setting", str(mistake["loc"][0]), fields)
                if mistake["type"] == "extra_forbidden"
                else f"{source}: {_describe_error(mistake, settings)}"
                for mistake in error.errors()
                # entries that do not fit are not counted; each has been named already
                if mistake["type"] != "too_short" or not mistake["input"]
            ]
            raise SpecError("\n".join(dict.fromkeys(lines))) from None


def _describe_error(error: Any, settings: Mapping[str, Any]) -> str:
    """Return a sentence on an entry of pydantic's `errors()`: the field, and its row and number counted from 1."""
    field, *path = error["loc"] or ("",)
    kind, value = error["type"], shorten(repr(error["input"]), 40)
    expected_text, example = FIELD_FORMS.get(str(field), ("", ""))
    advice = f" Give {expected_text}, as in {example}." if expected_text else ""
    if kind == "missing":
        return f"{field} is missing.{advice}"
    if expected_text and kind in ("tuple_type", "dict_type"):
        return f"{field} = {shorten(repr(settings.get(str(field))), 40)}: expected {expected_text}, as in {example}."
    units = ("row", "number") if field in MATRIX_FIELDS else ("entry",) if field in LIST_FIELDS else ("number",)
    indices = [step + 1 for step in path if isinstance(step, int)]
    location = ".".join([str(field), *(step for step in path if isinstance(step, str))])
    if indices:
        location += ": " + ", ".join(f"{unit} {index}" for unit, index in zip(units, indices, strict=False))
    if kind == "too_short":
        return f"{location} is empty.{advice}"
    if kind == "too_long":
        length, limit = len(error["input"]), error["ctx"]["max_length"]
        return f"{location} is too long for work by hand: {length:,}, at most {limit}."
    if kind in ("float_type", "finite_number"):
        return f"{location} = {value}: give a finite number."
    return f"{location} = {value}: {error['msg'][0].lower()}{error['msg'][1:]}."


def _is_vector(value: Any) -> bool:
    """Return whether a value is a list of numbers."""
    return isinstance(value, Sequence) and not isinstance(value, str) and all(isinstance(x, int | float) for x in value)


CaseLike = str | Path | Mapping[str, Any]
"""The name of an example, the path of a TOML file, or the fields of a case."""
CaseT = TypeVar("CaseT", bound=Case)


@dataclass(frozen=True)
class CaseExamples:
    """The examples of one kind of case that come with Lemma: their titles by name."""

    kind: str
    titles: Mapping[str, str]

    def __str__(self) -> str:
        width, first = max(map(len, self.titles)), next(iter(self.titles))
        lines = [f"{name:<{width}}  {title}" for name, title in self.titles.items()]
        lines.append(f"Look at one:          {case_command(self.kind)} {first}")
        lines.append(f"A copy to start from: {case_command(self.kind)} {first} --out mine.toml")
        return wrap_lines("\n".join(lines))

    def to_dict(self) -> dict[str, Any]:
        """Return the kind, and the names and titles of the examples, as plain values for JSON."""
        return {"kind": self.kind, "examples": [{"name": name, "title": title} for name, title in self.titles.items()]}


def list_examples(kind: str) -> CaseExamples:
    """Return the examples that come with Lemma of a kind of case, such as "attention" or "lstm"."""
    tables = {path.stem: read_toml(path) for path in sorted(EXAMPLES.glob("*.toml"))}
    titles = {name: str(table.get("title", "")) for name, table in tables.items() if detect_kind(table) == kind}
    return CaseExamples(kind, titles)


def detect_kind(fields: Mapping[str, Any]) -> str:
    """Return the kind of a case, such as "attention", by the names of its fields; "" if they are of no kind."""
    return next((kind for kind, field in KIND_FIELDS.items() if field in fields), "")


def case_command(kind: str) -> str:
    """Return the command that shows a case of this kind, such as "lemma look lstm", without the name of the case."""
    return "lemma search --matrices" if kind == "matching" else f"lemma look {kind}"


def read_case(case_class: type[CaseT], source: CaseLike, overrides: Mapping[str, Any]) -> tuple[CaseT, str, str]:
    """Return a validated case, its name for messages, and its text as TOML.

    `source` is the name of an example, a TOML file or the fields; `overrides` that are not None replace fields.
    """
    if isinstance(source, Mapping):
        label, text, fields = "the case", "", dict(source)
    else:
        path, label = Path(source), str(source)
        if not path.suffix and path.name == label and not path.is_file():  # the name of an example
            if (EXAMPLES / f"{label}.toml").is_file():
                path = EXAMPLES / f"{label}.toml"
            elif not path.exists():
                message = describe_unknown("example", label, list_examples(case_class.kind).titles)
                raise SpecError(f"{message} Or give the path of a TOML file.")
        if path.is_file() and (size := path.stat().st_size) > MAX_FILE_BYTES:
            raise SpecError(
                f"{label}: {size:,} bytes are too many for a case by hand; at most {MAX_FILE_BYTES:,} are read."
            )
        fields = read_toml(path)
        text = path.read_text(encoding="utf-8")
    kind = detect_kind(fields)
    if kind and kind != case_class.kind:
        raise SpecError(
            f"{label}: it holds '{KIND_FIELDS[kind]}', so it is a case for: {case_command(kind)} {label}. "
            f"A case for {case_class.kind} holds '{KIND_FIELDS[case_class.kind]}'."
        )
    fields |= {name: value for name, value in overrides.items() if value is not None}
    case = case_class.read(fields, label)
    return case, label, text or to_toml(case.to_dict())


@contextmanager
def prefix_errors(label: str) -> Iterator[None]:
    """Prefix the message of any InputError inside a `with` block with "LABEL: ", the name of a case."""
    try:
        yield
    except InputError as error:
        raise type(error)(f"{label}: {error}") from None


def as_matrix(name: str, rows: Sequence[Sequence[float]], row_names: Sequence[str] = ()) -> Array:
    """Return the field `name` as a matrix; a SpecError names rows of different lengths, by `row_names` or by number."""
    odd = next((index for index, row in enumerate(rows) if len(row) != len(rows[0])), None)
    if odd is not None:
        other, first = (f"'{row_names[index]}'" if row_names else f"row {index + 1}" for index in (odd, 0))
        raise SpecError(
            f"{name}: {other} has {pluralize(len(rows[odd]), 'number')}, {first} has {len(rows[0])}; "
            f"all {'vectors' if row_names else 'rows of a matrix'} are equally long."
        )
    return np.array(rows, dtype=np.float64)


def check_magnitudes(*arrays: Array) -> None:
    """Raise an InputError if an entry is NaN or its absolute value is larger than MAX_MAGNITUDE, 1e100."""
    if not all(np.abs(array).max() <= MAX_MAGNITUDE for array in arrays):
        raise InputError(f"a number grows past {MAX_MAGNITUDE:.0e}, too large to work with. Give smaller ones.")


def argmax_names(names: Sequence[str], values: Float[np.ndarray, " names"]) -> Labels:
    """Return the names of the largest of the values: several if they are equal up to rounding."""
    is_largest = np.isclose(values, np.nanmax(values), rtol=1e-12, atol=1e-15)
    return tuple(name for name, largest in zip(names, is_largest, strict=True) if largest)


def unit_vectors(vectors: Float[np.ndarray, "names width"]) -> Float[np.ndarray, "names width"]:
    """Return the rows scaled to length 1, a zero row as NaN; no square overflows or underflows."""
    sizes = np.abs(vectors).max(axis=1, keepdims=True)
    vectors = np.divide(vectors, sizes, out=np.full_like(vectors, np.nan), where=sizes > 0)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


BestT = TypeVar("BestT")


def best_matches(
    match_class: Callable[..., BestT], rows: Sequence[str], columns: Sequence[str], scores: Array, cosines: Array
) -> list[BestT]:
    """Return a match for each row: the columns of its largest score and of its largest cosine, several if they tie.

    Args:
        match_class: built from a row's name, the best columns and their score, the columns nearest by cosine and their
            cosine (None if undefined), and whether both are the same columns.
        rows: names of the rows of `scores` and `cosines`; `columns` those of the columns.
        cosines: NaN where a vector is zero.
    """
    matches: list[BestT] = []
    for name, row_scores, row_cosines in zip(rows, scores, cosines, strict=True):
        is_defined = not np.isnan(row_cosines).all()
        best = argmax_names(columns, row_scores)
        nearest = argmax_names(columns, row_cosines) if is_defined else ()
        cosine = float(np.nanmax(row_cosines)) if is_defined else None
        matches.append(match_class(name, best, float(row_scores.max()), nearest, cosine, best == nearest))
    return matches


def best_table(header: tuple[str, str], matches: Iterable[Any], decimals: int, title: str = "") -> Table:
    """Return a table of the matches of `best_matches`; `header` titles the columns of the best match and its score."""
    rows = [
        (
            name,
            " = ".join(best),
            format_number(score, decimals),
            " = ".join(nearest) or "none",
            "undefined" if cosine is None else format_number(cosine, decimals),
            "yes" if agree else "no",
        )
        for name, best, score, nearest, cosine, agree in map(astuple, matches)
    ]
    return Table(("", *header, "by cosine", "cosine", "agree"), rows, title, is_text=True)


@dataclass(frozen=True, eq=False)
class WorkedCase(Result):
    """The base of worked cases: a report on every intermediate value, against which an answer can be checked.

    Attributes:
        default_title: title of a case that has none.
        hint: how to print what is left out of a large case.
        source: the text of the case.
        full: whether everything is printed, however large the case is.
    """

    indent: ClassVar[str] = "  "
    default_title: ClassVar[str]
    hint: ClassVar[str] = ""

    case: Case
    source: str
    full: bool = field(default=False, kw_only=True)
    decimals: int = field(default=4, kw_only=True)

    @property
    def title(self) -> str:
        """The case's own title, or the default of its kind."""
        return escape_invisible(self.case.title) or self.default_title

    @property
    def is_abridged(self) -> bool:
        """True if some of the steps are printed only with `full`."""
        return False

    def blocks(self) -> list[Block]:
        """Return the report blocks of the steps, abridged for a large case unless `full`, and a hint at `full`."""
        hint = [Heading(self.hint)] if self.is_abridged else []
        return [Heading(self.title, 1, underlined=True), *self.step_blocks(self.full), *hint]

    def details(self) -> list[Block]:
        """Return the report blocks of the steps with every matrix."""
        return [Heading(self.title, 1, underlined=True), *self.step_blocks(every_matrix=True)]

    def step_blocks(self, every_matrix: bool) -> list[Block]:
        """Return the report blocks of the steps in order; `every_matrix` adds the matrices."""
        raise NotImplementedError

    def expected(self) -> list[ExpectedValue]:
        """Return every quantity that an answer may claim, with its right value."""
        raise NotImplementedError

    def writers(self) -> dict[str, Callable[[], str]]:
        """Return functions that write the result as text, by file suffix; .toml is the case itself, as a template."""
        return super().writers() | {".toml": lambda: self.source}
