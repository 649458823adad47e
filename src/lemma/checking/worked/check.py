"""Checking a hand computation, line by line, against a worked case."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from shlex import quote
from string import ascii_uppercase
from typing import Any

from lemma.checking.check_values import (
    AnswerKey,
    ValueClaim,
    ValueReport,
    check_lines,
    describe_values,
    normalize_name,
)
from lemma.checking.read_values import write_value
from lemma.checking.worked.attention import work_attention, work_cross_attention
from lemma.checking.worked.bpe import MAX_ORDERS, MAX_SMALL_CHARS, expected_byte_pairs
from lemma.checking.worked.case import KIND_FIELDS, CaseLike, detect_kind, list_examples
from lemma.checking.worked.graph import TABLE_SUFFIXES, work_graph
from lemma.checking.worked.lstm import work_lstm
from lemma.checking.worked.matching import work_matching
from lemma.errors import InputError, SpecError, describe_unknown
from lemma.spec.base import read_toml

BPE_PREFIX = "bpe:"
SOLVERS: dict[str, Callable[..., Any]] = {
    "attention": work_attention,
    "cross": work_cross_attention,
    "graph": work_graph,
    "lstm": work_lstm,
    "matching": work_matching,
}
TIE_NOTE = (
    "Ties: any of the most frequent pairs may be merged first, so long as all lines keep to one order. Lemma's own "
    "rule: the pair whose left symbol comes first, then whose right symbol does."
)
BPE_NAMES = """\
merges        words     the pairs in the order of merging: [ab, Ab]
merge1        a word    the pair of step 1, and so on; A is another name of it
count1        a number  how often that pair occurs, and so on
counts1       a table   all pairs before step 1: {ab: 4, bb: 3}, and so on
segmentation  words     each word in its symbols: {abb: A b}
steps         a number  how many merges
symbols       a number  symbols of the whole text at the end

Symbols that are merged are A, B, C … as they are made; \\w ends a word."""
_BPE_STEP = re.compile(r"(merge|counts?)(\d{1,4})")


def check_worked(case: CaseLike, lines: Sequence[str], show_solution: bool = False) -> ValueReport:
    """Return a report on lines `NAME = VALUE` of a hand computation, compared with a worked case.

    Args:
        case: the name of an example, a TOML file, a mapping of fields, or "bpe:TEXT".
        lines: the answer; an item may hold several lines.
        show_solution: whether wrong lines show what is right.

    >>> check_worked("e9", ["c_t = [0.52, -0.34]", "h_t[1] = 0.364"]).lines[1].mistake
    'tanh is left out: Γ_o∗c_t.'
    """
    name = case if isinstance(case, str) else "the case"
    notes = (TIE_NOTE,) if name.startswith(BPE_PREFIX) else ()
    heading = f"A hand computation of {name}"
    return check_lines(name, lines, lambda claims: answer_keys(case, claims), heading, notes, show_solution)


def describe_worked(case: CaseLike) -> str:
    """Return a table of every name that an answer may claim, with its shape and meaning but no values."""
    if isinstance(case, str) and case.startswith(BPE_PREFIX):
        return BPE_NAMES
    return describe_values(next(answer_keys(case)).expected)


def answer_keys(case: CaseLike, claims: Sequence[ValueClaim] = ()) -> Iterator[AnswerKey]:
    """Yield the answer key of a case; of byte-pair encoding one key per order of merges, the claimed order first.

    >>> key = next(answer_keys("e9"))
    >>> [value.name for value in key.expected][:5]
    ['kept', 'added', 'c_t', 'tanh_c', 'h_t']
    """
    name = "the case" if isinstance(case, Mapping) else str(case)
    if isinstance(case, str) and case.startswith(BPE_PREFIX):
        return _byte_pair_keys(name, case.removeprefix(BPE_PREFIX), claims)
    kind = _find_kind(case, name)
    command = f"lemma check worked {quote(name)} --names"
    return iter([AnswerKey(name, SOLVERS[kind](case).expected(), names_command=command)])


def _find_kind(case: CaseLike, name: str) -> str:
    """Return the kind of a case, such as "attention" or "graph"; `name` names the case in errors."""
    if not isinstance(case, Mapping):
        examples = {name: kind for kind in SOLVERS for name in list_examples(kind).titles}
        if name in examples and not Path(case).is_file():
            return examples[name]
        if Path(case).suffix.lower() in TABLE_SUFFIXES:
            return "graph"
        if not Path(case).is_file():
            message = describe_unknown("case", name, examples)
            raise SpecError(f'check worked: {message} Or give a TOML file of your own, or "bpe:TEXT".')
    kind = detect_kind(case if isinstance(case, Mapping) else read_toml(Path(case)))
    if not kind:
        fields = ", ".join(f"{field} ({kind})" for kind, field in KIND_FIELDS.items())
        raise SpecError(f"{case}: not a case that can be worked out: it holds none of these words: {fields}.")
    return kind


def _byte_pair_keys(name: str, text: str, claims: Sequence[ValueClaim]) -> Iterator[AnswerKey]:
    """Yield an answer key of byte-pair encoding of `text` per order of merges, the claimed one first."""
    if not text.split() or len(text) > MAX_SMALL_CHARS:
        raise InputError(
            f"{BPE_PREFIX} a text of 1 to {MAX_SMALL_CHARS:,} characters is expected behind it, got {len(text):,}."
        )
    steps = [_BPE_STEP.fullmatch(normalize_name(claim.target.name)) for claim in claims]
    count_steps = [int(step[2]) for step in steps if step and step[1] == "counts"]
    # each order is compared with all claims, so that long claims leave time for fewer orders
    orders = MAX_ORDERS * MAX_SMALL_CHARS // max(MAX_SMALL_CHARS, sum(len(claim.text) for claim in claims))
    keys = expected_byte_pairs(text, _claimed_merges(claims, text), count_steps, max(1, orders))

    def absence(merges: int, name: str) -> tuple[str, str] | None:
        """Return the number of merges, and a reason, if a name is about a step after the last one."""
        step = _BPE_STEP.fullmatch(normalize_name(name))
        if step and int(step[2]) > merges + (step[1] == "counts"):
            return f"steps = {merges}", f"there are {merges} merges, after which no pair occurs twice"
        return None

    for expected, merges in keys:
        yield AnswerKey(name, expected, explain_absence=partial(absence, merges))


def _claimed_merges(claims: Sequence[ValueClaim], text: str) -> dict[int, str]:
    """Return the claimed pairs by step from 1, from lines such as merges = [ab, Ab], merge2 = Ab and B = Ab.

    A, B, C … name the merges in their order, without the letters that occur in the encoded `text`.
    """
    letters = [letter for letter in ascii_uppercase if letter not in text]
    merges: dict[int, str] = {}
    for claim in claims:
        name, labels = claim.target.name, claim.target.labels
        if claim.sign != "=":
            continue
        if normalize_name(name) == "merges":
            value = [claim.value] if labels else claim.value
            first = int(labels[0]) if labels and labels[0].isdecimal() else 1
            merges |= {
                step: write_value(pair) for step, pair in enumerate(value if isinstance(value, list) else (), first)
            }
        elif (step := _BPE_STEP.fullmatch(normalize_name(name))) and step[1] == "merge":
            merges[int(step[2])] = write_value(claim.value)
        elif name in letters:
            merges[letters.index(name) + 1] = write_value(claim.value)
    return merges
