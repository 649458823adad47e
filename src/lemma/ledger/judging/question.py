"""A formula as it was read, and the model's in the same symbols."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate

from lemma.errors import InputError, LedgerError
from lemma.ledger.account import Account
from lemma.ledger.formula import Rational, read_formula
from lemma.ledger.polynomial import Polynomial, symbol
from lemma.ledger.quantity import Part, Quantity
from lemma.ledger.subject import BATCH
from lemma.ledger.writing import write

COUNTED = frozenset({"V", "N", "T", "S"})
LARGEST_DIFFERENCE = 60  # terms beyond which nobody can be told what is wrong in a sentence


@dataclass(frozen=True)
class Question:
    """What is asked: whether `yours` is equal to `quantity`, both in the same symbols."""

    account: Account
    quantity: Quantity
    yours: Rational

    @property
    def model(self) -> Polynomial:
        """The model's formula."""
        return self.quantity.polynomial

    @cached_property
    def polynomial(self) -> Polynomial | None:
        """The person's formula, where it is a polynomial."""
        try:
            return self.yours.polynomial()
        except InputError:  # a division that takes too long
            return None

    @cached_property
    def difference(self) -> Rational:
        """Yours − model."""
        if self.polynomial is None:
            return self.yours - Rational(self.model)
        return Rational(self.polynomial - self.model)

    @property
    def residual(self) -> Polynomial | None:
        """Yours − model, where it is a polynomial short enough to be explained."""
        if self.polynomial is None or len(self.difference.numerator.terms) > LARGEST_DIFFERENCE:
            return None
        return self.difference.numerator

    @property
    def equal(self) -> bool:
        """Whether they are the same function."""
        return not self.difference.numerator

    @cached_property
    def names(self) -> list[str]:
        """The symbols that a person may have mistaken for others: all but the batch."""
        return [name for name in self.account.order if name != BATCH]

    @cached_property
    def counts(self) -> list[str]:
        """The symbols that count layers, words or places; people are off by one in these, not in widths."""
        layers = {name for part in self.quantity.parts for name in part.repeats.symbols}
        return [name for name in self.names if name in layers | COUNTED]

    def write(self, formula: Polynomial | Rational) -> str:
        """A formula as a person would write it."""
        return write(formula, self.account.order)

    @property
    def written_difference(self) -> str:
        """Yours − model, with the minus where it is read best."""
        usual, turned = self.write(self.difference), self.write(-self.difference)
        turned = f"-({turned})" if is_sum(turned) else f"-{turned}"
        return min(usual, turned, key=lambda text: (text.count("(-"), len(text)))

    @property
    def right(self) -> str:
        """The model's formula."""
        return self.quantity.formula(self.account.order)


def ask(account: Account, name: str, text: str, aliases: Mapping[str, str]) -> Question:
    """Read a formula, and put the model's in its symbols: a size that follows from others may be left out."""
    quantity = account.quantities[name]
    if quantity.refused:
        place, why = next(iter(quantity.refused.items()))
        raise LedgerError(f"{account.model}: its {name} follow no formula in '{place}': {why}")
    yours = read_formula(text, [*account.order, *aliases])
    for alias, known in aliases.items():
        yours = put(yours, alias, symbol(known))
    asked = Question(account, quantity, yours)
    unused = {size: default for size, default in account.defaults.items() if size not in yours.symbols}
    first, last = _with_defaults(asked, unused), _with_defaults(asked, account.defaults)
    return min(first, last, key=lambda one: len(one.difference.numerator.terms))


def with_numbers(question: Question) -> Question | None:
    """The same with numbers in the place of the sizes that the person's formula does not name; None without such.

    The batch and the time stay: a formula without them counts for less than a batch.
    """
    fixed = {BATCH, "T"} if question.quantity.name != "parameters" else set()
    absent = question.model.symbols - question.yours.symbols - fixed
    if not absent or (question.yours.symbols and not question.yours.symbols & question.model.symbols):
        return None
    numbers = {name: Polynomial({(): question.account.symbols[name]}) for name in sorted(absent)}
    return _with_defaults(question, numbers)


def _with_defaults(question: Question, defaults: Mapping[str, Polynomial]) -> Question:
    yours, parts = question.yours, question.quantity.parts
    for name, default in defaults.items():
        yours, parts = put(yours, name, default), tuple(_put(part, name, default) for part in parts)
    return replace(question, yours=yours, quantity=replace(question.quantity, parts=parts))


def _put(part: Part, name: str, value: Polynomial) -> Part:
    shape = None if part.shape is None else tuple(size.put(name, value) for size in part.shape)
    return replace(part, each=part.each.put(name, value), repeats=part.repeats.put(name, value), shape=shape)


def put(formula: Rational, name: str, value: Polynomial) -> Rational:
    """Put something in the place of a symbol."""
    if name not in formula.symbols:
        return formula
    return Rational(formula.numerator.put(name, value), formula.denominator.put(name, value))


def is_sum(text: str) -> bool:
    """Whether a written formula is a sum outside all brackets.

    >>> is_sum("d*(V + T)"), is_sum("V*d + T")
    (False, True)
    """
    depths = accumulate((character in "([") - (character in ")]") for character in text)
    return text.startswith("-") or any(
        not depth and text[place : place + 3] in (" + ", " - ") for place, depth in enumerate(depths)
    )
