"""Results of computations, made of blocks, printed and saved in every form.

A result is a frozen dataclass that derives from `Result` and returns what it shows as blocks (headings, text, tables,
matrices, figures). From these come the terminal text, the notebook cell and the files: .html, .md, .txt and .svg;
`to_dict()` gives .json and `records()` gives .csv.
"""

import csv
import io
import json
import re
from abc import ABC, abstractmethod
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from itertools import groupby
from math import isfinite
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np
from jaxtyping import Float

from lemma.errors import InputError, describe_unknown
from lemma.files import write_atomically
from lemma.report.curves import NO_PLOT, Plot, can_draw
from lemma.report.numbers import draw_bar, format_number, needed_decimals, shade_block
from lemma.report.text import display_width, format_table, label_line, text_width, wrap, wrap_lines, wrap_paragraph

TextKind = Literal["", "note", "finding", "question", "kicker", "strong", "good", "bad", "warning", "footer"]


@dataclass(frozen=True)
class Heading:
    """A heading; level 1 is the title of the result. `underlined` is about printed text only."""

    text: str
    level: int = 2
    underlined: bool = False


@dataclass(frozen=True)
class Text:
    """A paragraph, or several lines.

    In print, a text directly follows a heading or another text, unless `blank_before` is set. Prose
    (notes, findings, questions) is broken flush left; continuations of other lines are indented, or below their value.
    """

    text: str
    kind: TextKind = ""
    blank_before: bool = False


@dataclass(frozen=True)
class Items:
    """A list of short texts, each on a line of its own in print."""

    items: Sequence[str]
    kind: Literal["", "note"] = ""


@dataclass(frozen=True)
class Table:
    """A table of written cells; the first column names the row. Spaces before a row's name indent it."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""
    bars: Sequence[float] = ()  # from 0 to 1, behind every row
    total: Sequence[str] = ()  # a last row of sums
    is_text: bool = False  # cells are words, aligned left and broken where they are too long, rather than numbers
    left: Sequence[int] = (0,)  # columns that are aligned left
    breakable: Sequence[int] = ()  # columns whose cells may be broken where the table is too wide
    formulas: Sequence[int] = ()  # columns with formulas, typeset in HTML
    row_kinds: Sequence[str] = ()  # of every row: "best" marks it
    underline_header: bool = False  # in print
    caption: str = ""

    def all_rows(self) -> list[Sequence[str]]:
        """Return the header, the rows and, if there is one, the total."""
        return [self.header, *self.rows, *([self.total] if self.total else [])]

    def is_left_aligned(self, column: int) -> bool:
        """Return whether the column with this index is aligned left."""
        return self.is_text or column in self.left

    def row_kind(self, row: int) -> str:
        """Return the kind of a row, such as "best"; "" for an ordinary one. Index 0 is the row after the header."""
        return self.row_kinds[row] if row < len(self.row_kinds) else ""


@dataclass(frozen=True, eq=False)
class Matrix:
    """A matrix with names for its rows and columns, coloured by sign and size or as fractions from 0 to 1."""

    title: str
    rows: Sequence[str]
    columns: Sequence[str]
    values: Float[np.ndarray, "rows columns"]
    colouring: Literal["signed", "share"] = "signed"
    sums: Sequence[float] = ()  # of each row, where they are used later
    decimals: int = 3

    def cells(self) -> tuple[tuple[str, ...], ...]:
        """Return the rows of values as text, with equally many decimals."""
        needed = needed_decimals(self.values[np.isfinite(self.values)].tolist(), self.decimals)
        return tuple(tuple(format_number(value, needed) for value in row) for row in self.values)

    def table(self, shade_fractions: bool = True) -> Table:
        """Return the matrix as a table; `shade_fractions` adds to each fraction a block character of its size."""
        cells: Iterable[Sequence[str]] = self.cells()
        if self.colouring == "share" and shade_fractions:
            cells = [
                [f"{cell} {shade_block(value)}" for cell, value in zip(row, values, strict=True)]
                for row, values in zip(cells, self.values, strict=True)
            ]
        sums = [[format_number(value, self.decimals)] for value in self.sums] or [[] for _ in self.rows]
        rows = tuple((name, *row, *added) for name, row, added in zip(self.rows, cells, sums, strict=True))
        return Table(("", *self.columns, *(["sum"] if self.sums else [])), rows, self.title)


@dataclass(frozen=True)
class Figure:
    """An SVG drawing with its caption. It must come from our own plot functions: it goes into the page as it is."""

    svg: str
    caption: str = ""
    kind: Literal["", "narrow"] = ""

    def __post_init__(self) -> None:
        assert self.svg.lstrip().startswith("<svg"), "a figure is an <svg> element"


@dataclass(frozen=True)
class Image:
    """A PNG image, embedded in the page, with its caption `text`, which says so if there is none."""

    png: bytes | None
    text: str

    @property
    def data_url(self) -> str:
        """The PNG as a data: URL."""
        return f"data:image/png;base64,{b64encode(self.png or b'').decode()}"


@dataclass(frozen=True)
class Facts:
    """Names with their values, in two columns."""

    pairs: Mapping[str, str]


@dataclass(frozen=True)
class Pre:
    """Preformatted text as (text, kind) parts: a "prompt" is grey; "loop" and "again", its repetition, are marked."""

    parts: Sequence[tuple[str, Literal["", "prompt", "loop", "again"]]]

    @property
    def text(self) -> str:
        """The text of all parts."""
        return "".join(text for text, _ in self.parts)


@dataclass(frozen=True)
class Card:
    """Blocks in a frame under a title."""

    title: str
    blocks: Sequence["Block"] = ()
    note: str = ""

    def content(self) -> list["Block"]:
        """Return the title, the blocks and the note."""
        note: list[Block] = [Text(self.note, "note")] if self.note else []
        return [Heading(self.title, 3), *self.blocks, *note]


@dataclass(frozen=True)
class Cards:
    """Cards side by side, as many as there is room for; `small` ones hold an image each."""

    cards: Sequence[Card]
    small: bool = False

    def content(self) -> list["Block"]:
        """Return the cards as blocks."""
        return list(self.cards)


@dataclass(frozen=True)
class Fold:
    """Blocks that can be folded away on a page."""

    title: str
    blocks: Sequence["Block"]
    is_open: bool = False

    def content(self) -> list["Block"]:
        """Return the title and the blocks."""
        return [Heading(self.title, 3), *self.blocks]


Block: TypeAlias = Heading | Text | Items | Table | Matrix | Figure | Image | Facts | Pre | Card | Cards | Fold
Blocks: TypeAlias = Iterable[Block]


def plot_blocks(plots_to_draw: Iterable[Plot], kind: Literal["", "narrow"] = "") -> list[Block]:
    """Return each plot as a figure of this kind with its caption, or else a note on what to install to draw plots."""
    plots = list(plots_to_draw)
    if plots and not can_draw():
        return [Text(NO_PLOT, "note")]
    return [Figure(plot.svg(), plot.full_caption, kind) for plot in plots]


class Result(ABC):
    """The result of a computation: it can be printed, shown in a notebook, converted to plain values and saved.

    Attributes:
        title: what it is, in a line: a str, as a field or a property.
        indent: starts every line below the headings in print.
        json_names: the attributes that `to_dict` returns, if not just all fields.
    """

    title: Any
    indent: ClassVar[str] = ""
    json_names: ClassVar[Sequence[str]] = ()

    @abstractmethod
    def blocks(self) -> Blocks:
        """Return the blocks that `print` shows in a terminal."""

    def details(self) -> Blocks:
        """Return the blocks for files and notebooks, which may be more than those that are printed."""
        return self.blocks()

    def to_dict(self) -> dict[str, Any]:
        """Return the fields, or the attributes in `json_names`, as JSON-compatible values."""
        names = self.json_names or [field.name for field in fields(self)]  # pyright: ignore[reportArgumentType]
        return {name: to_plain(getattr(self, name)) for name in names}

    def records(self) -> list[dict[str, Any]]:
        """Return the rows of a .csv file, each with its cells by column name; empty if the result has none."""
        return []

    def __str__(self) -> str:
        return as_text(self.blocks(), self.indent)

    def _repr_html_(self) -> str:
        """Return the HTML that a notebook shows."""
        return as_html(self.details(), self.title, full_page=False)

    def writers(self) -> dict[str, Callable[[], str]]:
        """Return for each file suffix, such as ".html", a function that returns the content of such a file."""
        from lemma.report.svg import as_svg

        writers: dict[str, Callable[[], str]] = {
            ".svg": lambda: as_svg(self.details(), self.title),
            ".html": lambda: as_html(self.details(), self.title),
            ".md": lambda: as_markdown(self.details()),
            ".txt": lambda: as_text(self.details(), self.indent) + "\n",
            ".json": lambda: as_json(self.to_dict()),
        }
        records = self.records()
        return writers | ({".csv": lambda: as_csv(records)} if records else {})

    def save(self, path: Path | str) -> Path:
        """Write the result to a file, in the format of its suffix, such as .html or .json; return the path."""
        target, writers = Path(path), self.writers()
        check_target(target, writers)
        write_atomically(target, writers[target.suffix.lower()]())
        return target


def check_target(path: Path | str, suffixes: Iterable[str]) -> None:
    """Raise an InputError if a path's suffix is not among `suffixes`, or its folder does not exist."""
    target, suffixes = Path(path), list(suffixes)
    if target.suffix.lower() not in suffixes:
        raise InputError(describe_unknown(f"{target}: ending of the name", target.suffix, suffixes))
    if not target.absolute().parent.is_dir():
        raise InputError(f"{target}: there is no folder {target.parent}. Make it first.")


# Plain values


def to_plain(value: Any) -> Any:
    """Convert a value to JSON-compatible values: None, booleans, numbers, strings, lists and dictionaries.

    An object's own `to_dict()` is used where it has one; other dataclasses become dictionaries of their fields,
    arrays, tuples and sets lists, paths strings. NaN and infinity, which JSON lacks, become None.

    >>> to_plain({"path": Path("a"), "losses": (1.5, float("nan")), "counts": np.arange(2)})
    {'path': 'a', 'losses': [1.5, None], 'counts': [0, 1]}
    """
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if isfinite(value) else None
        case Path():
            return str(value)
        case np.ndarray() | np.generic():
            return to_plain(value.tolist())
        case Mapping():
            return {name: to_plain(item) for name, item in value.items()}
    if hasattr(value, "to_dict"):
        return to_plain(value.to_dict())
    if is_dataclass(value):
        return {field.name: to_plain(getattr(value, field.name)) for field in fields(value)}
    return [to_plain(item) for item in value]


def as_json(values: Any, indent: int = 2) -> str:
    """Return JSON-compatible values as JSON text; NaN and infinity are errors."""
    return json.dumps(values, indent=indent, ensure_ascii=False, allow_nan=False) + "\n"


def as_csv(records: Sequence[Mapping[str, Any]]) -> str:
    r"""Return records, one per row, as CSV text with a header; a key that a record lacks is an empty cell.

    >>> as_csv([{"model": "rnn", "seed": 1}])
    'model,seed\nrnn,1\n'
    """
    buffer = io.StringIO()
    names = list(dict.fromkeys(name for record in records for name in record))
    writer = csv.DictWriter(buffer, fieldnames=names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return buffer.getvalue()


# Text for the terminal


def as_text(blocks: Blocks, indent: str = "") -> str:
    """Return blocks as text for a terminal, separated by empty lines; drawings are left out.

    `indent` precedes all lines except headings.
    """
    lines: list[str] = []
    previous: Block | None = None
    for block in blocks:
        block_lines = _text_lines(block, indent)
        if not block_lines:
            continue
        continues_paragraph = (
            isinstance(block, Text) and not block.blank_before and isinstance(previous, Text | Heading)
        )
        lines += [*([] if previous is None or continues_paragraph else [""]), *block_lines]
        previous = block
    return "\n".join(lines)


def _text_lines(block: Block, indent: str) -> list[str]:
    """Return the lines of one block in a terminal, each after `indent`; none for a drawing."""
    match block:
        case Heading(text, _, underlined):
            lines = wrap(text)
            return [*lines, *(["=" * max(map(display_width, lines))] if underlined else [])]
        case Text(text, kind):
            is_prose = kind in ("note", "finding", "question", "footer") and not indent
            return wrap_paragraph(text).split("\n") if is_prose else _wrap_text(text, indent)
        case Items(items):
            return [line for item in items for line in _wrap_text(item, indent)]
        case Table() | Matrix():
            return _table_lines(block if isinstance(block, Table) else block.table(), indent)
        case Facts(pairs):
            width = max(map(display_width, pairs), default=0) + 1
            return [line for name, value in pairs.items() for line in label_line(name, value, width).split("\n")]
        case Pre():
            return [indent + line for line in wrap_paragraph(block.text).split("\n")]
        case Card() | Cards() | Fold():
            within = block.content()
            return as_text(within, indent).split("\n") if within else []
        case Figure() | Image():
            return []


def _wrap_text(text: str, indent: str) -> list[str]:
    """Break lines that are longer than the text width; with `indent`, their continuations are indented twice."""
    if not indent:
        return wrap_lines(text).split("\n")
    return [part for line in text.splitlines() for part in wrap(line, indent=indent, hanging=indent * 2)]


def _table_lines(block: Table, indent: str) -> list[str]:
    """Return the lines of a table, with a bar behind each row if it fits."""
    every = range(len(block.header))
    lines = format_table(
        block.all_rows(),
        left=every if block.is_text else block.left,
        breakable=every if block.is_text else block.breakable,
        underline_header=block.underline_header,
        width=text_width() - len(indent),
    )
    bars = [draw_bar(fraction) for fraction in block.bars]
    first = len(lines) - len(block.rows) - bool(block.total)
    widest = max(map(display_width, lines[max(first, 0) :]), default=0)
    if bars and first >= 1 and widest + max(map(len, bars)) + len(indent) + 2 <= text_width():
        for at, bar in enumerate(bars, first):
            lines[at] += " " * (widest - display_width(lines[at]) + 2) + bar
    title = _wrap_text(block.title, indent) if block.title else []
    caption = ["", *wrap_paragraph(block.caption).split("\n")] if block.caption else []
    return [*title, *(f"{indent}{line}".rstrip() for line in lines), *caption]


# Markdown


def as_markdown(blocks: Blocks) -> str:
    """Return blocks as Markdown, with all special characters escaped."""
    return "\n\n".join(filter(None, map(_format_markdown, blocks))) + "\n"


def _format_markdown(block: Block) -> str:
    """Return one block as Markdown; "" if it has no text."""
    match block:
        case Heading(text, level):
            return f"{'#' * level} {_escape_markdown(text)}"
        case Text(text, kind):
            lines = "  \n".join(_escape_markdown(line) for line in text.splitlines())
            return f"**{lines}**" if kind in ("strong", "good", "bad", "warning") else lines
        case Items(items):
            return "\n".join(f"- {_escape_markdown(item)}" for item in items)
        case Table() | Matrix():
            return _format_markdown_table(block if isinstance(block, Table) else block.table())
        case Facts(pairs):
            return "\n".join(
                f"- **{_escape_markdown(name)}**: {_escape_markdown(value)}" for name, value in pairs.items()
            )
        case Pre():
            fence = "`" * max(3, 1 + max(map(len, re.findall("`+", block.text)), default=0))
            return f"{fence}\n{block.text}\n{fence}"
        case Figure(_, caption) | Image(_, caption):
            return f"*{_escape_markdown(caption)}*" if caption else ""
        case Card() | Cards() | Fold():
            return as_markdown(block.content()).rstrip("\n")


def _format_markdown_table(block: Table) -> str:
    """Return a table as Markdown."""

    def cell(text: str) -> str:
        """Return the Markdown of a cell; leading spaces become indentation."""
        return "&emsp;" * ((len(text) - len(text.lstrip(" "))) // 2) + _escape_markdown(text)

    lines = [f"| {' | '.join(map(cell, row))} |" for row in block.all_rows()]
    ruler = "|".join("---" if block.is_left_aligned(column) else "---:" for column in range(len(block.header)))
    title = f"**{_escape_markdown(block.title)}**\n\n" if block.title else ""
    caption = f"\n\n{_escape_markdown(block.caption)}" if block.caption else ""
    return title + "\n".join([lines[0], f"|{ruler}|", *lines[1:]]) + caption


def _escape_markdown(text: str) -> str:
    """Return a text on one line with Markdown's special characters escaped."""
    return re.sub(r"([\\`*_{}\[\]<>#|$~&])", r"\\\1", " ".join(text.split()))


# HTML: one template and one stylesheet, nothing fetched, no script, every text escaped.


def as_html(blocks: Blocks, title: str, full_page: bool = True) -> str:
    """Return blocks as an HTML page or, without `full_page`, as the fragment that a notebook shows."""
    template, style = _load_template()
    return template.render(blocks=list(blocks), title=title, style=style, whole=full_page).strip() + "\n"


@cache
def _load_template() -> tuple[Any, str]:
    """Return the Jinja template of a page, with its filters, and the stylesheet."""
    import jinja2
    from markupsafe import Markup, escape

    from lemma.report.svg import matrix_svg

    folder = Path(__file__).parent
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )

    def frame(block: Block) -> str:
        """Return the name of the frame that a block shares with its neighbours of the same name; "" for none."""
        if isinstance(block, Text):
            return "finding" if block.kind == "finding" else ""
        return {Matrix: "matrices", Figure: "plots"}.get(type(block), "")

    environment.filters |= {
        "type_name": lambda block: type(block).__name__,
        "drawn": lambda matrix: Markup(matrix_svg(matrix)),
        "typeset": lambda formula: Markup(re.sub(r"_(\w+)", r"<sub>\1</sub>", str(escape(formula)))),
        "indentation": lambda cell: len(cell) - len(cell.lstrip(" ")),
        # matrices, plots and findings that follow each other share a frame, by its name
        "grouped": lambda blocks: [(name, list(group)) for name, group in groupby(blocks, key=frame)],
    }
    return environment.get_template("result.html"), (folder / "result.css").read_text(encoding="utf-8")
