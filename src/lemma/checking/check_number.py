"""Checking a number about a model: exact, rounded, a ratio of two quantities, or a change in per cent."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any

from lemma.checking.accounts import ModelExercise
from lemma.checking.arithmetic import Evaluation, read_quantity
from lemma.checking.compare_formula import Verdict, compare_answer, format_number
from lemma.checking.explain import explain_number
from lemma.checking.units import describe_dimension
from lemma.counting.count import DEFAULT_CONVENTIONS
from lemma.counting.polynomial import Polynomial
from lemma.counting.subject import Model
from lemma.errors import CountingError, InputError, describe_unknown
from lemma.report.numbers import SIZES_HINT, WrittenNumber, read_number

MAX_GUESSED_SIZE = 64
BYTE_QUANTITIES = ("cache", "activations", "optimizer", "memory")
SIMPLE_FACTORS = [Fraction(a, b) for b in (1, 2, 3, 4) for a in (1, 2, 3, 4, 6, 8) if a != b]
_SIZE = re.compile(r"\s*(?P<before>[^\d=]*?)\s*=?\s*(?P<number>\d[\d,_]*)\s*(?P<after>[^\d=]*?)\s*")
_SIZE_WORDS = {  # the fields and letters that a plain word may mean
    "layer": ("depth", "L"),
    "encoder layer": ("L_enc",),
    "decoder layer": ("L_dec",),
    "head": ("heads", "h"),
    "word": ("vocabulary", "V"),
    "unit": ("hidden", "D", "d_h"),
    "dimension": ("width", "d"),
}


def check_number(model: Model, quantity: str, value: str, settings: Mapping[str, Any] | None = None) -> Verdict:
    """Check a written number against a quantity of a model, or a change in per cent between two of its sizes.

    Args:
        quantity: such as `parameters`, or a ratio such as `trainable/frozen`.
        value: the number as text: exact, rounded (54 million), or with sizes (54.1 % increase from 2 to 4 layers).
        settings: sizes and choices of the model, by field name or symbol.

    >>> print(check_number("table-a5", "parameters", "54.1 % increase from 2 to 4 layers"))
    Equal: 54.1 %.
    """
    exercise = NumberExercise(model, quantity, settings, DEFAULT_CONVENTIONS)
    return exercise.check_text(value)


class NumberExercise(ModelExercise):
    """The exercise to find a number of a model: one quantity, or the ratio of two."""

    def check_text(self, text: str) -> Verdict:
        """Return the verdict on a number as text: also arithmetic, with the sizes as letters, or a chain of steps."""
        try:
            number = read_number(text)
        except InputError as error:
            if "from " not in text and re.search(r"[-+*/^=≈(,\\!√]|log|ln|exp", text):
                return self._check_arithmetic(text, error)
            raise
        return self.check(number)

    def _check_arithmetic(self, text: str, refusal: InputError) -> Verdict:
        """Return the verdict on arithmetic; `refusal` is the error of reading it as a single number."""
        sizes = {**self.account.symbols, **{name: self.account.symbols[of] for name, of in self.aliases.items()}}
        letters = {name: Evaluation(Fraction(size)) for name, size in sizes.items()}
        try:
            quantity = read_quantity(text, letters)
        except InputError as error:
            raise (error if "\n" in str(error) else refusal) from None
        wrong_kinds = {name for name, _ in quantity.dimension} - {"data"}
        if wrong_kinds:
            kind = describe_dimension(quantity.dimension)
            raise InputError(f"'{text.strip()[:60]}': {'/'.join(self.names)} is no number of {kind}.")
        number = quantity.number
        if number.is_percent and len(self.names) == 1:
            raise InputError(f"'{text.strip()[:60]}': {SIZES_HINT}")
        verdict = self.check(number)
        if quantity.wrong_steps:
            first = self.check(quantity.members[0].number, diagnose=False)
            if verdict.equal:
                start = "The number is right, but the arithmetic"
            else:
                start = "The formula is right, but the arithmetic" if first.equal else "The arithmetic"
            message = f"{start} {quantity.wrong_steps[0]}."
            return replace(verdict, equal=False, diagnosis=(message,), residual=None)
        notes = (f"Read {quantity.echo}.",) if quantity.echo else ()
        return replace(verdict, remarks=(*verdict.remarks, *notes))

    def check(self, number: WrittenNumber, diagnose: bool = True) -> Verdict:
        """Compare a written number with the right one; without `diagnose` a wrong number is not explained."""
        account = self.account
        if len(self.names) == 2:
            return self._check_ratio(number)
        if number.start:
            return self._check_change(number)
        if number.is_percent:
            raise InputError(f"'{number.text[:60]}': {SIZES_HINT}")
        expected = self.quantity.at(account.symbols)
        if expected is None:
            raise CountingError(
                f"{account.model}: its {self.names[0]} at these sizes are not known, so no number can be checked."
            )
        answer, right = number.text if number.unit else format_number(number.value), format_number(expected)
        explanation, difference = "", None
        if number.matches(Fraction(expected)):
            explanation = f"{number.text} is {right}, rounded." if number.value != expected else ""
        elif diagnose:
            explanation = next(self._suggest_explanations(number, expected), "")
            difference = None if number.unit else format_number(number.value - expected)
        return self._make_verdict(number, answer, right, expected, explanation, difference=difference)

    def expected_change(self, number: WrittenNumber, formula: Polynomial | None = None) -> Fraction:
        """Return the change in per cent of a formula (by default, the model's) between the two sizes in `number`."""
        symbol, start, end = self._read_sizes(number)
        first, last = (self._evaluate_at(symbol, size, formula) for size in (start, end))
        if not first:
            raise InputError(f"{self.names[0]} at {symbol}={start} are 0, so that there is no change in per cent.")
        return (last / first - 1) * 100

    def _make_verdict(
        self,
        number: WrittenNumber,
        answer: str,
        right: str,
        expected: int | Fraction,
        *diagnosis: str,
        difference: str | None = None,
    ) -> Verdict:
        """Return the verdict on `number`, written as `answer`, against `expected`, written as `right`.

        `difference` and `diagnosis` are sentences to print: how far off the answer is, and why.
        """
        return Verdict(
            equal=number.is_right(expected),
            model=self.account.model,
            quantity="/".join(self.names),
            yours=answer,
            right=right,
            residual=difference,
            diagnosis=tuple(filter(None, diagnosis)),
            symbols=self.account.symbols,
            yours_at=number.value,
            right_at=expected,
        )

    def _check_ratio(self, number: WrittenNumber) -> Verdict:
        """Return the verdict on a number for the ratio of two quantities; a ratio the other way round is explained."""
        account = self.account
        numerator, denominator = (account.quantities[name].at(account.symbols) for name in self.names)
        if number.start or numerator is None or not denominator:
            raise InputError(
                f"{account.model}: {'/'.join(self.names)} is a plain number such as 0.125, and not over 0."
            )
        ratio = Fraction(numerator, denominator)
        number = self._round_integer(number, ratio)
        sentence = f"{format_number(numerator)} / {format_number(denominator)} = {format_number(ratio)}."
        if not number.matches(ratio):
            mistakes = {
                "It is the other way round.": 1 / ratio if ratio else ratio,
                "That is in per cent: write the % sign, or divide by 100.": ratio * 100,
                "Per cent and fraction are confused: a factor of 100.": ratio / 100,
                f"That is the part of {self.names[0]} in both together.": Fraction(numerator, numerator + denominator),
                "The ratio is 1 more than that, or the change is meant.": ratio - 1,
            }
            explanation = next((text for text, value in mistakes.items() if value and number.matches(value)), "")
            sentence += f" {explanation}" if explanation else ""
        return self._make_verdict(number, number.text, format_number(ratio), ratio, sentence)

    @staticmethod
    def _round_integer(number: WrittenNumber, exact: Fraction) -> WrittenNumber:
        """Return a whole number such as 33x for a ratio that is not whole as rounded to its last digit."""
        is_integer = number.unit == 0 and number.decimals == 0 and number.value.denominator == 1
        is_rounded = is_integer and exact.denominator != 1 and abs(number.value) >= 10
        return replace(number, unit=Fraction(1)) if is_rounded else number

    def _check_change(self, number: WrittenNumber) -> Verdict:
        """Return the verdict on a percentage written with two sizes; one of a wrong reference is explained."""
        expected, (symbol, start, end) = self.expected_change(number), self._read_sizes(number)
        answer, right = (f"{_format_percent(value, number)} %" for value in (number.value, expected))
        if number.matches(expected):
            return self._make_verdict(number, answer, right, expected)
        first, last = self._evaluate_at(symbol, start), self._evaluate_at(symbol, end)
        at_start = f"{format_number(first)} at {symbol}={start}"
        at_end = f"{format_number(last)} at {symbol}={end}"
        mistakes = {
            f"what the {at_start} are of the {at_end}, not the change from one to the other": first / last,
            f"what the {at_end} are of the {at_start}; the change is 100 % less": last / first,
            f"the change as a part of the {at_end}; it is counted from the {at_start}": 1 - first / last,
            "the change in the other direction": first / last - 1,
            f"the change of {symbol} itself": Fraction(end, start) - 1,
        }
        explanations = (f"{answer} is {mistake}." for mistake, ratio in mistakes.items() if number.matches(ratio * 100))
        return self._make_verdict(number, answer, right, expected, f"{at_start}, {at_end}.", next(explanations, ""))

    def _evaluate_at(self, symbol: str, size: int, formula: Polynomial | None = None) -> Fraction:
        """Return a formula's value (by default, the model's) at another size of `symbol` and sizes it implies."""
        sizes = {**self.account.symbols, symbol: size}
        derived = {name: int(default.at(sizes)) for name, default in self.account.defaults.items() if name != symbol}
        return (self.quantity.polynomial if formula is None else formula).at({**sizes, **derived})

    def _read_sizes(self, number: WrittenNumber) -> tuple[str, int, int]:
        """Return (symbol, start, end) of a number with two sizes: "from 2 to 4 layers" or "from L=2 to L=4"."""
        if self.quantity.refused:
            raise CountingError(
                f"{self.account.model}: a part of its {self.names[0]} follows no formula, so no change can be checked."
            )
        aliases = {**{name: name for name in self.account.order}, **self.aliases}
        ends = [_SIZE.fullmatch(text) for text in (number.start, number.end)]
        if None in ends:
            raise InputError(f"'{number.text[:60]}': expected two sizes, as in from 2 to 4 layers, or from L=2 to L=4.")
        symbols: set[str] = set()
        for name in {name.strip() for end in ends if end for name in (end["before"], end["after"]) if name.strip()}:
            candidates = (name, *_SIZE_WORDS.get(name.lower().removesuffix("s"), (name.lower(),)))
            symbol = next((aliases[candidate] for candidate in candidates if candidate in aliases), None)
            if symbol is None:
                words = [
                    f"{word}s" for word, fields in _SIZE_WORDS.items() if any(field in aliases for field in fields)
                ]
                raise InputError(describe_unknown("size", name[:40], [*aliases, *words]))
            symbols.add(symbol)
        if len(symbols) != 1:
            raise InputError(
                f"'{number.text[:60]}': which size changes? Name one of {', '.join(aliases)}, as in from L=2 to L=4."
            )
        start, end = (int(re.sub(r"\D", "", end["number"])) for end in ends if end)
        if not start or not end:
            raise InputError(f"'{number.text[:60]}': sizes are at least 1.")
        return symbols.pop(), start, end

    def _suggest_explanations(self, number: WrittenNumber, expected: int) -> Iterator[str]:
        """Yield sentences that explain a wrong number, best first: another convention, size, tensor or factor."""
        account, name, sizes = self.account, self.names[0], self.account.symbols
        if name in ("flops", "backward"):
            for differences, formula in self.alternatives:
                if number.matches(formula.at(sizes)):
                    yield f"But it is right {', '.join(differences)}."
        if name == "cache":
            for explanation, wrong in describe_cache_mistakes(Fraction(expected)).items():
                if number.matches(wrong):
                    yield explanation
        if not number.unit:
            for symbol in [size for size in sizes if size in self.quantity.polynomial.symbols]:
                right_size = sizes[symbol]
                for size in (*range(1, MAX_GUESSED_SIZE + 1), 2 * right_size, right_size // 2 or 1):
                    if size != right_size and number.matches(self._evaluate_at(symbol, size)):
                        yield f"It would be right at {symbol}={size}; here {symbol}={right_size}."
            if not self.quantity.refused:
                explanation = explain_number(compare_answer(account, name, str(number.value), {}))
                if explanation:
                    yield explanation.replace("our formula", "our number")
        if name in BYTE_QUANTITIES:
            for power, names in enumerate(("kB and KiB", "MB and MiB", "GB and GiB", "TB and TiB"), 1):
                ratio = Fraction(1024, 1000) ** power
                if number.unit and (number.matches(expected * ratio) or number.matches(expected / ratio)):
                    yield f"{names} are confused: powers of 1000 and of 1024."
            if number.matches(expected * 8) or number.matches(Fraction(expected, 8)):
                yield "Bits and bytes are exchanged: a byte has 8 bits."
        for power in (3, 6, 9):
            for factor in (Fraction(10) ** power, Fraction(1, 10**power)):
                if number.matches(expected * factor):
                    yield f"It is 10^{power} times too {'large' if factor > 1 else 'small'}: a wrong prefix?"
        for factor in SIMPLE_FACTORS:
            if number.matches(expected * factor):
                yield f"It is {factor} times the right number."
        digits = max(2, len(str(abs(number.value) // number.unit))) if number.unit else 4  # no more than were written
        times = f"{float(number.value / expected):.{min(digits, 4)}g}" if expected else "1"
        yield f"It is about {times} times the right number." if times != "1" else ""


def describe_cache_mistakes(expected: Fraction) -> dict[str, Fraction]:
    """Return sentences on mistakes in the bytes of a cache, each with the number that it gives."""
    return {
        "A factor 2 is missing: keys and values are both cached (or a number takes 4 bytes, not 2).": expected / 2,
        "Keys and values are counted twice: a factor 2 too many.": expected * 2,
        "The cache is counted in bytes, 4 for each number (float32): a factor 4 is missing.": expected / 4,
        "The bytes are counted twice: a factor 4 too many.": expected * 4,
        "Keys and values are both cached, and each number takes 4 bytes (float32): yours has neither.": expected / 8,
    }


def _format_percent(value: Fraction, number: WrittenNumber) -> str:
    """Return a percentage as text, without its sign, with the decimals of the student's number, at least 1."""
    text = f"{float(value):.{max(1, len(str(number.unit.denominator)) - 1)}f}"
    return text.removesuffix(".0") if value == number.value else text
