"""From what a person names to the quantities of the worked case."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from lemma.errors import InputError, SpecError, unknown
from lemma.looking.worked.attention import attention_by_hand
from lemma.looking.worked.byte_pairs import SMALL
from lemma.looking.worked.cross import cross_by_hand
from lemma.looking.worked.graph import TABLES, graph_by_hand
from lemma.looking.worked.judging.finding import Names
from lemma.looking.worked.judging.of_attention import of_attention, of_cross
from lemma.looking.worked.judging.of_byte_pairs import of_byte_pairs
from lemma.looking.worked.judging.of_graph import of_graph
from lemma.looking.worked.judging.of_lstm import of_lstm
from lemma.looking.worked.judging.of_matching import of_matching
from lemma.looking.worked.lstm import lstm_by_hand
from lemma.looking.worked.matching import matching_by_hand
from lemma.looking.worked.reading import MARKS, Given, list_examples
from lemma.spec.toml import read_toml

BYTE_PAIRS = "bpe:"
KINDS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "attention": (attention_by_hand, of_attention),
    "cross": (cross_by_hand, of_cross),
    "graph": (graph_by_hand, of_graph),
    "lstm": (lstm_by_hand, of_lstm),
    "matching": (matching_by_hand, of_matching),
}
"""For each kind what works the case, and what names its quantities."""


def name_quantities(case: Given) -> Iterator[Names]:
    """The quantities of a case by name; of byte-pair encoding once for each order of ties.

    >>> names = next(name_quantities("e9"))
    >>> [one.name for one in names.quantities][:5]
    ['kept', 'added', 'c_t', 'tanh_c', 'h_t']
    """
    shown = "the case" if isinstance(case, Mapping) else str(case)
    if isinstance(case, str) and case.startswith(BYTE_PAIRS):
        return (Names(shown, one) for one in of_byte_pairs(_text(case)))
    work, named = KINDS[_kind(case)]
    return iter([Names(shown, named(work(case)))])


def _text(case: str) -> str:
    text = case.removeprefix(BYTE_PAIRS)
    if not text.split() or len(text) > SMALL:
        raise InputError(f"{BYTE_PAIRS} a text of 1 to {SMALL:,} characters is expected behind it, got {len(text):,}.")
    return text


def _kind(case: Given) -> str:
    """Which kind of case it is: by the examples that ship, or by the words of a file."""
    shipped = {example.name: kind for kind in KINDS for example in list_examples(kind).listed}
    if not isinstance(case, Mapping):
        if str(case) in shipped and not Path(case).is_file():
            return shipped[str(case)]
        if Path(case).suffix.lower() in TABLES:
            return "graph"
        if not Path(case).is_file():
            ways = ' Or give a TOML file of your own, or "bpe:TEXT".'
            raise SpecError("check worked: " + unknown("the case", str(case), shipped) + ways)
    table = case if isinstance(case, Mapping) else read_toml(Path(case))
    found = next((kind for kind, mark in MARKS.items() if mark in table), None)
    if found is None:
        marks = ", ".join(f"{mark} ({kind})" for kind, mark in MARKS.items())
        raise SpecError(f"{case}: no case that can be worked: one of these words is expected in it: {marks}.")
    return found
