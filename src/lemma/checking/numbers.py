"""Is a printed number right? Exact, rounded, or a change in per cent between two sizes."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from lemma.checking.accounts import account_for, alternative_conventions, split_ratio, symbol_aliases
from lemma.checking.compare_formula import Verdict, format_number, read_question
from lemma.checking.explain import explain_number
from lemma.counting.account import Account
from lemma.counting.count import DEFAULT_CONVENTIONS, Conventions
from lemma.counting.subject import Model, resolve_subject
from lemma.errors import CountingError, InputError, describe_unknown

LONGEST = 200
LARGEST_EXPONENT = 30
ABOUT = r"(?P<about>about|approximately|approx\.?|roughly|circa|ca\.?|some|~|≈|≃)?"
DIGITS = r"(?P<sign>[+-]?)(?P<whole>\d{1,3}(?:[,_ \u00a0\u2009\u202f]\d{3})+|\d+)(?:\.(?P<decimals>\d+))?"
POWER = r"(?:e(?P<e>[+-]?\d{1,3})|\s*[*·×x]\s*10(?:\^|\*\*)(?P<power>\d{1,3}))?"
NOUNS = r"(?:parameters?|params?|weights|numbers|operations|flops?|bytes?)?"
NUMBER = re.compile(rf"\s*{ABOUT}\s*{DIGITS}{POWER}\s*(?P<unit>[a-z]*?)\s*{NOUNS}\s*\.?\s*", re.IGNORECASE)
PERCENT = re.compile(rf"\s*{ABOUT}\s*{DIGITS}\s*(?:%|per\s?cent)(?P<rest>.*)", re.IGNORECASE | re.DOTALL)
BETWEEN = re.compile(r"(?P<how>.*?)\bfrom\s+(?P<start>.+?)\s+to\s+(?P<end>.+?)\s*\.?\s*", re.IGNORECASE | re.DOTALL)
FALLS = re.compile(r"decrease|reduction|reduced|fewer|less|smaller|lower|drop|fall", re.IGNORECASE)
UNITS = {
    "": 1,
    **dict.fromkeys(("k", "thousand", "kb"), 10**3),
    **dict.fromkeys(("m", "mio", "million", "millions", "mb"), 10**6),
    **dict.fromkeys(("b", "g", "bn", "billion", "billions", "gb"), 10**9),
    **dict.fromkeys(("t", "trillion", "trillions", "tb"), 10**12),
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}

SIZE = re.compile(r"\s*(?P<before>[^\d=]*?)\s*=?\s*(?P<number>\d[\d,_]*)\s*(?P<after>[^\d=]*?)\s*")
PLAIN_WORDS = {
    "layer": ("depth", "L"),
    "encoder layer": ("L_enc",),
    "decoder layer": ("L_dec",),
    "head": ("heads", "h"),
    "word": ("vocabulary", "V"),
    "unit": ("hidden", "D", "d_h"),
    "dimension": ("width", "d"),
}
LARGEST_GUESS = 64
SIMPLEST_FACTORS = [Fraction(above, below) for below in (1, 2, 3, 4) for above in (1, 2, 3, 4, 6, 8) if above != below]


NEEDS_SIZES = "a change needs its two sizes, as in 54.1 % increase from 2 to 4 layers."
COARSEST = Fraction(1, 20)
"""Largest relative error of a rounded number: one digit alone, as in 1e7, may be off by a third and says too little."""


@dataclass(frozen=True)
class WrittenNumber:
    """A number and the precision with which it was written.

    Attributes:
        value: the number; a percentage is divided by 100, a change between two sizes stays in per cent, falls negative.
        step: unit of the last significant digit; 0 for a whole number written in full, which must be exact.
        start: the size that a change begins with, as written; "" for any other number.
        end: the size that a change ends with.
        percent: whether it was written with a percent sign.
        other: the value if its only comma or point means the other thing: 1,537 is 1537 or 1.537.
    """

    text: str
    value: Fraction
    unit: Fraction
    start: str = ""
    end: str = ""
    is_percent: bool = False
    alternative: Fraction | None = None

    def matches(self, exact: Fraction | int, value: Fraction | None = None) -> bool:
        """Return whether the number is this one to the digits written and, if rounded, within 5 %."""
        error = abs((self.value if value is None else value) - exact)
        return error <= self.unit / 2 and (self.is_percent or error <= COARSEST * abs(exact))

    def is_right(self, exact: Fraction | int) -> bool:
        """Return whether it fits; raise an InputError if that depends on what its only comma or point means."""
        if self.matches(exact):
            return True
        if self.alternative is not None and (self.alternative == exact or self.matches(exact, self.alternative)):
            raise InputError(
                f"'{self.text[:40]}' can be read as {format_number(self.value)} or as {format_number(self.alternative)}. "
                "Write decimals with a point, and thousands with commas or with nothing between them."
            )
        return False


def read_number(text: str) -> WrittenNumber:
    """Read a number such as 9,721,596, 9.72 million or 12.5 %, or a change such as 54.1 % from 2 to 4 layers.

    >>> read_number("9.72 million").value, read_number("9.72 million").step
    (Fraction(9720000, 1), Fraction(10000, 1))
    """
    if len(text) > LONGEST:
        raise InputError(f"the number has {len(text):,} characters; at most {LONGEST} are read.")
    plain = text.replace("−", "-").replace("–", "-")
    if percent := PERCENT.fullmatch(plain):
        between, scale = BETWEEN.fullmatch(percent["rest"]), Fraction(1)
        if between is None:
            if percent["rest"].strip(" .\t\n"):
                raise InputError(f"'{text.strip()[:60]}': {NEEDS_SIZES}")
            scale = Fraction(1, 100)
        number = replace(_read_digits(text, percent, scale), is_percent=True)
        number = replace(number, unit=scale / 10 ** len(percent["decimals"] or ""))
        if between is None:
            return number
        falls = FALLS.search(between["how"]) is not None and number.value > 0
        return replace(
            number, value=-number.value if falls else number.value, start=between["start"], end=between["end"]
        )
    match = NUMBER.fullmatch(plain)
    if match is None or match["unit"].lower() not in UNITS:
        raise InputError(
            f"'{text.strip()[:40]}' is not read as a number. "
            "Expected one such as 9,721,596 or 9.72 million, or 54.1 % increase from 2 to 4 layers."
        )
    power = int(match["e"] or match["power"] or 0)
    if abs(power) > LARGEST_EXPONENT:
        raise InputError(f"'{text.strip()[:40]}': a power of ten is at most {LARGEST_EXPONENT} here.")
    return _read_digits(text, match, Fraction(UNITS[match["unit"].lower()]) * Fraction(10) ** power)


def _read_digits(text: str, match: re.Match[str], scale: Fraction) -> WrittenNumber:
    """Return the number times a scale; whole numbers in full are exact unless they are said to be about right."""
    written, decimals = match["whole"], match["decimals"] or ""
    whole = re.sub(r"\D", "", written)
    if written.startswith("0") and whole != written:
        raise InputError(
            f"'{text.strip()[:40]}': a comma or blank separates thousands here, and no number of thousands begins "
            "with 0. Write decimals with a point."
        )

    def times_scale(digits: str, places: int) -> Fraction:
        return Fraction(int(match["sign"] + digits), 10**places) * scale

    other = None
    if re.fullmatch(r"\d{1,3},\d{3}", written) and not decimals:
        other = times_scale(whole, 3)
    elif re.fullmatch(r"[1-9]\d{0,2}", written) and len(decimals) == 3:
        other = times_scale(whole + decimals, 0)
    value, step = times_scale(whole + decimals, len(decimals)), scale / 10 ** len(decimals)
    if not decimals and scale == 1:
        step = Fraction(10 ** (len(whole) - len(whole.rstrip("0"))) if match["about"] else 0)
    return WrittenNumber(text.strip(), value, step, alternative=other)


def check_number(
    model: Model,
    quantity: str,
    value: str,
    settings: Mapping[str, Any] | None = None,
    conventions: Conventions = DEFAULT_CONVENTIONS,
    diagnose: bool = True,
    account: Account | None = None,
) -> Verdict:
    """Judge a number against the model: at its sizes, or as a change between two of them.

    Without `diagnose` a wrong one is not explained. Another `account` takes the place of the model's own, such as one
    that holds a student's formula.

    >>> print(judge_number("table-a5", "parameters", "54.1 % increase from 2 to 4 layers"))
    Equal: 54.1 %.
    """
    named = split_ratio(quantity)
    quantity = "/".join(named)
    claim, subject = read_number(value), resolve_subject(model, settings)
    account = account_for(subject, named, conventions) if account is None else account
    sizes = account.symbols

    def verdict(yours: str, right: str, exact: int | Fraction, *diagnosis: str, residual: str | None = None) -> Verdict:
        equal, said = claim.is_right(exact), tuple(filter(None, diagnosis))
        return Verdict(equal, account.model, quantity, yours, right, residual, said, sizes, claim.value, exact)

    if len(named) == 2:  # what one quantity is of another, such as the share that learns
        above, below = (account.quantities[name].at(sizes) for name in named)
        if claim.start or above is None or not below:
            raise InputError(f"{account.model}: {quantity} is a plain number such as 0.125, and not over 0.")
        ratio = Fraction(above, below)
        turned = (
            " It is the other way round." if not claim.matches(ratio) and above and claim.matches(1 / ratio) else ""
        )
        said = f"{format_number(above)} / {format_number(below)} = {format_number(ratio)}.{turned}"
        return verdict(claim.text, format_number(ratio), ratio, said)
    if claim.start:
        names = symbol_aliases(subject.spec, sizes)
        change, diagnosis = _change(account, quantity, claim, {**{name: name for name in account.order}, **names})
        return verdict(f"{_percent(claim.value, claim)} %", f"{_percent(change, claim)} %", change, *diagnosis)
    if claim.is_percent:
        raise InputError(f"'{claim.text[:60]}': {NEEDS_SIZES}")
    right = account.quantities[quantity].at(sizes)
    if right is None:
        raise CountingError(
            f"{account.model}: its {quantity} at these sizes are not known, so no number can be judged."
        )
    yours = claim.text if claim.unit else format_number(claim.value)
    if claim.matches(Fraction(right)):
        rounded = f"{claim.text} is {format_number(right)}, rounded." if claim.value != right else ""
        return verdict(yours, format_number(right), right, rounded)
    if not diagnose:
        return verdict(yours, format_number(right), right)
    readings = alternative_conventions(subject, conventions) if quantity in ("flops", "backward") else []
    meant = (f"But it is right {', '.join(differs)}." for differs, one in readings if claim.matches(one.at(sizes)))
    said = next(meant, "") or next(_guesses(account, quantity, claim, right), "")
    return verdict(
        yours, format_number(right), right, said, residual=None if claim.unit else format_number(claim.value - right)
    )


def _guesses(account: Account, quantity: str, claim: WrittenNumber, right: int) -> Iterator[str]:
    """What may have gone wrong with a number: another size, a tensor, a factor."""
    polynomial, sizes = account.quantities[quantity].polynomial, account.symbols
    for name in (name for name in sizes if name in polynomial.symbols and not claim.unit):
        for size in dict.fromkeys((*range(1, LARGEST_GUESS + 1), 2 * sizes[name], sizes[name] // 2 or 1)):
            if size != sizes[name] and claim.matches(polynomial.at(_sizes(account, name, size))):
                yield f"It would be right at {name}={size}; here {name}={sizes[name]}."
    if not claim.unit and not account.quantities[quantity].refused:
        found = explain_number(read_question(account, quantity, str(claim.value), {}))
        yield from [found.replace("our formula", "our number")] if found else []
    for factor in SIMPLEST_FACTORS:
        if claim.matches(right * factor):
            yield f"It is {factor} times the right number."
    digits = max(2, len(str(abs(claim.value) // claim.unit))) if claim.unit else 4  # no more than were written
    times = f"{float(claim.value / right):.{min(digits, 4)}g}" if right else "1"
    yield f"It is about {times} times the right number." if times != "1" else ""


def _sizes(account: Account, name: str, size: int) -> dict[str, int]:
    """The sizes with one changed; those that follow from it change with it."""
    changed = {**account.symbols, name: size}
    following = {other: default for other, default in account.defaults.items() if other != name}
    return changed | {other: int(default.at(changed)) for other, default in following.items()}


def _change(
    account: Account, quantity: str, claim: WrittenNumber, names: Mapping[str, str]
) -> tuple[Fraction, tuple[str, ...]]:
    """The change in per cent and, where another is claimed, what is at both sizes and which ratio was taken for it."""
    if account.quantities[quantity].refused:
        raise CountingError(
            f"{account.model}: a part of its {quantity} follows no formula, so no change can be judged."
        )
    name, start, end = _span(claim, names)
    first, last = (account.quantities[quantity].polynomial.at(_sizes(account, name, size)) for size in (start, end))
    if not first:
        raise InputError(f"{quantity} at {name}={start} are 0, so that there is no change in per cent.")
    right = (last / first - 1) * 100
    if claim.matches(right):
        return right, ()
    before, after = f"the {format_number(first)} at {name}={start}", f"the {format_number(last)} at {name}={end}"
    others = {
        f"what {before} are of {after}, not the change from one to the other": first / last,
        f"what {after} are of {before}; the change is 100 % less": last / first,
        f"the change as a part of {after}; it is counted from {before}": 1 - first / last,
        "the change in the other direction": first / last - 1,
        f"the change of {name} itself": Fraction(end, start) - 1,
    }
    taken = (f"{_percent(claim.value, claim)} % is {it}." for it, ratio in others.items() if claim.matches(ratio * 100))
    return right, (f"{format_number(first)} at {name}={start}, {format_number(last)} at {name}={end}.", next(taken, ""))


def _percent(value: Fraction, claim: WrittenNumber) -> str:
    """A percentage with as many decimals as the person gave, and one at least."""
    written = f"{float(value):.{max(1, len(str(claim.unit.denominator)) - 1)}f}"
    return written.removesuffix(".0") if value == claim.value else written


def _span(claim: WrittenNumber, names: Mapping[str, str]) -> tuple[str, int, int]:
    """The size that changes, from what to what; a person calls it by letter, field name or plain word."""
    ends = [SIZE.fullmatch(text) for text in (claim.start, claim.end)]
    if None in ends:
        raise InputError(f"'{claim.text[:60]}': expected two sizes, as in from 2 to 4 layers, or from L=2 to L=4.")
    found: set[str] = set()
    for name in {name.strip() for end in ends if end for name in (end["before"], end["after"]) if name.strip()}:
        plain = (name, *PLAIN_WORDS.get(name.lower().removesuffix("s"), (name.lower(),)))
        known = next((names[word] for word in plain if word in names), None)
        if known is None:
            words = [f"{word}s" for word, fields in PLAIN_WORDS.items() if any(field in names for field in fields)]
            raise InputError(describe_unknown("size", name[:40], [*names, *words]))
        found.add(known)
    if len(found) != 1:
        raise InputError(
            f"'{claim.text[:60]}': which size changes? Name one of {', '.join(names)}, as in from L=2 to L=4."
        )
    start, end = (int(re.sub(r"\D", "", one["number"])) for one in ends if one)
    if not start or not end:
        raise InputError(f"'{claim.text[:60]}': sizes are at least 1.")
    return found.pop(), start, end
