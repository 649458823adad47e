"""Numbers and tokens as people read them, and numbers as people write them."""

import re
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil, isfinite
from unicodedata import category, normalize

from lemma.errors import InputError

BLOCKS = " ▁▂▃▄▅▆▇█"
BAR_WIDTH = 20


def format_number(value: float, decimals: int = 3) -> str:
    """Format a number with at most `decimals` decimals; very small and large ones as a power of ten, NaN as a dash.

    >>> [format_number(value) for value in (0.2186, -1.0, 1e-9, float("-inf"))]
    ['0.219', '−1', '1.00e−09', '−∞']
    """
    size = abs(value)
    if size != size:
        return "–"
    if size == float("inf"):
        text = "∞"
    elif size >= 1e7 or 0 < size < 0.5 * 10**-decimals:
        text = f"{size:.2e}"
    else:
        text = f"{size:.{decimals}f}"
        text = text.partition(".")[0] if float(text) == round(size) else text
    negative = value < 0 and text != "0"
    return ("−" if negative else "") + text.replace("-", "−")


def needed_decimals(values: Iterable[float], decimals: int) -> int:
    """Return the smallest number of decimals that shows all finite values as exactly as `decimals` would.

    >>> needed_decimals([0.5, -1.25, 3], 4), needed_decimals([1 / 3, float("nan")], 4), needed_decimals([], 4)
    (2, 4, 0)
    """
    finite = [value for value in values if isfinite(value)]
    for count in range(decimals):
        if all(round(value, count) == round(value, decimals) for value in finite):
            return count
    return decimals


def format_vector(values: Iterable[float], decimals: int = 3) -> str:
    """Format numbers as a vector in parentheses.

    >>> format_vector([1, -0.25])
    '(1, −0.25)'
    """
    return "(" + ", ".join(format_short(value, decimals) for value in values) + ")"


def format_short(value: float, decimals: int = 3) -> str:
    """Format a number without trailing zeros.

    >>> format_short(0.25, 4), format_number(0.25, 4)
    ('0.25', '0.2500')
    """
    text = format_number(value, decimals)
    return text.rstrip("0").rstrip(".") if "." in text and "e" not in text else text


def format_numbers(values: Iterable[float], decimals: int = 3) -> list[str]:
    """Format the numbers of a column with equally many decimals: as few as show all of them exactly, at most
    `decimals`.

    >>> format_numbers([1, -0.25])
    ['1', '−0.25']
    """
    numbers = [float(value) for value in values]
    needed = needed_decimals(numbers, decimals)
    return [format_number(number, needed) for number in numbers]


def format_factor(value: float, decimals: int = 3) -> str:
    """Format a number as a factor of a product: in parentheses if it is negative.

    >>> format_factor(-0.5), format_factor(2)
    ('(−0.5)', '2')
    """
    (text,) = format_numbers([value], decimals)
    return f"({text})" if text.startswith("−") else text


def format_times(count: int) -> str:
    """Format a count of events, such as "once" or "3 times".

    >>> format_times(1), format_times(2), format_times(1000)
    ('once', 'twice', '1,000 times')
    """
    return {1: "once", 2: "twice"}.get(count, f"{count:,} times")


def shade_block(fraction: float) -> str:
    """Return the block character whose height is a fraction (0 to 1) of a line.

    >>> shade_block(0), shade_block(0.219), shade_block(1)
    (' ', '▂', '█')
    """
    return BLOCKS[ceil(_clamp(fraction) * 8)]


def _clamp(fraction: float) -> float:
    """Return a fraction limited to the range 0 to 1; 0 for NaN."""
    return min(max(fraction, 0.0), 1.0) if fraction == fraction else 0.0


def draw_bar(fraction: float) -> str:
    """Return a bar of block characters, whose length is a fraction (0 to 1) of BAR_WIDTH; a positive one is visible.

    >>> draw_bar(0.5), draw_bar(0), draw_bar(0.001)
    ('██████████', '', '▏')
    """
    eighths = round(_clamp(fraction) * BAR_WIDTH * 8)
    if eighths == 0:
        return "▏" if fraction > 0 else ""
    return "█" * (eighths // 8) + ("", *"▏▎▍▌▋▊▉")[eighths % 8]


def shorten(text: str, max_length: int = 60) -> str:
    """Return a text cut to `max_length` characters, with an ellipsis as the last of them if it was longer.

    >>> shorten("abcdef", 4)
    'abc…'
    """
    return text if len(text) <= max_length else text[: max_length - 1] + "…"


def escape_invisible(text: str) -> str:
    r"""Return a text with Python escapes for its invisible characters.

    >>> escape_invisible("a\x07b")
    'a\\x07b'
    """
    return "".join(
        character if character.isprintable() and category(character)[0] != "C" else ascii(character)[1:-1]
        for character in text
    )


# Tokens: numbered, and with nothing invisible in them


SPACE_SYMBOLS = {" ": "␣", "\n": "↵", "\t": "⇥", "\r": "␍", "\xa0": "⍽"}
JOINERS = {"\u200c", "\u200d"}  # they hold emoji and some scripts together and reorder nothing
HIDDEN_CATEGORIES = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


@dataclass(frozen=True)
class VisibleToken:
    """A numbered token of a text, which can be shown with symbols for its invisible characters."""

    index: int  # from 0
    text: str
    identity: Hashable  # equal for tokens that are the same

    @property
    def visible_text(self) -> str:
        """The text with visible symbols for spaces and control characters."""
        return make_visible(self.text)

    def label(self, max_length: int = 12) -> str:
        """Return the visible text, cut to `max_length` characters with an ellipsis."""
        return shorten(self.visible_text, max_length)


def number_tokens(texts: Sequence[str], identities: Sequence[Hashable] | None = None) -> tuple[VisibleToken, ...]:
    """Return a token for each text, numbered from 0.

    `identities` are equal for equal tokens; by default, those with equal texts are equal.
    """
    pairs = zip(texts, texts if identities is None else identities, strict=True)
    return tuple(VisibleToken(index, text, identity) for index, (text, identity) in enumerate(pairs))


def pluralize(count: int, noun: str) -> str:
    """Return a count with its noun, in the plural unless the count is 1.

    >>> pluralize(1, "head"), pluralize(1200, "token")
    ('1 head', '1,200 tokens')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def make_visible(text: str) -> str:
    r"""Return a token's text with visible symbols for spaces and escapes for characters that could change a terminal.

    >>> make_visible(" the"), make_visible("a\nb"), make_visible("\x1b[2J"), make_visible("")
    ('␣the', 'a↵b', '\\x1b[2J', '∅')
    """

    def visible(character: str) -> str:
        """Return a symbol or escape for a character that is not visible, or the character itself."""
        if character in SPACE_SYMBOLS:
            return SPACE_SYMBOLS[character]
        is_hidden = category(character) in HIDDEN_CATEGORIES and character not in JOINERS
        return character.encode("unicode_escape").decode() if is_hidden else character

    return "".join(map(visible, text)) or "∅"


# Reading numbers as people write them: exact, rounded, with a unit, in per cent, or as a change between two sizes


MAX_NUMBER_CHARS = 200
MAX_POWER_OF_TEN = 30
MAX_POWER_OF_TEN_IN_ARITHMETIC = 300
MAX_RELATIVE_ERROR = Fraction(1, 20)  # of a rounded number: 1e7 alone may be off by a third, and says too little
SIZES_HINT = "a change needs its two sizes, as in 54.1 % increase from 2 to 4 layers."

_APPROXIMATION = r"(?P<about>about|approximately|approx\.?|roughly|circa|ca\.?|some|~|≈|≃)?"
_DIGITS = r"(?P<sign>[+-]?)(?P<whole>\d{1,3}(?:[,_ \u00a0\u2009\u202f]\d{3})+|\d+)(?:\.(?P<decimals>\d+))?"
_POWER = r"(?:e(?P<e>[+-]?\d{1,3})|\s*[*·×x]\s*10(?:\^|\*\*)\(?(?P<power>[+-]?\d{1,3})\)?)?"
_NOUN = r"(?:parameters?|params?|weights|numbers|operations|flops?|bytes?|times|[x×](?=[\s.]*$))?"
_NUMBER = re.compile(rf"\s*{_APPROXIMATION}\s*{_DIGITS}{_POWER}\s*(?P<unit>[a-z]*?)\s*{_NOUN}\s*\.?\s*", re.IGNORECASE)
_PERCENT = re.compile(rf"\s*{_APPROXIMATION}\s*{_DIGITS}\s*(?:%|per\s?cent)(?P<rest>.*)", re.IGNORECASE | re.DOTALL)
_BETWEEN = re.compile(r"(?P<how>.*?)\bfrom\s+(?P<start>.+?)\s+to\s+(?P<end>.+?)\s*\.?\s*", re.IGNORECASE | re.DOTALL)
_DECREASE = re.compile(r"decrease|reduction|reduced|fewer|less|smaller|lower|drop|fall", re.IGNORECASE)
UNIT_FACTORS = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12, "P": 10**15}
UNIT_FACTORS |= {f"{letter}B": 10 ** (3 * power) for power, letter in enumerate("KMGTP", 1)}
UNIT_FACTORS |= {f"{letter}iB": 2 ** (10 * power) for power, letter in enumerate("KMGTP", 1)}
_FACTORS_BY_SPELLING = {
    **{unit.casefold(): factor for unit, factor in UNIT_FACTORS.items()},
    "thousand": 10**3,
    **dict.fromkeys(("mio", "million", "millions"), 10**6),
    **dict.fromkeys(("g", "bn", "billion", "billions"), 10**9),
    **dict.fromkeys(("trillion", "trillions"), 10**12),
}
_LITERAL = re.compile(
    r"(?P<whole>\d{1,3}(?:[,_ '\u00a0\u2009\u202f]\d{3})+|\d*)(?:\.(?P<decimals>\d*))?(?:[eE](?P<e>[+-]?\d{1,4}))?"
)
_ENTRY = re.compile(r"[+-]?(\d{1,3}(?:[ _’']\d{3})+|\d+)?(\.\d*)?([eE][+-]?\d{1,3})?")
_FRACTION = re.compile(r"([+-]?\d{1,12})\s*/\s*(\d{1,12})")


@dataclass(frozen=True)
class WrittenNumber:
    """A number and the precision with which it was written.

    Attributes:
        value: a percentage is divided by 100, a change between two sizes stays in per cent, a decrease is negative.
        decimals: digits after the point; None for a fraction or a power of ten, whose precision is `unit` alone.
        alternative: the value if its only comma or point means the other thing: 1,537 is 1537 or 1.537.
    """

    text: str  # as written
    value: Fraction
    unit: Fraction  # of the last significant digit; 0 for a number that must be exact
    decimals: int | None = None
    start: str = ""  # the size that a change begins with, as written; "" for any other number
    end: str = ""  # the size that a change ends with
    is_percent: bool = False
    alternative: Fraction | None = None

    def matches(self, exact: Fraction | int, value: Fraction | None = None) -> bool:
        """Return whether this number equals `exact` to its written digits and, if rounded, within 5 %.

        `value` is compared instead of the number's own value, if not None.
        """
        error = abs((self.value if value is None else value) - exact)
        return error <= self.unit / 2 and (self.is_percent or error <= MAX_RELATIVE_ERROR * abs(exact))

    def is_right(self, exact: Fraction | int) -> bool:
        """Return whether this number matches `exact`; raise InputError if an ambiguous comma decides it."""
        if self.matches(exact):
            return True
        if self.alternative is not None and (self.alternative == exact or self.matches(exact, self.alternative)):
            raise self.make_separator_question()
        return False

    def make_separator_question(self) -> InputError:
        """Return the error that asks whether the only comma or point separates thousands or decimals."""
        first, second = (
            f"{int(value):,}" if value.denominator == 1 else f"{float(value):,.6g}"
            for value in (self.value, self.alternative or self.value)
        )
        return InputError(
            f"'{self.text[:40]}' can be read as {first} or as {second}. "
            "Write decimals with a point, and thousands with commas or with nothing between them."
        )


def read_number(text: str) -> WrittenNumber:
    """Parse a number such as 9,721,596, 9.72 million or 12.5 %, or a change such as 54.1 % from 2 to 4 layers.

    >>> read_number("9.72 million").value, read_number("9.72 million").unit
    (Fraction(9720000, 1), Fraction(10000, 1))
    """
    if len(text) > MAX_NUMBER_CHARS:
        raise InputError(f"the number has {len(text):,} characters; at most {MAX_NUMBER_CHARS} are read.")
    normalized = re.sub(r"\^\s*\{([^{}]*)\}", r"^\1", normalize_notation(text))
    if percent := _PERCENT.fullmatch(normalized):
        return _read_percent(text, percent)
    match = _NUMBER.fullmatch(normalized)
    factor = unit_factor(match["unit"]) if match else None
    if match is None or factor is None:
        raise InputError(
            f"'{text.strip()[:40]}' is not read as a number. "
            "Expected one such as 9,721,596 or 9.72 million, or 54.1 % increase from 2 to 4 layers."
        )
    power = int(match["e"] or match["power"] or 0)
    if abs(power) > MAX_POWER_OF_TEN:
        raise InputError(f"'{text.strip()[:40]}': a power of ten is at most {MAX_POWER_OF_TEN} here.")
    return _read_digits(text, match, factor * Fraction(10) ** power)


_NOTATIONS = (  # of LaTeX and print, and how they are read
    (re.compile(r"\\(?:text(?:rm|bf|it)?|math(?:rm|bf|it|sf|tt)|operatorname\*?)\s*\{([^{}]*)\}"), r" \1 "),
    (re.compile(r"\\(?:left|right|[Bb]igg?[lrm]?|displaystyle)(?![A-Za-z])"), ""),
    (re.compile(r"\\(?:cdot|times|ast)(?![A-Za-z])|[·×⋅∙∗•]"), "*"),
    (re.compile(r"\\div(?![A-Za-z])|[÷∕⁄]"), "/"),
    (re.compile(r"\\(?:approx|simeq|sim|cong|thickapprox)(?:eq)?(?![A-Za-z])|∼|≅|≃"), "≈"),
    (re.compile(r"\{[,']\}|(?<=\d)\\,(?=\d{3})"), ","),
    (re.compile(r"(?<=\d)['’ʼ\u2019](?=\d{3}(?!\d))"), ","),
    (re.compile(r"\\q?quad(?![A-Za-z])|\\[,;:!> ]|[~](?=\s*[A-Za-z])"), " "),
    (re.compile(r"\\%"), "%"),
    (re.compile(r"\\\$|[$€£]"), ""),
    (re.compile(r"\\[()\[\]]"), ""),
)
_VULGAR_FRACTION = re.compile(r"([½⅓⅔¼¾⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞])")
_SPACED_THOUSANDS = re.compile(r"(?<![\d.,])[1-9]\d{0,2}(?:[ \u00a0\u2009\u202f]\d{3})+(?![\d])")


def normalize_notation(text: str) -> str:
    r"""Return a text whose LaTeX, signs and thousands separators are replaced by plain ones.

    >>> normalize_notation(r"6.02 \cdot 10^{23} \approx 124{,}439{,}808"), normalize_notation("−½")
    ('6.02 * 10^{23} ≈ 124,439,808', '-(1/2)')
    """
    for pattern, replacement in _NOTATIONS:
        text = pattern.sub(replacement, text)
    text = _VULGAR_FRACTION.sub(lambda match: f"({normalize('NFKC', match[1]).replace('⁄', '/')})", text)
    text = _SPACED_THOUSANDS.sub(lambda match: re.sub(r"\s", ",", match.group()), text)
    text = re.sub(r"\bper\s?cent\b", "%", text, flags=re.IGNORECASE)
    return _normalize_minus(text)


def read_literal(text: str) -> "WrittenNumber | None":
    """Return the number that digits write, such as 124,439,808, 0.25 or 1e-3; None if they are none.

    >>> read_literal("1.50e3").unit, read_literal("1,537").alternative, read_literal("1,53")
    (Fraction(10, 1), Fraction(1537, 1000), None)
    """
    match = _LITERAL.fullmatch(text)
    if match is None or not (match["whole"] or match["decimals"]) or len(text) > MAX_NUMBER_CHARS:
        return None
    digits, decimals = re.sub(r"\D", "", match["whole"]), match["decimals"] or ""
    exponent = int(match["e"] or 0)
    if abs(exponent) > MAX_POWER_OF_TEN_IN_ARITHMETIC:
        return None
    scale = Fraction(10) ** exponent
    value = Fraction(int(digits + decimals), 10 ** len(decimals)) * scale
    unit = scale / 10 ** len(decimals) if decimals or match["e"] else Fraction(0)
    alternative = None
    if re.fullmatch(r"[1-9]\d{0,2},\d{3}", match["whole"]) and not decimals and not match["e"]:
        alternative = value / 1000
    elif re.fullmatch(r"[1-9]\d{0,2}", match["whole"]) and len(decimals) == 3 and not match["e"]:
        alternative = value * 1000
    return WrittenNumber(text, value, unit, None if match["e"] else len(decimals), alternative=alternative)


def unit_factor(unit: str) -> int | None:
    """Return the factor of a unit such as million or KiB; None for an unknown unit.

    >>> unit_factor("Million"), unit_factor("KiB"), unit_factor("m")
    (1000000, 1024, 1000000)
    """
    return _FACTORS_BY_SPELLING.get(unit.casefold())


def read_entry(text: str) -> WrittenNumber | None:
    """Parse a number in a list or table, where commas separate entries; None if the text is not a number.

    >>> float(read_entry("−0.25").value), float(read_entry("1/4").value), read_entry("they")
    (-0.25, 0.25, None)
    """
    text = text.strip()
    normalized = _normalize_minus(text)
    if fraction := _FRACTION.fullmatch(normalized):
        numerator, denominator = int(fraction[1]), int(fraction[2])
        return WrittenNumber(text, Fraction(numerator, denominator), Fraction(0)) if denominator else None
    match = _ENTRY.fullmatch(normalized)
    if not match or not (match[1] or (match[2] or ".") != "."):
        return None
    digits = re.sub(r"[ _’']", "", normalized)
    if not isfinite(float(digits)):
        return None
    value, decimals = Fraction(digits), len(match[2]) - 1 if match[2] else 0
    if not match[3]:
        return WrittenNumber(text, value, Fraction(1, 10**decimals) if decimals else Fraction(0), decimals)
    # a power of ten that rounds whole numbers away must have two digits, else 0e3 would be any number
    unit = Fraction(10) ** (int(match[3][1:]) - decimals)
    return WrittenNumber(text, value, unit if unit < 1 or abs(value) >= 10 * unit else Fraction(0))


def _normalize_minus(text: str) -> str:
    """Return a text whose minus signs and dashes are replaced by hyphens."""
    return text.replace("−", "-").replace("–", "-")


def _read_percent(text: str, match: re.Match[str]) -> WrittenNumber:
    """Return the number that `text` states, from its match as a percentage or as a change in per cent between sizes."""
    between, scale = _BETWEEN.fullmatch(match["rest"]), Fraction(1)
    if between is None:
        if match["rest"].strip(" .\t\n"):
            raise InputError(f"'{text.strip()[:60]}': {SIZES_HINT}")
        scale = Fraction(1, 100)
    unit = scale / 10 ** len(match["decimals"] or "")
    number = replace(_read_digits(text, match, scale), is_percent=True, unit=unit)
    if between is None:
        return number
    is_decrease = _DECREASE.search(between["how"]) is not None and number.value > 0
    value = -number.value if is_decrease else number.value
    return replace(number, value=value, start=between["start"], end=between["end"])


def _read_digits(text: str, match: re.Match[str], scale: Fraction) -> WrittenNumber:
    """Return the number that `text` states: the digits of its match times `scale`, such as 10⁶ for millions.

    Whole numbers written in full are exact unless a word such as "about" comes first.
    """
    integer, decimals = match["whole"], match["decimals"] or ""
    digits = re.sub(r"\D", "", integer)
    if integer.startswith("0") and digits != integer:
        raise InputError(
            f"'{text.strip()[:40]}': a comma or blank separates thousands here, and no number of thousands begins "
            "with 0. Write decimals with a point."
        )

    def times_scale(number: str, num_decimals: int) -> Fraction:
        """Return an integer, its last `num_decimals` digits being decimals, times the scale."""
        return Fraction(int(match["sign"] + number), 10**num_decimals) * scale

    alternative = None
    if re.fullmatch(r"\d{1,3},\d{3}", integer) and not decimals:
        alternative = times_scale(digits, 3)
    elif re.fullmatch(r"[1-9]\d{0,2}", integer) and len(decimals) == 3:
        alternative = times_scale(digits + decimals, 0)
    value, unit = times_scale(digits + decimals, len(decimals)), scale / 10 ** len(decimals)
    if not decimals and scale == 1:
        unit = Fraction(10 ** (len(digits) - len(digits.rstrip("0"))) if match["about"] else 0)
    return WrittenNumber(text.strip(), value, unit, len(decimals), alternative=alternative)


def format_bytes(number: float) -> str:
    """Write bytes in the largest unit that fits.

    >>> format_bytes(512), format_bytes(1_500_000), format_bytes(15.56 * 2**30)
    ('512 B', '1.43 MiB', '15.56 GiB')
    """
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if number >= size:
            return f"{number / size:,.2f} {unit}"
    return f"{number:,.0f} B"


def format_seconds(number: float | None) -> str:
    """Write a time in seconds as s, ms or µs; None as "not known".

    >>> format_seconds(0.0123), format_seconds(2.5), format_seconds(None)
    ('12.3 ms', '2.5 s', 'not known')
    """
    if number is None:
        return "not known"
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number * 1e6:.3g} µs"
