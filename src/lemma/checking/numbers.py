"""Is a printed number right? Exact, rounded, or a change in per cent between two sizes."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from lemma.checking.explain import explain_number
from lemma.checking.question import Verdict, account_for, ask, full_names, other_readings, shown, spec_of, split_ratio
from lemma.counting.account import Account
from lemma.counting.count import USUAL, Conventions
from lemma.counting.subject import Model, subject_of
from lemma.errors import InputError, LedgerError, unknown

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


@dataclass(frozen=True)
class PrintedNumber:
    """A number and the step to which it was rounded; a step of 0 means that every digit was meant.

    A change in per cent between two sizes has these as the person wrote them; a fall is negative.
    """

    text: str
    value: Fraction
    step: Fraction
    start: str = ""
    end: str = ""

    def fits(self, value: Fraction) -> bool:
        """Whether the number is this value, as far as it was printed; a zero with many places says nothing."""
        step = self.step if self.step <= abs(self.value) or self.step <= 1 else Fraction(0)
        return abs(self.value - value) <= step / 2


def read_number(text: str) -> PrintedNumber:
    """Read a number such as 9,721,596 or 9.72 million, or a change such as 54.1 % from 2 to 4 layers.

    >>> read_number("9.72 million").value, read_number("9.72 million").step
    (Fraction(9720000, 1), Fraction(10000, 1))
    """
    if len(text) > LONGEST:
        raise InputError(f"the number has {len(text):,} characters; at most {LONGEST} are read.")
    plain = text.replace("−", "-").replace("–", "-")
    if percent := PERCENT.fullmatch(plain):
        between = BETWEEN.fullmatch(percent["rest"])
        if between is None:
            raise InputError(
                f"'{text.strip()[:60]}': a change needs its two sizes, as in 54.1 % increase from 2 to 4 layers."
            )
        value, _ = _rounded(percent, Fraction(1))
        step = Fraction(1, 10 ** len(percent["decimals"] or ""))
        falls = FALLS.search(between["how"]) is not None and value > 0
        return PrintedNumber(text.strip(), -value if falls else value, step, between["start"], between["end"])
    match = NUMBER.fullmatch(plain)
    if match is None or match["unit"].lower() not in UNITS:
        raise InputError(
            f"'{text.strip()[:40]}' is not read as a number. "
            "Expected one such as 9,721,596 or 9.72 million, or 54.1 % increase from 2 to 4 layers."
        )
    power = int(match["e"] or match["power"] or 0)
    if abs(power) > LARGEST_EXPONENT:
        raise InputError(f"'{text.strip()[:40]}': a power of ten is at most {LARGEST_EXPONENT} here.")
    return PrintedNumber(text.strip(), *_rounded(match, Fraction(UNITS[match["unit"].lower()]) * 10**power))


def _rounded(match: re.Match[str], scale: Fraction) -> tuple[Fraction, Fraction]:
    """The value, and the worth of its last digit; whole numbers in full are exact unless said to be about right."""
    whole, decimals = re.sub(r"\D", "", match["whole"]), match["decimals"] or ""
    value = Fraction(int(match["sign"] + whole + decimals), 10 ** len(decimals)) * scale
    if decimals or scale != 1:
        return value, scale / 10 ** len(decimals)
    zeros = len(whole) - len(whole.rstrip("0"))
    return value, Fraction(10**zeros if match["about"] else 0)


def judge_number(
    model: Model,
    quantity: str,
    value: str,
    words: Mapping[str, Any] | None = None,
    conventions: Conventions = USUAL,
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
    claim, subject = read_number(value), subject_of(model, words)
    account = account_for(subject, named, conventions) if account is None else account
    sizes = account.symbols

    def verdict(yours: str, right: str, exact: int | Fraction, *diagnosis: str, residual: str | None = None) -> Verdict:
        equal, said = claim.fits(Fraction(exact)), tuple(filter(None, diagnosis))
        return Verdict(equal, account.model, quantity, yours, right, residual, said, sizes, claim.value, exact)

    if len(named) == 2:  # what one quantity is of another, such as the share that learns
        above, below = (account.quantities[name].at(sizes) for name in named)
        if claim.start or above is None or not below:
            raise InputError(f"{account.model}: {quantity} is a plain number such as 0.125, and not over 0.")
        ratio = Fraction(above, below)
        turned = " It is the other way round." if not claim.fits(ratio) and above and claim.fits(1 / ratio) else ""
        said = f"{shown(above)} / {shown(below)} = {shown(ratio)}.{turned}"
        return verdict(claim.text, shown(ratio), ratio, said)
    if claim.start:
        names = full_names(spec_of(model, words, subject), sizes)
        change, diagnosis = _change(account, quantity, claim, {**{name: name for name in account.order}, **names})
        return verdict(f"{_percent(claim.value, claim)} %", f"{_percent(change, claim)} %", change, *diagnosis)
    right = account.quantities[quantity].at(sizes)
    if right is None:
        raise LedgerError(f"{account.model}: its {quantity} at these sizes are not known, so no number can be judged.")
    yours = claim.text if claim.step else shown(claim.value)
    if claim.fits(Fraction(right)):
        rounded = f"{claim.text} is {shown(right)}, rounded." if claim.value != right else ""
        return verdict(yours, shown(right), right, rounded)
    if not diagnose:
        return verdict(yours, shown(right), right)
    readings = other_readings(subject, conventions) if quantity in ("flops", "backward") else []
    meant = (f"But it is right {', '.join(differs)}." for differs, one in readings if claim.fits(one.at(sizes)))
    said = next(meant, "") or next(_guesses(account, quantity, claim, right), "")
    return verdict(yours, shown(right), right, said, residual=None if claim.step else shown(claim.value - right))


def _guesses(account: Account, quantity: str, claim: PrintedNumber, right: int) -> Iterator[str]:
    """What may have gone wrong with a number: another size, a tensor, a factor."""
    polynomial, sizes = account.quantities[quantity].polynomial, account.symbols
    for name in (name for name in sizes if name in polynomial.symbols and not claim.step):
        for size in dict.fromkeys((*range(1, LARGEST_GUESS + 1), 2 * sizes[name], sizes[name] // 2 or 1)):
            if size != sizes[name] and claim.fits(polynomial.at(_sizes(account, name, size))):
                yield f"It would be right at {name}={size}; here {name}={sizes[name]}."
    if not claim.step and not account.quantities[quantity].refused:
        found = explain_number(ask(account, quantity, str(claim.value), {}))
        yield from [found.replace("our formula", "our number")] if found else []
    for factor in SIMPLEST_FACTORS:
        if claim.fits(right * factor):
            yield f"It is {factor} times the right number."
    times = f"{float(claim.value / right):.4g}" if right else "1"
    yield f"It is {times} times the right number." if times != "1" else ""


def _sizes(account: Account, name: str, size: int) -> dict[str, int]:
    """The sizes with one changed; those that follow from it change with it."""
    changed = {**account.symbols, name: size}
    following = {other: default for other, default in account.defaults.items() if other != name}
    return changed | {other: int(default.at(changed)) for other, default in following.items()}


def _change(
    account: Account, quantity: str, claim: PrintedNumber, names: Mapping[str, str]
) -> tuple[Fraction, tuple[str, ...]]:
    """The change in per cent and, where another is claimed, what is at both sizes and which ratio was taken for it."""
    if account.quantities[quantity].refused:
        raise LedgerError(f"{account.model}: a part of its {quantity} follows no formula, so no change can be judged.")
    name, start, end = _span(claim, names)
    first, last = (account.quantities[quantity].polynomial.at(_sizes(account, name, size)) for size in (start, end))
    if not first:
        raise InputError(f"{quantity} at {name}={start} are 0, so that there is no change in per cent.")
    right = (last / first - 1) * 100
    if claim.fits(right):
        return right, ()
    before, after = f"the {shown(first)} at {name}={start}", f"the {shown(last)} at {name}={end}"
    others = {
        f"what {before} are of {after}, not the change from one to the other": first / last,
        f"what {after} are of {before}; the change is 100 % less": last / first,
        f"the change as a part of {after}; it is counted from {before}": 1 - first / last,
        "the change in the other direction": first / last - 1,
        f"the change of {name} itself": Fraction(end, start) - 1,
    }
    taken = (f"{_percent(claim.value, claim)} % is {it}." for it, ratio in others.items() if claim.fits(ratio * 100))
    return right, (f"{shown(first)} at {name}={start}, {shown(last)} at {name}={end}.", next(taken, ""))


def _percent(value: Fraction, claim: PrintedNumber) -> str:
    """A percentage with as many decimals as the person gave, and one at least."""
    written = f"{float(value):.{max(1, len(str(claim.step.denominator)) - 1)}f}"
    return written.removesuffix(".0") if value == claim.value else written


def _span(claim: PrintedNumber, names: Mapping[str, str]) -> tuple[str, int, int]:
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
            raise InputError(unknown("size", name[:40], [*names, *words]))
        found.add(known)
    if len(found) != 1:
        raise InputError(
            f"'{claim.text[:60]}': which size changes? Name one of {', '.join(names)}, as in from L=2 to L=4."
        )
    start, end = (int(re.sub(r"\D", "", one["number"])) for one in ends if one)
    if not start or not end:
        raise InputError(f"'{claim.text[:60]}': sizes are at least 1.")
    return found.pop(), start, end
