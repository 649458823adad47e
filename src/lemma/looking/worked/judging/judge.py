"""Judge a hand computation: every line against the quantities of the worked case."""

from collections.abc import Sequence
from typing import Any

from lemma.errors import InputError
from lemma.looking.worked.judging.cases import BYTE_PAIRS, name_quantities
from lemma.looking.worked.judging.claims import Claim, read_claim, read_target
from lemma.looking.worked.judging.comparing import Entries, read_entries, same_word, words_of
from lemma.looking.worked.judging.finding import Names
from lemma.looking.worked.judging.numbers import Given as Numeral
from lemma.looking.worked.judging.numbers import read_number
from lemma.looking.worked.judging.quantity import Quantity, WordQuantity
from lemma.looking.worked.judging.report import JudgedClaim, WorkedReport
from lemma.looking.worked.judging.slips import explain
from lemma.looking.worked.judging.values import read_value
from lemma.looking.worked.judging.writing import FEWEST, write_number, write_right
from lemma.looking.worked.reading import Given
from lemma.typeset import fit, table

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
