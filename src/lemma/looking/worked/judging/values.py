"""The values of a claim, read by a parser of our own: a number, a word, or lists and tables of them.

    value  = list | table | item          list  = "[" value "," value … "]"    (or round brackets)
    item   = number | word | "quoted"     table = "{" label ":" item "," … "}"

Words may hold blanks; they end at a comma, a bracket or the end. Nothing is evaluated.
"""

from dataclasses import dataclass

from lemma.errors import InputError
from lemma.looking.worked.judging.numbers import Given, read_number

LONGEST, DEEPEST = 50_000, 3
BRACKETS = {"[": "]", "(": ")", "{": "}"}
ENDS = ",[](){}"
Value = "Given | str | list[Value] | Table"


@dataclass(frozen=True)
class Table:
    """Items by their label."""

    items: dict[str, Given | str]


class Reader:
    """Reads one value from a text, left to right."""

    def __init__(self, text: str) -> None:
        if len(text) > LONGEST:
            raise InputError(f"the value has {len(text):,} characters; at most {LONGEST:,} are read.")
        self.text, self.place = text, 0

    def whole(self) -> "Given | str | list | Table":
        """The value, and nothing after it."""
        value = self._value(0)
        self._blanks()
        if self.place < len(self.text):
            raise self._error(f"'{self.text[self.place]}' is left over")
        return value

    def _value(self, depth: int) -> "Given | str | list | Table":
        self._blanks()
        sign = self._peek()
        if sign in BRACKETS and depth >= DEEPEST:
            raise self._error("brackets are too deep: a number, a vector or a matrix is expected")
        if sign in ("[", "("):
            return self._list(depth)
        return self._table() if sign == "{" else self._item(ENDS)

    def _list(self, depth: int) -> list:
        close = BRACKETS[self._take()]
        values: list = []
        while True:
            self._blanks()
            if self._peek() == close:
                self._take()
                return values
            values.append(self._value(depth + 1))
            self._between(close)

    def _table(self) -> Table:
        self._take()
        items: dict[str, Given | str] = {}
        while True:
            self._blanks()
            if self._peek() == "}":
                self._take()
                return Table(items)
            label = self._label()
            items[label] = self._item(ENDS)
            self._between("}")

    def _label(self) -> str:
        label = self._item(ENDS + ":")
        if self._peek() != ":":
            raise self._error("a table is written {label: value, …}")
        self._take()
        return label.text if isinstance(label, Given) else label

    def _item(self, ends: str) -> Given | str:
        self._blanks()
        if self._peek() in ('"', "'"):
            return self._quoted()
        start = self.place
        while self.place < len(self.text) and self.text[self.place] not in ends:
            self.place += 1
        word = self.text[start : self.place].strip()
        if not word:
            raise self._error("a value is missing")
        return read_number(word) or word

    def _quoted(self) -> str:
        mark = self._take()
        end = self.text.find(mark, self.place)
        if end < 0:
            raise self._error(f"the {mark} that opens a word is not closed")
        word, self.place = self.text[self.place : end], end + 1
        self._blanks()
        return word

    def _between(self, close: str) -> None:
        self._blanks()
        if self._peek() == ",":
            self._take()
        elif self._peek() != close:
            raise self._error(f"',' or '{close}' is expected")

    def _blanks(self) -> None:
        while self.place < len(self.text) and self.text[self.place].isspace():
            self.place += 1

    def _peek(self) -> str:
        return self.text[self.place] if self.place < len(self.text) else ""

    def _take(self) -> str:
        self.place += 1
        return self.text[self.place - 1]

    def _error(self, what: str) -> InputError:
        near = self.text[max(0, self.place - 12) : self.place + 12].strip()
        return InputError(f"the value cannot be read at character {self.place + 1} (near '{near}'): {what}.")


def read_value(text: str) -> "Given | str | list | Table":
    """Read what stands to the right of the sign.

    >>> [[one.value for one in row] for row in read_value("[[1, -0.5], [2, 3]]")]
    [[1.0, -0.5], [2.0, 3.0]]
    >>> read_value("sentence 3")
    'sentence 3'
    """
    return Reader(text).whole()
