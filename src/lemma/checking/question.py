"""What is asked of a model, a formula next to the model's in the same symbols, and what the judge says."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from fractions import Fraction
from functools import cached_property, lru_cache
from itertools import accumulate, pairwise, product
from pathlib import Path
from typing import Any

from lemma.checking.formula import read_answer
from lemma.counting.account import Account, Part, Quantity
from lemma.counting.count import QUANTITIES, Conventions, count
from lemma.counting.polynomial import (
    ONE,
    FormulaTooLarge,
    Polynomial,
    Rational,
    as_polynomial,
    sum_polynomials,
    symbol,
    work_limit,
)
from lemma.counting.subject import BATCH, Model, Subject, body_spec
from lemma.counting.writing import write_formula
from lemma.errors import CountingError, InputError, describe_unknown
from lemma.report.result import Block, Result, Table, Text
from lemma.runs.folder import RunFolder, is_run
from lemma.spec.base import exists
from lemma.spec.choose import Choice, choose, find_preset
from lemma.spec.models import FAMILIES, ModelSpec, NewFamily

COUNT_SYMBOLS = frozenset({"V", "N", "T", "S"})
MAX_INTERPRETATIONS = 6
MAX_DIFFERENCE_TERMS = 60  # terms beyond which nobody can be told what is wrong in a sentence
MAX_WRITTEN_TERMS = 200  # terms beyond which only the number of terms is printed
MAX_CHECKING_STEPS, MAX_COMPARING_STEPS, MAX_EXPLAINING_STEPS, MAX_WRITING_STEPS = 120_000, 80_000, 40_000, 10_000
"""Steps of work for the verdict on one formula, and of it for reading and comparing, for explaining, and for each
formula that is written; see `work_limit`. An honest answer takes some thousands."""


@dataclass(frozen=True)
class FormulaQuestion:
    """What is asked: whether `yours` is equal to `quantity`, both in the same symbols."""

    account: Account
    quantity: Quantity
    answer: Rational
    notes: tuple[str, ...] = ()
    """How the formula was read, and what is to be said about the way to it."""
    original_parts: tuple[Part, ...] = ()
    """The parts of the quantity before sizes that follow from others were put in."""
    stated_number: Fraction | None = None
    """The number that the person says the formula is at the sizes asked for, as in V*d = 32,768."""
    fixed_sizes: frozenset[str] = frozenset()
    """Symbols of the sizes that the person set."""

    @property
    def expected(self) -> Polynomial:
        """The model's formula."""
        with work_limit(None):
            return self.quantity.polynomial

    @cached_property
    def answer_polynomial(self) -> Polynomial | None:
        """The person's formula, where it is a polynomial."""
        try:
            return self.answer.to_polynomial()
        except FormulaTooLarge:
            return None

    @cached_property
    def difference(self) -> Rational:
        """Yours − model."""
        if self.answer_polynomial is None:
            return self.answer - Rational(self.expected)
        return Rational(self.answer_polynomial - self.expected)

    @property
    def explainable_difference(self) -> Polynomial | None:
        """Yours − model, where it is a polynomial short enough to be explained."""
        if self.answer_polynomial is None or len(self.difference.numerator.terms) > MAX_DIFFERENCE_TERMS:
            return None
        return self.difference.numerator

    @property
    def is_equal(self) -> bool:
        """Whether they are the same function."""
        return not self.difference.numerator

    def can_omit(self, name: str) -> bool:
        """Return whether an answer may do without a symbol: the person fixed its size, or as a factor it is just 1.

        A bare number does without all of them; whether one is asked for is not decided here.
        """
        return name in self.fixed_sizes or self.account.symbols[name] == 1 or self.answer.constant is not None

    @property
    def has_wrong_number(self) -> bool:
        """Whether the number after the formula is not the formula's own."""
        return self.stated_number is not None and self.stated_number != self.answer.at(self.account.symbols)

    @cached_property
    def confusable_symbols(self) -> list[str]:
        """The symbols that a person may have mistaken for others: all but the batch."""
        return [name for name in self.account.order if name != BATCH]

    @cached_property
    def count_symbols(self) -> list[str]:
        """The symbols that count layers, words or places; people are off by one in these, not in widths."""
        layers = {name for part in self.quantity.groups for name in part.repeats.symbols}
        return [name for name in self.confusable_symbols if name in layers | COUNT_SYMBOLS]

    def write(self, formula: Polynomial | Rational) -> str:
        """A formula as a person would write it."""
        return write_or_summarize(formula, self.account.order)

    def make_verdict(self, *diagnosis: str, equal: bool = False) -> "Verdict":
        """The verdict on this formula; the difference has its minus where it is read best."""
        account, residual = self.account, None
        if not equal and not self.is_equal:
            usual, turned = self.write(self.difference), self.write(-self.difference)
            turned = f"-({turned})" if is_sum(turned) else f"-{turned}"
            residual = min(usual, turned, key=lambda text: (text.count("(-"), len(text)))
        number = (
            f" = {format_number(self.stated_number)}"
            if self.has_wrong_number and self.stated_number is not None
            else ""
        )
        with work_limit(None):
            right = self.quantity.write_formula(account.order)
        formulas = (f"{self.write(self.answer)}{number}", right)
        numbers = (self.answer.at(account.symbols), int(self.expected.at(account.symbols)))
        about = (equal, account.model, self.quantity.name)
        return Verdict(*about, *formulas, residual, diagnosis, account.symbols, *numbers, self.notes)


def write_or_summarize(formula: Polynomial | Rational, order: Sequence[str]) -> str:
    """Write a formula, or only its number of terms where it is too long to be read."""
    sides = (formula.numerator, formula.denominator) if isinstance(formula, Rational) else (formula,)
    terms = max(len(side.terms) for side in sides)
    if terms > MAX_WRITTEN_TERMS:
        return f"a {'quotient of sums' if len(sides) > 1 and len(sides[1].terms) > 1 else 'sum'} of {terms:,} terms"
    with work_limit(MAX_WRITING_STEPS):
        return write_formula(formula, order)


@work_limit(MAX_COMPARING_STEPS)
def read_question(
    account: Account, quantity_name: str, text: str, aliases: Mapping[str, str], fixed_sizes: Iterable[str] = ()
) -> FormulaQuestion:
    """Read a formula, and put the model's in its symbols: a size that follows from others may be left out.

    `fixed` are the sizes that the person set, by symbol or alias.
    """
    quantity = account.quantities[quantity_name]
    if quantity.refused:
        place, why = next(iter(quantity.refused.items()))
        raise CountingError(f"{account.model}: its {quantity_name} follow no formula in '{place}': {why}")
    reading, sizes = read_answer(text, [*account.order, *aliases]), account.symbols
    meant = {alias: symbol(known) for alias, known in aliases.items()}
    remarks: list[str] = []
    if reading.interpretations:
        more = (
            f" and {len(reading.interpretations) - MAX_INTERPRETATIONS} more"
            if len(reading.interpretations) > MAX_INTERPRETATIONS
            else ""
        )
        remarks.append(f"Read {', '.join(reading.interpretations[:MAX_INTERPRETATIONS])}{more}.")
    for alias, setting in reading.settings.items():
        size, value = aliases.get(alias, alias), substitute_all(setting, meant)
        right = account.defaults.get(size, as_polynomial(sizes[size]))
        if value not in (Rational(right), Rational(symbol(size))) and value.constant != sizes[size]:
            said = f"Your formula takes {size} = {write_or_summarize(value, account.order)}; the model has {size} = "
            remarks.append(f"{said}{write_formula(right, account.order)}.")
    only_at = {
        place: as_polynomial(size) for place, size in quantity.only_at.items()
    }  # where alone the model's formula holds
    *chain, yours = (
        substitute_all(substitute_all(member, meant), only_at) for member in (*reading.chain, reading.value)
    )
    for place, (left, right) in enumerate(pairwise((*chain, yours)), 1):
        gap = substitute_all(left - right, account.defaults)
        numeric = left.constant is not None or right.constant is not None
        if gap.numerator and not (numeric and not gap.at(sizes)):
            difference = format_number(gap.at(sizes)) if numeric else write_or_summarize(gap, account.order)
            where = (
                "The parts do not add up to the total"
                if len(chain) == 1 and "=" not in text
                else f"Step {place} of your chain is wrong"
            )
            remarks.append(f"{where}: the two sides differ by {difference}.")
            break
    # a number after a formula is what the formula is at the sizes asked for: the formula is judged
    formula = next((member for member in reversed(chain) if member.constant is None), None)
    number = yours.constant if formula is not None else None
    yours = formula if formula is not None and number is not None else yours
    settings = (name for name, value in reading.settings.items() if value.constant is not None)
    known = frozenset(aliases.get(name, name) for name in (*fixed_sizes, *settings))
    return substitute_defaults(
        FormulaQuestion(account, quantity, yours, tuple(remarks), quantity.groups, number, known)
    )


def substitute_defaults(question: FormulaQuestion) -> FormulaQuestion:
    """The question where a size that follows from others is put as its formula, if the person did so."""
    question = replace(question, quantity=replace(question.quantity, groups=question.original_parts))
    defaults = question.account.defaults
    unused = {size: default for size, default in defaults.items() if size not in question.answer.symbols}
    first, last = _substitute_symbols(question, unused), _substitute_symbols(question, defaults)
    return min(first, last, key=lambda one: len(one.difference.numerator.terms))


def substitute_sizes(question: FormulaQuestion) -> FormulaQuestion | None:
    """Return the same with numbers for the sizes that the person's formula does not name; None without such.

    The batch and the time stay, unless they may be omitted: a formula without them counts for less than a batch.
    """
    running = {BATCH, "T"} if question.quantity.name != "parameters" else set()
    absent = question.expected.symbols - question.answer.symbols
    absent = {name for name in absent if name not in running or question.can_omit(name)}
    if not absent or (question.answer.symbols and not question.answer.symbols & question.expected.symbols):
        return None
    return _substitute_symbols(
        question, {name: as_polynomial(question.account.symbols[name]) for name in sorted(absent)}
    )


def _substitute_symbols(question: FormulaQuestion, values: Mapping[str, Polynomial]) -> FormulaQuestion:
    parts = question.quantity.groups
    with work_limit(None):
        for name, value in values.items():
            parts = tuple(
                replace(
                    part,
                    each=part.each.substitute(name, value),
                    repeats=part.repeats.substitute(name, value),
                    shape=None if part.shape is None else tuple(size.substitute(name, value) for size in part.shape),
                )
                for part in parts
            )
    return replace(
        question, answer=substitute_all(question.answer, values), quantity=replace(question.quantity, groups=parts)
    )


def substitute_all(formula: Rational, values: Mapping[str, Polynomial]) -> Rational:
    """Put something in the place of some symbols."""
    for name, value in values.items():
        if name in formula.symbols:
            denominator = formula.denominator.substitute(name, value)
            if not denominator:
                raise InputError(f"the formula divides by zero where {name} = {value}")
            formula = Rational(formula.numerator.substitute(name, value), denominator)
    return formula


def is_sum(text: str) -> bool:
    """Whether a written formula is a sum outside all brackets.

    >>> is_sum("d*(V + T)"), is_sum("V*d + T")
    (False, True)
    """
    depths = accumulate((character in "([") - (character in ")]") for character in text)
    return text.startswith("-") or any(
        not depth and text[place : place + 3] in (" + ", " - ") for place, depth in enumerate(depths)
    )


COMMON_NAMES = {
    **dict.fromkeys(("d_model", "n_embd", "d_embed", "hidden_size"), "d"),
    **dict.fromkeys(("n_layers", "n_layer", "num_layers", "N_layers"), "L"),
    **dict.fromkeys(("n_heads", "n_head", "num_heads"), "h"),
    **dict.fromkeys(("n_vocab", "vocab_size", "d_vocab"), "V"),
    **dict.fromkeys(("n_ctx", "seq_len", "T_max", "block_size"), "T"),
    **dict.fromkeys(("d_hidden", "n_hidden", "d_hid"), "d_h"),
}
"""Names that papers and code give to sizes; each holds where the model has the letter and not the name."""
TIED_SIZES = {"D": "d"}  # where a tied output makes two sizes one, the account knows it by the second name


def spec_of(model: Model, settings: Mapping[str, Any] | None, subject: Subject) -> ModelSpec | None:
    """The spec that a model's subject was made from; None for a factory."""
    own = {word: value for word, value in (settings or {}).items() if word != BATCH and word not in subject.input_sizes}
    if isinstance(model, (Choice, NewFamily, *FAMILIES.values())):
        return choose(model, own).model
    if isinstance(model, (str, Path)) and is_run(Path(model)):
        return choose(RunFolder.open(Path(model)).spec, own).model
    if isinstance(model, (str, Path)) and (exists(Path(model)) or find_preset(str(model))):
        return choose(model, own).model
    return None


def symbol_aliases(spec: ModelSpec | None, symbols: Mapping[str, int]) -> dict[str, str]:
    """Other names for an account's symbols: the fields' names, `batch`, the letter of a tied size."""
    names = {"batch": BATCH} if BATCH in symbols else {}
    # a classifier has its body's letters too
    letters = {**type(body_spec(spec)).letters(), **type(spec).letters()} if spec else {}
    for letter, name in letters.items():
        symbol = letter if letter in symbols else TIED_SIZES.get(letter, letter)
        if symbol in symbols:
            names |= {other: symbol for other in (name, letter) if other not in symbols}
    common = {name: letter for name, letter in COMMON_NAMES.items() if letter in symbols}
    return {name: letter for name, letter in common.items() if name not in symbols} | names


@work_limit(None)
def alternative_conventions(subject: Subject, conventions: Conventions) -> list[tuple[tuple[str, ...], Polynomial]]:
    """All ways of counting but the one asked for, each with its formula; those that differ least first.

    A multiply–add counts as one or as two, causal attention in full or half, forward, backward or both; and people
    leave B or T out: for the batch, for one row of it, for one token.
    """
    other, turned = 3 - conventions.multiply_add, "full" if conventions.causal == "half" else "half"
    causal = "with causal attention counted in full" if turned == "full" else "with causal attention counted half"
    fused = {(): conventions, (f"with a multiply–add counted as {other}",): replace(conventions, multiply_add=other)}
    batch, time = symbol(BATCH), symbol("T")
    passes = {
        (): ("flops",),
        ("for the backward pass alone",): ("backward",),
        ("for the forward and the backward pass together",): ("flops", "backward"),
    }
    found: list[tuple[tuple[str, ...], Polynomial]] = []
    for (one, convention), half in product(fused.items(), ((), (causal,))):
        chosen = replace(convention, causal=turned) if half else convention
        account = count_cached(subject, ("flops", "backward"), chosen)
        for phase, names in passes.items():
            whole = sum_polynomials(account.quantities[name].polynomial for name in names)
            portions = {(): whole, ("for one row of the batch (without B)",): whole / batch}
            if "T" in whole.symbols:
                portions[("for one token of each row (without T)",)] = whole / time
                portions[("for one token (without B and T)",)] = whole / batch / time
            for portion, formula in portions.items():
                found.append(((*one, *half, *phase, *portion), formula))
    return sorted((reading for reading in found if reading[0]), key=lambda reading: len(reading[0]))


Number = int | Fraction


@dataclass(frozen=True)
class Verdict(Result):
    """One answer judged: what the person gave, what is right, the difference, and its explanation, best first."""

    equal: bool
    model: str
    quantity: str
    yours: str
    right: str
    residual: str | None
    """Yours − model in its simplest form; None if there is no difference."""
    diagnosis: tuple[str, ...]
    symbols: Mapping[str, int]
    """The sizes asked for, at which the two numbers are taken."""
    yours_at: Number
    right_at: Number
    remarks: tuple[str, ...] = ()
    """How the formula was read, where it could be read in two ways, and which step of a chain is wrong."""

    def __bool__(self) -> bool:
        return self.equal

    def claim_and_correction(self) -> tuple[str, str]:
        """Return the answer, and what is right instead; nothing if it is right."""
        return self.yours, "" if self.equal else " ".join([f"{self.right}.", *self.diagnosis])

    @property
    def title(self) -> str:
        """What was asked for."""
        return f"{self.model}: {self.quantity}"

    @property
    def headline(self) -> str:
        """The verdict in one line."""
        if self.equal:
            return f"Equal: {self.right}{f' = {format_number(self.right_at)}' if has_symbols(self.right) else ''}."
        if self.residual is None:
            return f"Not equal: yours is {self.yours}, the model's {self.right}."
        only = (
            ", which is 0 at these sizes only" if has_symbols(self.residual) and self.yours_at == self.right_at else ""
        )
        return f"Not equal: yours − model = {self.residual.replace('-', '−')}{only}."

    def blocks(self) -> list[Block]:
        """The verdict and its explanation."""
        return [Text(" ".join([self.headline, *self.diagnosis, *self.remarks]), "note")]

    def details(self) -> list[Block]:
        """The same, with both formulas and their numbers."""
        rows = {"yours": (self.yours, self.yours_at), self.title: (self.right, self.right_at)}
        cells = [
            (name, text, f"= {format_number(at)}" if has_symbols(text) else "") for name, (text, at) in rows.items()
        ]
        headline = Text(self.headline, "good" if self.equal else "bad")
        return [headline, Table(("", "", ""), cells, left=(0, 1)), *map(Text, (*self.diagnosis, *self.remarks))]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        numbers = {"yours_at": Fraction(self.yours_at), "right_at": Fraction(self.right_at)}
        plain = {name: int(at) if at.denominator == 1 else float(at) for name, at in numbers.items()}
        return {**asdict(self), "diagnosis": list(self.diagnosis), "remarks": list(self.remarks), **plain}


def has_symbols(text: str) -> bool:
    """Whether there are symbols in it, and not just a number."""
    return any(character.isalpha() for character in text)


def format_number(value: Number) -> str:
    """A number as it is printed: whole ones with their thousands apart.

    >>> shown(9721596), shown(Fraction(1, 3))
    ('9,721,596', '0.333333')
    """
    return f"{int(value):,}" if Fraction(value).denominator == 1 else f"{float(value):,.6g}"


PARAMETER_SUBSETS = ("trainable", "frozen")
"""Both are taken from the parameters: what an optimizer moves, and what it leaves as it is."""
CHECKED_QUANTITIES = (*QUANTITIES, *PARAMETER_SUBSETS)


def split_ratio(quantity: str) -> tuple[str, ...]:
    """The quantities that are named: one, or two with a stroke between them; each may be `of` a part.

    >>> split_ratio("trainable/frozen"), split_ratio("parameters of encoder")
    (('trainable', 'frozen'), ('parameters of encoder',))
    """
    names = tuple(" ".join(name.split()) for name in quantity.split("/"))
    for name in names:
        if name.partition(" of ")[0] not in CHECKED_QUANTITIES:
            raise InputError(describe_unknown("quantity", name, CHECKED_QUANTITIES))
    if len(names) > 2:
        raise InputError(f"'{quantity}': one quantity, or two with one stroke between them, as in trainable/frozen.")
    return names


def count_cached(subject: Subject, quantities: tuple[str, ...], conventions: Conventions) -> Account:
    """Count a subject; one that has an identity once in a process, since a class answers a question many times."""
    with work_limit(None):
        if subject.identity is None:
            return count(subject, quantities, conventions)
        key = repr((subject.identity, subject.name, subject.sizes(True), subject.defaults))
        return _counted(SameSubject(key, subject), quantities, conventions)


@dataclass(frozen=True)
class SameSubject:
    """A subject that is equal to every other of its key."""

    key: str
    subject: Subject = field(compare=False)


@lru_cache(maxsize=256)
def _counted(same: SameSubject, quantities: tuple[str, ...], conventions: Conventions) -> Account:
    return count(same.subject, quantities, conventions)


def account_for(subject: Subject, names: Sequence[str], conventions: Conventions) -> Account:
    """An account that has these quantities: those that learn, and those of a part, among them."""
    asked = {name: name.partition(" of ")[::2] for name in names}
    kinds = dict.fromkeys("parameters" if kind in PARAMETER_SUBSETS else kind for kind, _ in asked.values())
    account = count_cached(subject, tuple(kinds), conventions)
    made = dict(account.quantities)
    for name, (kind, place) in asked.items():
        if kind in PARAMETER_SUBSETS or place:
            whole = account.quantities["parameters" if kind in PARAMETER_SUBSETS else kind]
            parts = [
                part
                for part in whole.groups
                if kind not in PARAMETER_SUBSETS or ("frozen" in part.note) == (kind == "frozen")
            ]
            below = _parts_under(parts, place, account.symbols) if place else parts
            if place and not below:
                steps = [part.path.split(".") for part in parts]
                known = dict.fromkeys(".".join(path[:depth]) for path in steps for depth in range(1, len(path)))
                raise InputError(describe_unknown(f"{account.model}: the part", place, known))
            made[name] = replace(whole, groups=tuple(below), recount=None)
    return replace(account, quantities=made)


def _parts_under(parts: Sequence[Part], prefix: str, sizes: Mapping[str, int]) -> list[Part]:
    """Return the parts at or below a path: with `*`, as a count prints it, of all members; with a number, of one."""
    found: list[Part] = []
    steps = prefix.split(".")
    for part in parts:
        path, count = part.path.split("."), int(part.repeats.at(sizes))
        other = [(step, pattern) for step, pattern in zip(steps, path, strict=False) if step != pattern]
        if len(path) < len(steps) or not all(_is_member(step, pattern, count) for step, pattern in other):
            continue
        if other and len(other) < sum("*" in pattern for pattern in path):
            raise InputError(f"'{part.path}' is counted for several members at once, so '{prefix}' is not known alone.")
        found.append(replace(part, repeats=ONE) if other else part)
    return found


def _is_member(step: str, pattern: str, count: int) -> bool:
    """Return whether a step of a path is one of the members that a pattern stands for.

    >>> _is_member("3", "*", 4), _is_member("4", "*", 4), _is_member("bias_l1", "bias_l1…", 1)
    (True, False, True)
    """
    stem, _, rest = pattern.partition("*" if "*" in pattern else "1…")
    first = 0 if "*" in pattern else 1
    number = step.removeprefix(stem).removesuffix(rest)
    return stem + number + rest == step != pattern and number.isdecimal() and first <= int(number) < first + count
