"""From what a person names to the quantities of the worked case."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lemma.checking.worked.answers import (
    FEWEST,
    Claim,
    Entries,
    JudgedClaim,
    Names,
    Quantity,
    WordQuantity,
    WorkedReport,
    explain,
    read_claim,
    read_entries,
    read_number,
    read_target,
    read_value,
    same_word,
    words_of,
    write_number,
    write_right,
)
from lemma.checking.worked.answers import Given as Numeral
from lemma.checking.worked.attention import attention_by_hand, cross_by_hand
from lemma.checking.worked.bpe import SMALL
from lemma.checking.worked.case import MARKS, Given, list_examples
from lemma.checking.worked.graph import TABLES, graph_by_hand
from lemma.checking.worked.lstm import lstm_by_hand
from lemma.checking.worked.matching import matching_by_hand
from lemma.checking.worked.quantities import of_attention, of_byte_pairs, of_cross, of_graph, of_lstm, of_matching
from lemma.errors import InputError, SpecError, unknown
from lemma.report.text import fit, table
from lemma.spec.base import read_toml

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


# Judge a hand computation: every line against the quantities of the worked case.


MOST_LINES, MOST_PLACES = 200, 3
OF_BYTE_PAIRS = """\
merges        words     the pairs in the order of merging: [ab, Ab]
merge1        a word    the pair of step 1, and so on; A is another name of it
count1        a number  how often that pair occurs, and so on
counts1       a table   all pairs before step 1: {ab: 4, bb: 3}, and so on
segmentation  words     each word in its symbols: {abb: A b}
steps         a number  how many merges
symbols       a number  symbols of the whole text at the end

Symbols that are merged are A, B, C … as they are made; \\w ends a word."""
TIES = (
    "Ties: any of the most frequent pairs may be merged first, so long as all lines keep to one order. Lemma's own "
    "rule: the pair whose left symbol comes first, then whose right symbol does."
)


def judge_worked(case: Given, lines: Sequence[str]) -> WorkedReport:
    """Judge lines `NAME = VALUE` against a worked case.

    >>> judge_worked("e9", ["c_t = [0.52, -0.34]", "h_t[1] = 0.364"]).lines[1].slip
    'tanh is left out: Γ_o∗c_t.'
    """
    claims = [read_claim(line) for text in lines for line in text.splitlines() if line.strip()]
    if not claims or len(claims) > MOST_LINES:
        raise InputError(f"check worked: from 1 to {MOST_LINES} lines are expected, got {len(claims)}.")
    best: tuple[JudgedClaim, ...] = ()
    for names in name_quantities(case):
        judged = tuple(_judge(claim, names) for claim in claims)
        if not best or sum(one.right for one in judged) > sum(one.right for one in best):
            best = judged
        if all(one.right for one in best):
            break
    shown = case if isinstance(case, str) else "the case"
    return WorkedReport(shown, best, (TIES,) if shown.startswith(BYTE_PAIRS) else ())


def describe_worked(case: Given) -> str:
    """Every name that may be claimed, its shape and what it is; no values."""
    if isinstance(case, str) and case.startswith(BYTE_PAIRS):
        return OF_BYTE_PAIRS
    quantities = next(name_quantities(case)).quantities
    first = [one for one in quantities if not one.name.startswith("sentence")]
    rows = [(one.name, one.form, one.meaning) for one in first]
    labels = dict.fromkeys(", ".join(one) for quantity in quantities for one in quantity.labels)
    places = [f"  {one}" for one in labels if not one[:1].isdigit()][:6]
    others = [f"sentence2.{first[0].name} and so on: the same of the second sentence."]
    return fit(
        "\n".join([*table(rows, left=(0, 1, 2)), *(others if len(first) < len(quantities) else []), *_told(places)])
    )


def _told(places: list[str]) -> list[str]:
    return ["", "Rows and columns by these labels, or counted from 1:", *places] if places else []


def _judge(claim: Claim, names: Names) -> JudgedClaim:
    right = names.find(claim.target)
    if claim.sign != "=":
        return _compare(claim, right, names)
    value = read_value(claim.right)
    if isinstance(right, WordQuantity):
        return _judge_words(claim, value, right)
    return _judge_numbers(claim, value, right, names)


def _judge_numbers(claim: Claim, value: Any, right: Quantity, names: Names) -> JudgedClaim:
    entries = read_entries(value, right)
    decimals = entries.decimals or FEWEST
    expected = f"{right.name} = {write_right(right, decimals)}"
    if entries.shape != right.shape:
        got = "×".join(map(str, entries.shape)) or "one number"
        slip = explain(entries, right, (), ())
        return JudgedClaim(claim.text, False, expected, (f"{got} given, {right.form} expected",), slip)
    differing = entries.differing(right.values)
    if not differing:
        return JudgedClaim(claim.text, True, expected)
    slip = explain(entries, right, names.quantities, claim.target.places)
    return JudgedClaim(claim.text, False, expected, _places(entries, right, differing, decimals), slip)


def _places(entries: Entries, right: Quantity, differing: Sequence[tuple[int, ...]], decimals: int) -> tuple[str, ...]:
    """The first entries that differ; a lone number is told by what is right."""
    if not right.shape:
        return ()
    named = [(place, [right.labels[axis][one] for axis, one in enumerate(place)]) for place in differing]
    said = [
        f"[{', '.join(labels)}]: {entries.numbers[place].text} given, "
        f"{write_number(float(right.values[place]), decimals)} is right"
        for place, labels in named[:MOST_PLACES]
    ]
    more = len(differing) - len(said)
    return (*said, *([f"and {more} more"] if more else []))


def _judge_words(claim: Claim, value: Any, right: WordQuantity) -> JudgedClaim:
    expected = f"{right.name} = {write_right(right, 0)}"
    if isinstance(value, list) and right.labels and len(value) != len(right.values):
        return JudgedClaim(claim.text, False, expected, (f"{len(value)} given, {len(right.values)} words expected",))
    wrong = [(place, word) for place, word in words_of(value, right) if not same_word(word, right.values[place])]
    said = tuple(
        f"[{right.labels[0][place]}]: {word} given, {' or '.join(dict.fromkeys(right.values[place][:2]))} is right"
        for place, word in wrong[:MOST_PLACES]
        if right.labels
    )
    return JudgedClaim(claim.text, not wrong, expected, said)


def _compare(claim: Claim, left: Quantity | WordQuantity, names: Names) -> JudgedClaim:
    """One number beside another: `alpha2[they, Ajax] > alpha2[they, Juventus]`."""
    number = read_number(claim.right)
    other = number if number else names.find(read_target(claim.right))
    mine, theirs = _one(left), other.value if isinstance(other, Numeral) else _one(other)
    holds = mine > theirs + 1e-12 if claim.sign == ">" else mine < theirs - 1e-12
    beside = claim.right if number else f"{claim.right} = {write_number(theirs, FEWEST)}"
    return JudgedClaim(claim.text, holds, f"{left.name} = {write_number(mine, FEWEST)}, {beside}")


def _one(quantity: Quantity | WordQuantity) -> float:
    if isinstance(quantity, WordQuantity) or quantity.shape:
        raise InputError(f"{quantity.name}: < and > are for single numbers, as in alpha2[they, Ajax] > 0.1.")
    return float(quantity.values)
