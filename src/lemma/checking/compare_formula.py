"""An answer next to the model's formula in the same symbols, and the verdict on it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any

from lemma.checking.read_formula import FormulaReading, read_answer, substitute
from lemma.counting.account import Account, Part, Quantity
from lemma.counting.polynomial import FormulaTooLarge, Polynomial, Rational, as_polynomial, symbol, work_limit
from lemma.counting.subject import BATCH
from lemma.counting.writing import write_formula
from lemma.errors import CountingError
from lemma.report.numbers import WrittenNumber
from lemma.report.result import Block, Result, Table, Text, to_plain

COUNT_SYMBOLS = frozenset({"V", "N", "T", "S"})  # besides the numbers of layers
MAX_INTERPRETATIONS = 6
MAX_DIFFERENCE_TERMS = 60  # a longer difference cannot be explained in a sentence
MAX_PRINTED_TERMS = 200  # of a longer formula only the number of terms is printed
MAX_COMPARING_STEPS, MAX_WRITING_STEPS = 80_000, 10_000  # steps of work, see `work_limit`
Number = int | Fraction


@dataclass(frozen=True)
class FormulaComparison:
    """A student's formula next to the model's formula for the same quantity, in the same symbols."""

    account: Account
    quantity: Quantity
    answer: Rational
    notes: tuple[str, ...]  # how the formula was read, and mistakes on the way to it
    original_parts: tuple[Part, ...]  # of the quantity before sizes that follow from others were substituted
    stated_number: Fraction | None  # what the formula is said to be at the requested sizes, as in V*d = 32,768
    fixed_sizes: frozenset[str]  # symbols of the sizes that the user set
    stated: WrittenNumber | None = None  # the stated number with its precision

    @property
    def expected(self) -> Polynomial:
        """The model's formula, the right answer."""
        with work_limit(None):
            return self.quantity.polynomial

    @cached_property
    def answer_polynomial(self) -> Polynomial | None:
        """The student's formula as a polynomial; None if it is not one, such as d/(d + 1), or is too large."""
        try:
            return self.answer.to_polynomial()
        except FormulaTooLarge:
            return None

    @cached_property
    def difference(self) -> Rational:
        """The student's formula minus the model's."""
        if self.answer_polynomial is None:
            return self.answer - Rational(self.expected)
        return Rational(self.answer_polynomial - self.expected)

    @property
    def explainable_difference(self) -> Polynomial | None:
        """The student's formula minus the model's; None if it is not a polynomial, or too long to be explained."""
        if self.answer_polynomial is None or len(self.difference.numerator.terms) > MAX_DIFFERENCE_TERMS:
            return None
        return self.difference.numerator

    @property
    def is_equal(self) -> bool:
        """True if the student's formula and the model's are equal at all sizes."""
        return not self.difference.numerator

    def can_omit(self, name: str) -> bool:
        """Return whether an answer may lack the symbol `name`: the user fixed its size, or its size is 1.

        A bare number lacks all symbols; whether one was expected is not decided here.
        """
        return name in self.fixed_sizes or self.account.symbols[name] == 1 or self.answer.constant is not None

    @property
    def has_wrong_number(self) -> bool:
        """True if the number stated after the formula, as in V*d = 32,768, is not its value at the model's sizes."""
        if self.stated_number is None:
            return False
        return not is_stated_right(self.stated_number, self.stated, self.answer.at(self.account.symbols))

    @cached_property
    def confusable_symbols(self) -> list[str]:
        """The account's symbols that people mistake for each other: all but the batch."""
        return [name for name in self.account.order if name != BATCH]

    @cached_property
    def counting_symbols(self) -> list[str]:
        """Symbols that count layers, words or positions; people are off by 1 in these, not in widths."""
        layers = {name for part in self.quantity.groups for name in part.repeats.symbols}
        return [name for name in self.confusable_symbols if name in layers | COUNT_SYMBOLS]

    def write(self, formula: Polynomial | Rational) -> str:
        """Return a formula as text in the account's order of symbols; only its number of terms if it is too long."""
        return write_or_summarize(formula, self.account.order)

    def make_verdict(self, *diagnosis: str, equal: bool = False) -> "Verdict":
        """Return the verdict on the answer; `diagnosis` are sentences that explain it, best first."""
        account, residual = self.account, None
        if not equal and not self.is_equal:
            direct, negated = self.write(self.difference), self.write(-self.difference)
            negated = f"-({negated})" if is_sum(negated) else f"-{negated}"
            residual = min(direct, negated, key=lambda text: (text.count("(-"), len(text)))
        answer = self.write(self.answer)
        if self.stated_number is not None and self.has_wrong_number:
            answer += f" = {format_number(self.stated_number)}"
        with work_limit(None):
            expected = self.quantity.write_formula(account.order)
        return Verdict(
            equal=equal,
            model=account.model,
            quantity=self.quantity.name,
            yours=answer,
            right=expected,
            residual=residual,
            diagnosis=diagnosis,
            symbols=account.symbols,
            yours_at=self.answer.at(account.symbols),
            right_at=int(self.expected.at(account.symbols)),
            remarks=self.notes,
        )


@work_limit(MAX_COMPARING_STEPS)
def compare_answer(
    account: Account, quantity_name: str, text: str, aliases: Mapping[str, str], fixed_sizes: Iterable[str] = ()
) -> FormulaComparison:
    """Parse an answer and put it next to the model's formula for the quantity.

    The answer may leave out sizes that follow from others, such as d_ff = 4d, and those in `fixed_sizes`, which the
    user set, by symbol or alias.
    """
    quantity = account.quantities[quantity_name]
    if quantity.refused:
        path, reason = next(iter(quantity.refused.items()))
        raise CountingError(f"{account.model}: its {quantity_name} follow no formula in '{path}': {reason}")
    reading = read_answer(text, [*account.order, *aliases])
    alias_values = {alias: symbol(name) for alias, name in aliases.items()}
    # the model's formula holds at these sizes only
    only_at = {name: as_polynomial(size) for name, size in quantity.domain.only_at.items()}
    *chain, answer = (
        substitute(substitute(member, alias_values), only_at) for member in (*reading.chain, reading.value)
    )
    notes = _reading_notes(reading, account, aliases)
    is_list = len(chain) == 1 and "=" not in text and reading.stated is None
    notes += _chain_notes((*chain, answer), account, is_list, reading.stated)
    # a number after a formula is the formula's value at the requested sizes: the formula is checked
    stated_number = None
    formula = next((member for member in reversed(chain) if member.constant is None), None)
    if formula is not None and answer.constant is not None:
        answer, stated_number = formula, answer.constant
    numeric_settings = (name for name, value in reading.settings.items() if value.constant is not None)
    fixed = frozenset(aliases.get(name, name) for name in (*fixed_sizes, *numeric_settings))
    comparison = FormulaComparison(
        account, quantity, answer, tuple(notes), quantity.groups, stated_number, fixed, reading.stated
    )
    return substitute_defaults(comparison)


def _reading_notes(reading: FormulaReading, account: Account, aliases: Mapping[str, str]) -> list[str]:
    """Return sentences on letters with two readings, and on settings in the answer that differ from the model's."""
    notes: list[str] = []
    if reading.interpretations:
        num_hidden = len(reading.interpretations) - MAX_INTERPRETATIONS
        more = f" and {num_hidden} more" if num_hidden > 0 else ""
        notes.append(f"Read {', '.join(reading.interpretations[:MAX_INTERPRETATIONS])}{more}.")
    for name, setting in reading.settings.items():
        size, value = aliases.get(name, name), substitute(setting, {alias: symbol(of) for alias, of in aliases.items()})
        actual = account.symbols[size]
        expected = account.defaults.get(size, as_polynomial(actual))
        if value not in (Rational(expected), Rational(symbol(size))) and value.constant != actual:
            notes.append(
                f"Your formula takes {size} = {write_or_summarize(value, account.order)}; "
                f"the model has {size} = {write_formula(expected, account.order)}."
            )
    return notes


def is_stated_right(value: Fraction, stated: WrittenNumber | None, exact: Fraction) -> bool:
    """Return whether a number after a formula is its value, rounded to the digits written."""
    return value == exact or (stated is not None and stated.value == value and stated.matches(exact))


def _chain_notes(
    members: Sequence[Rational], account: Account, is_list: bool, stated: WrittenNumber | None = None
) -> list[str]:
    """Return a sentence on the first wrong equality of the members of a chain a = b = c; or [].

    With `is_list` the first member is a sum of listed parts and the second their total.
    """
    for number, (left, right) in enumerate(pairwise(members), 1):
        difference = substitute(left - right, account.defaults)
        is_numeric = left.constant is not None or right.constant is not None
        if not difference.numerator or (is_numeric and not difference.at(account.symbols)):
            continue
        if right.constant is not None and is_stated_right(right.constant, stated, left.at(account.symbols)):
            continue
        if is_numeric:
            amount = format_number(difference.at(account.symbols))
        else:
            amount = write_or_summarize(difference, account.order)
        step = "The parts do not add up to the total" if is_list else f"Step {number} of your chain is wrong"
        return [f"{step}: the two sides differ by {amount}."]
    return []


def substitute_defaults(comparison: FormulaComparison) -> FormulaComparison:
    """Return the comparison with sizes that follow from others, such as d_ff = 4d, replaced in the model's formula.

    They are replaced in both formulas or only where the answer does not name them, whichever makes the difference
    shorter.
    """
    comparison = replace(comparison, quantity=replace(comparison.quantity, groups=comparison.original_parts))
    defaults = comparison.account.defaults
    unused = {size: default for size, default in defaults.items() if size not in comparison.answer.symbols}
    candidates = (_substitute_symbols(comparison, unused), _substitute_symbols(comparison, defaults))
    return min(candidates, key=lambda candidate: len(candidate.difference.numerator.terms))


def substitute_sizes(comparison: FormulaComparison) -> FormulaComparison | None:
    """Return the comparison with numbers for the sizes that the answer does not name; None if there are no such sizes.

    Batch and time stay, unless they may be omitted: a formula without them counts for less than a batch.
    """
    input_sizes = {BATCH, "T"} if comparison.quantity.name != "parameters" else set()
    answer, expected = comparison.answer.symbols, comparison.expected.symbols
    absent = {name for name in expected - answer if name not in input_sizes or comparison.can_omit(name)}
    if not absent or (answer and not answer & expected):
        return None
    sizes = comparison.account.symbols
    return _substitute_symbols(comparison, {name: as_polynomial(sizes[name]) for name in sorted(absent)})


def _substitute_symbols(comparison: FormulaComparison, values: Mapping[str, Polynomial]) -> FormulaComparison:
    """Return the comparison with symbols replaced by polynomials in the answer and in the model's formula."""
    with work_limit(None):
        parts = tuple(part.substitute(values) for part in comparison.quantity.groups)
    quantity = replace(comparison.quantity, groups=parts)
    return replace(comparison, answer=substitute(comparison.answer, values), quantity=quantity)


def write_or_summarize(formula: Polynomial | Rational, order: Sequence[str]) -> str:
    """Return a formula as text with symbols in this order, or a phrase with its number of terms if it is too long."""
    polynomials = (formula.numerator, formula.denominator) if isinstance(formula, Rational) else (formula,)
    num_terms = max(len(polynomial.terms) for polynomial in polynomials)
    if num_terms > MAX_PRINTED_TERMS:
        is_quotient = len(polynomials) > 1 and len(polynomials[1].terms) > 1
        return f"a {'quotient of sums' if is_quotient else 'sum'} of {num_terms:,} terms"
    with work_limit(MAX_WRITING_STEPS):
        return write_formula(formula, order)


def is_sum(text: str) -> bool:
    """Return whether the text of a formula is a sum or difference outside all brackets, or starts with a minus.

    >>> is_sum("d*(V + T)"), is_sum("V*d + T")
    (False, True)
    """
    depths = accumulate((character in "([") - (character in ")]") for character in text)
    return text.startswith("-") or any(
        not depth and text[index : index + 3] in (" + ", " - ") for index, depth in enumerate(depths)
    )


@dataclass(frozen=True)
class Verdict(Result):
    """The verdict on a formula or a number, with the right answer and explanations; true if the answer is right."""

    equal: bool
    model: str
    quantity: str
    yours: str  # the answer as it was read
    right: str  # the model's formula
    residual: str | None  # answer − model in its simplest form; None if there is no difference
    diagnosis: tuple[str, ...]  # explanations, best first
    symbols: Mapping[str, int]  # the requested sizes, at which the next two are taken
    yours_at: Number
    right_at: Number
    remarks: tuple[str, ...] = ()  # how the formula was read where it has two readings; a wrong step of a chain

    def __bool__(self) -> bool:
        return self.equal

    def claim_and_correction(self) -> tuple[str, str]:
        """Return the answer as it was read, and the right answer with its explanations, "" if the answer is right."""
        return self.yours, "" if self.equal else " ".join([f"{self.right}.", *self.diagnosis])

    @property
    def title(self) -> str:
        """The title of the report, such as "decoder: parameters"."""
        return f"{self.model}: {self.quantity}"

    @property
    def solution(self) -> str:
        """The right answer; a formula with its number at the requested sizes."""
        number = format_number(self.right_at)
        return f"{self.right} = {number}" if has_symbols(self.right) and self.right != number else self.right

    @property
    def headline(self) -> str:
        """The verdict in a sentence such as "Not equal: yours − model = −d_h.", printed first."""
        if self.equal:
            return f"Equal: {self.solution}."
        if self.residual is None:
            return f"Not equal: yours is {self.yours}, the model's {self.right}."
        is_accidental = has_symbols(self.residual) and self.yours_at == self.right_at
        note = ", which is 0 at these sizes only" if is_accidental else ""
        return f"Not equal: yours − model = {self.residual.replace('-', '−')}{note}."

    def blocks(self) -> list[Block]:
        """Return the headline, explanations and remarks as a paragraph."""
        return [Text(" ".join([self.headline, *self.diagnosis, *self.remarks]), "note")]

    def details(self) -> list[Block]:
        """Return the headline, a table of both formulas and their numbers, and the explanations."""
        rows = [("yours", self.yours, self.yours_at), (self.title, self.right, self.right_at)]
        cells = [(name, text, f"= {format_number(number)}" if has_symbols(text) else "") for name, text, number in rows]
        headline = Text(self.headline, "good" if self.equal else "bad")
        return [headline, Table(("", "", ""), cells, left=(0, 1)), *map(Text, (*self.diagnosis, *self.remarks))]

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as plain values for JSON, fractions as floats."""
        numbers = {"yours_at": Fraction(self.yours_at), "right_at": Fraction(self.right_at)}
        values = {name: int(at) if at.denominator == 1 else float(at) for name, at in numbers.items()}
        return to_plain({**vars(self), **values})


def has_symbols(text: str) -> bool:
    """Return whether the text of a formula has a letter and is not just a number."""
    return any(character.isalpha() for character in text)


def format_number(value: Number) -> str:
    """Return a number as text, with thousands separated if it is whole.

    >>> format_number(9721596), format_number(Fraction(1, 3))
    ('9,721,596', '0.333333')
    """
    return f"{int(value):,}" if Fraction(value).denominator == 1 else f"{float(value):,.6g}"
