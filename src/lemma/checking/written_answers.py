r"""Reading what students write around an answer: the border between their text and the parsers.

`clean_answer` removes what never changes an answer: $…$, \text{…}, \boxed{…}, code fences, the name of the question,
"Answer:", arrows, check marks. `formula_readings` and `number_readings` then return what may be meant, the first that
can be parsed first. A reading that is not sure, such as a minus sign that may be a bullet, decides nothing: where it is
right and the others are wrong, a teacher has to look.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Any

from lemma.checking.read_formula import read_formula
from lemma.errors import InputError
from lemma.report.numbers import WrittenNumber

MAX_CLEANED_CHARS = 10_000  # a longer text is returned unchanged: it is no answer to be cleaned
MAX_WORKING_LINES, MAX_BOXES = 60, 20
_ENVIRONMENT = re.compile(
    r"\\(?:begin|end)\s*\{(?:align|aligned|equation|gather|gathered|split|multline|eqnarray)\*?\}"
)
_FENCE_LINE = re.compile(r"^\s*(?:```+|~~~+)\w*\s*$", re.MULTILINE)
_TEXT = re.compile(r"(?<![_{^])\\(?:text|textrm|textbf|textit|mbox|mathrm|mathbf)\s*\{([^{}]*)\}")
_BOXED = re.compile(r"\\boxed\s*\{")
_STYLE = re.compile(r"\\(?:displaystyle|textstyle|limits|qquad|quad|left(?=[.(\[{|])|right(?=[.)\]}|]))")
_DELIMITERS = re.compile(r"\\\(|\\\)|\\\[|\\\]|\${1,2}")
_BOLD = re.compile(r"(\*\*|__|`)((?:(?!\1).)+)\1")
_ARROW = re.compile(
    r"\s*(?:=>|==>|-->|->|⇒|⟹|→|➔|∴|▶|►|\\(?:Rightarrow|implies|therefore|rightarrow|to|Longrightarrow)(?![A-Za-z]))\s*"
)
_LABEL = re.compile(
    r"\s*(?:(?:my|the|our|your|final)\s+)*"
    r"(?:answer|ans|solution|result|lösung|antwort|ergebnis|réponse|respuesta|resposta|risposta|答案|答|解|ответ)"
    r"\s*(?:to\s+\S+\s*|is\s*)?[:：=.]\s*",
    re.IGNORECASE,
)
_NUMBERED = re.compile(
    r"\s*(?:(?:question|problem|exercise|part|task|q|ex)\.?\s*\d{0,3}[a-z]?\s*[:.)]|\d{1,2}[.)])\s+", re.I
)
_CONNECTIVE = re.compile(
    r"\s*(?:(?:so|thus|hence|then|therefore|finally|in total|altogether|overall|that is|i\.e\.|which gives|this gives)"
    r"(?![\w=*/^])[\s,:]*)?"
    r"(?:(?:(?:i|we|you|one)\s+(?:would\s+)?(?:get|got|have|obtain|find|think)(?:\s+that)?(?:\s+it\s+is)?"
    r"|(?:my|the|our)\s+(?:final\s+)?(?:answer|result|total|formula|solution|number|value|count)\s+"
    r"(?:is|equals|would be|comes to)"
    r"|it\s+is|it's|there\s+are|this\s+is)(?![\w=*/^])[\s,:]*)?",
    re.IGNORECASE,
)
_ENDING = re.compile(r"(?:[\s;.✓✔☑✅∎□]|\s!)+$")
_COMMENT = re.compile(r"\s+#\s[^\n=]*$")
_NOT_SURE_LABEL = re.compile(r"\s*(?:\([a-zA-Z]\)|\(?[ivx]{1,4}\)|[a-zA-Z]\)|[-*•–—]\s)\s*")
_NEGATION = re.compile(
    r"\b(?:not|isn't|don't|cannot|never|wrong|except|instead|unlike|minus|plus|per|times|each|half|twice|double|most|"
    r"least|less|more|than|fewer|between|under|over|below|above|maximum|minimum|or|maybe|perhaps)\b",
    re.IGNORECASE,
)
_CONCLUSION = re.compile(
    r".*\b(?:total|answer|result|sum|count|number|overall|altogether)(?:\s+(?:of|number of)\s+\w+)?"
    r"\s*(?:is|are|equals|:|=)\s+(?P<end>[^=]*)",
    re.IGNORECASE | re.DOTALL,
)
_HARMLESS = frozenset(
    """
    parameters parameter params param weights weight numbers operations ops flops flop in total all overall altogether
    together the a an of for this that model models is are learnable trainable no without with including incl excluding
    excl bias biases norm norms since because as there and we have has here counted not embedding embeddings
    approximately about approx roughly rounded exactly exact only full whole sum answer
    """.split()  # noqa: SIM905
)
_TRAILING_WORDS = re.compile(r"(?P<start>.*?[\w)\]}|²³])(?P<words>(?:\s*[,;(–—]\s*|\s+)[^\d=+*/^\\_|]*)$", re.DOTALL)
_NAME_BEFORE_SIGN = re.compile(
    r"\s*(?P<name>#?\s*[^=+*/^\d]{1,60}?(?:_\{?\w{1,20}\}?)?\s*)(?<![<>!])[=:]\s*(?P<rest>[^=].*)", re.DOTALL
)
_POWER_OF_TEN = re.compile(r"\s*\\(?:times|cdot)\s*")
_WORDS = r"(?:[A-Za-z][A-Za-z ,'’-]*\s)?"
_NUMBER_IN_WORDS = re.compile(
    rf"{_WORDS}(?P<number>[~≈+−-]?\d[\d,._ ]*(?:[eE][+-]?\d+)?\s*(?:[A-Za-z]{{1,9}})?)"
    r"(?P<words>(?:[\s,]+[A-Za-z-]+)*)[\s.]*"
)
_NUMBER_AFTER_VERB = re.compile(
    r"(?:[a-zA-Z]+\s+){0,20}(?:is|has|have|are|of|total)\s+(?P<number>[~≈]?\d.*?)[\s.]*", re.DOTALL
)
_UNIT = re.compile(r"(?P<number>.*?[\d)%])\s*(?P<unit>[a-zA-Zµμ/ -]*)\.?\s*", re.DOTALL)
_TRAILING_NOTE = re.compile(r"\s*\([^()\d=+*/^]*\)\s*$")
_APPROXIMATION = re.compile(
    r"\s*(?:≈|~|≃|≅|approximately|approx\.?|about|roughly|around|circa|ca\.?|\\approx|\\sim(?:eq)?)\s*", re.I
)
_CHAIN = re.compile(r"(?<![<>!=])=(?!=)|≈|≃|≅|\\approx(?![a-z])")
_FACTOR_WORDS = frozenset(
    "k m b t p g bn mio thousand million millions billion billions trillion trillions".split()  # noqa: SIM905
)
_FILLERS = frozenset(
    "in total all overall altogether of the model for exactly only together a an this".split()  # noqa: SIM905
)
PARAMETER_WORDS = frozenset("parameter param weight number value entry entries element scalar".split())  # noqa: SIM905
COUNT_WORDS = frozenset(
    """
    parameter param weight number value entry entries element scalar term multiplication operation op flop
    addition token head layer word step unit pair sentence merge symbol bigram gram example
    """.split()  # noqa: SIM905
)
UNITS: dict[str, tuple[str, Fraction]] = {  # dimension, and size in its base unit
    **{name: ("data", Fraction(1)) for name in ("bit", "bits")},
    **{name: ("data", Fraction(8)) for name in ("b", "byte", "bytes")},
    **{name: ("time", Fraction(1)) for name in ("s", "sec", "second", "seconds")},
    **{name: ("time", Fraction(1, 1000)) for name in ("ms", "millisecond", "milliseconds")},
    **{name: ("time", Fraction(1, 10**6)) for name in ("us", "µs", "μs", "microsecond", "microseconds")},
    **{name: ("time", Fraction(60)) for name in ("min", "minute", "minutes")},
    **{name: ("time", Fraction(3600)) for name in ("h", "hour", "hours")},
    **{name: ("time", Fraction(86400)) for name in ("d", "day", "days")},
}
for _power, _letter in enumerate("KMGTP", 1):
    UNITS[f"{_letter}b".lower()] = ("data", Fraction(8 * 1000**_power))
    UNITS[f"{_letter}ib".lower()] = ("data", Fraction(8 * 1024**_power))


@dataclass(frozen=True)
class AnswerReading:
    """An answer as it may be read.

    Attributes:
        text: the text that was parsed.
        answer: the result of parsing it.
        is_sure: whether it can decide that an answer is right.
        note: how the answer was read, or a wrong step of the working; "" if there is nothing to say.
    """

    text: str
    answer: Any
    is_sure: bool = True
    note: str = ""


def clean_answer(text: str, question_id: str = "") -> str:
    r"""Return an answer without what students write around it and what never changes it.

    >>> clean_answer(r"**Q1:** The answer is $\boxed{V \cdot d}$.", "Q1"), clean_answer("=> 11250 ✓")
    ('V \\cdot d', '11250')
    """
    if len(text) > MAX_CLEANED_CHARS:
        return text
    text = text.replace("\r\n", "\n").replace("\r", "\n").replace("\ufeff", "").replace("\u200b", "")
    if _ENVIRONMENT.search(text):
        text = _ENVIRONMENT.sub("\n", text).replace("\\\\", "\n").replace("&", "")
    text = _TEXT.sub(r" \1 ", _STYLE.sub(" ", _FENCE_LINE.sub("", text)))
    text = _unbox(_DELIMITERS.sub(" ", text))
    lines = [clean_line(line, question_id, is_first=not number) for number, line in enumerate(_split_lines(text))]
    return "\n".join(line for line in lines if line)


def _split_lines(text: str) -> list[str]:
    """Return the lines of a text that are not empty."""
    return [line for line in text.split("\n") if line.strip()]


def _unbox(text: str) -> str:
    r"""Return a text with the content of \boxed{…} in place of the box."""
    for _ in range(MAX_BOXES):
        match = _BOXED.search(text)
        if match is None:
            break
        depth = 1
        end = match.end()
        while end < len(text) and depth:
            depth += (text[end] == "{") - (text[end] == "}")
            end += 1
        text = f"{text[: match.start()]} {text[match.end() : end - (not depth)]} {text[end:]}"
    return text


def clean_line(line: str, question_id: str = "", is_first: bool = True) -> str:
    """Return a line of an answer without labels, arrows and signs around it; an arrow before a later line becomes =."""
    if match := _BOLD.fullmatch(line.strip()):
        line = match[2]
    line = line.strip()
    if question_id and (
        label := re.match(r"[*_`(\s]*" + re.escape(question_id) + r"[*_`\s]*[:.)：][*_`]*\s*", line, re.I)
    ):
        line = line[label.end() :]
    is_step = False
    for _ in range(4):  # labels may follow each other, as in "Q1: Answer: => …"
        before = line
        for pattern in (_ARROW, _LABEL, _CONNECTIVE):
            match = pattern.match(line)
            if match and match.end() and line[match.end() :].strip():
                is_step = is_step or pattern is _ARROW
                line = line[match.end() :].strip()
        match = _NUMBERED.match(line)
        if match and line[match.end() :].strip():
            line = line[match.end() :].strip()
        if match := _BOLD.fullmatch(line):
            line = match[2].strip()
        if line == before:
            break
    line = _COMMENT.sub("", _ENDING.sub("", line)).strip() if _ENDING.sub("", line) else line
    return f"= {line}" if is_step and not is_first and "=" not in line else line


def formula_readings(text: str, parse: Callable[[str], Any], question_id: str = "") -> list[AnswerReading]:
    """Return the readings of a formula; raise the error of the first if none can be parsed.

    Args:
        text: the answer as it was written.
        parse: the parser of a formula, which raises an InputError.
        question_id: the name of the question, which may come before the answer.
    """
    cleaned = clean_answer(text, question_id)
    readings: list[AnswerReading] = []
    error: InputError | None = None
    lines = _split_lines(cleaned)
    candidates = _formula_candidates(cleaned)
    if 1 < len(lines) <= MAX_WORKING_LINES:  # working: the last formula counts
        chain = "\n".join(lines[_chain_start(lines) :])
        candidates = [*_formula_candidates(chain), *_formula_candidates(lines[-1].lstrip("= ")), *candidates]
    for candidate in dict.fromkeys(candidates):
        try:
            answer = parse(candidate)
        except InputError as raised:
            error = error or raised
            continue
        readings.append(AnswerReading(candidate, answer))
        if len(lines) == 1:
            break
    if readings:
        notes = _wrong_steps(lines, parse) if len(lines) > 1 else ""
        readings = [AnswerReading(each.text, each.answer, note=notes) for each in readings]
    for candidate in _unsure_candidates(text, cleaned):
        try:
            readings.append(AnswerReading(candidate, parse(candidate), is_sure=False))
        except InputError:
            continue
    if not readings:
        raise error or InputError("the formula is empty")
    return readings


def _chain_start(lines: list[str]) -> int:
    """Return the index of the line that begins the last chain: the last that does not begin with a sign."""
    for index in range(len(lines) - 1, 0, -1):
        if not lines[index].lstrip().startswith(("=", "+", "-", "−", "*", "·", "/")):
            return index
    return 0


def _formula_candidates(text: str) -> list[str]:
    """Return texts that may be the formula: the text, then without remarks, words after it, or a name before it."""
    candidates = [text]
    core = text
    if (match := _TRAILING_NOTE.search(core)) and _is_harmless(match[0]):
        core = core[: match.start()]
        candidates.append(core)
    if (match := _TRAILING_WORDS.fullmatch(core)) and _is_harmless(match["words"]):
        core = match["start"]
        candidates.append(core)
    if match := _NAME_BEFORE_SIGN.fullmatch(core):
        candidates.append(match["rest"])
    if "\n" not in text and not _NEGATION.search(text) and (match := _CONCLUSION.fullmatch(text)):
        candidates += [match["end"], *_formula_candidates(match["end"])]
    return candidates


def _is_harmless(words: str) -> bool:
    """Return whether words after a formula say nothing that changes it, such as "parameters, without biases"."""
    names = re.findall(r"[^\W\d_]+", words.lower())
    return all(name in _HARMLESS for name in names) and not re.search(r"[\d=+*/^]", words)


def _unsure_candidates(text: str, cleaned: str) -> Iterator[str]:
    """Yield texts in which a sign or letter at the start is a bullet or label rather than a part of the formula."""
    for source in (text.strip(), cleaned):
        match = _NOT_SURE_LABEL.match(source)
        if match and match.end() < len(source):
            yield clean_answer(source[match.end() :])


def _wrong_steps(lines: list[str], parse: Callable[[str], Any]) -> str:
    """Return a sentence on the first line of the working that differs from the next, "" if none does.

    Only lines that state the same quantity are compared: a line without a name, or that begins with =.
    """
    values: list[tuple[str, Any]] = []
    for line in lines:
        text = line.lstrip("= ")
        try:
            values.append((line.strip(), parse(text)))
        except InputError:
            values = []  # another kind of line: what follows is not derived from it
    for (first, before), (second, after) in pairwise(values):
        if not second.startswith("="):
            continue
        formulas = [getattr(value, "answer", getattr(value, "value", None)) for value in (before, after)]
        if None not in formulas and formulas[0] != formulas[1]:
            return f"The step from '{first[:60]}' to '{second[:60]}' is wrong."
    return ""


def number_readings(text: str, read: Callable[[str], WrittenNumber], question_id: str = "") -> list[AnswerReading]:
    """Return the readings of a number; raise an InputError if there are none.

    The last of several lines, and the last member of a chain such as 2250 + 9000 = 11,250, is the answer. A member
    without symbols may be a computation.

    Args:
        text: the answer as it was written.
        read: the parser of a number, which raises an InputError.
        question_id: the name of the question, which may come before the answer.
    """
    cleaned = _normalize_digits(clean_answer(text, question_id))
    lines = _split_lines(cleaned)[-MAX_WORKING_LINES:]
    if not lines:
        raise InputError("the number is empty")
    last = lines[-1]
    members = [part.strip() for part in _CHAIN.split(last) if part.strip()]
    if re.search(r"\bfrom\b.*\bto\b", last):  # a change between two sizes
        members = [last]
    if any(re.search(r"[,;]\s*[A-Za-z_\\#][^,;]*$", member) for member in members[:-1]):
        raise InputError(f"'{last[:60]}' states several numbers. Write the answer alone.")
    is_rounded = re.search(r"(?:≈|≃|≅|\\approx)[^=]*$", last) is not None
    readings: list[AnswerReading] = []
    error: InputError | None = None
    try:
        answer = _read_member(members[-1] if members else last, read, is_rounded)
        values = {
            member: value for member in members[:-1] if (value := compute_number(split_unit(member)[0])) is not None
        }
        wrong = next((member for member, value in values.items() if not _agrees(answer, value)), "")
        readings.append(AnswerReading(last, answer, note=f"'{wrong[:60]}' is another number." if wrong else ""))
    except InputError as raised:
        error = raised
    if len(lines) > 1:  # numbers in a list may be parts of a sum
        numbers = [compute_number(split_unit(_CHAIN.split(line)[-1])[0]) for line in lines]
        if len(lines) <= MAX_WORKING_LINES and None not in numbers:
            total = sum((number for number in numbers if number is not None), Fraction(0))
            readings.append(AnswerReading(text, WrittenNumber(str(total), total, Fraction(0)), is_sure=False))
    for candidate in _unsure_candidates(text, cleaned):
        try:
            readings.append(AnswerReading(candidate, read(_normalize_digits(candidate)), is_sure=False))
        except InputError:
            continue
    if not readings:
        raise error or InputError("the number is empty")
    return readings


def _normalize_digits(text: str) -> str:
    r"""Return a text with LaTeX's separators and powers as plain ones: 11{,}250, 1.1 \times 10^{4}, 2**20."""
    text = re.sub(r"(?<=\d)(?:\{,\}|\\[,;: ])(?=\d)", ",", text)
    text = re.sub(r"(?<=\d)'(?=\d{3}\b)", ",", text)
    text = _POWER_OF_TEN.sub(" * ", text.replace("\\%", "%").replace("\\_", "_"))
    return re.sub(r"\^\s*\{\s*([+-]?\d+)\s*\}", r"^\1", text)


def _read_member(text: str, read: Callable[[str], WrittenNumber], is_rounded: bool) -> WrittenNumber:
    """Return the number that a member of a chain states: a number with words around it, or a computation."""
    prefix = "about " if is_rounded else ""
    core = text
    if (match := _TRAILING_NOTE.search(core)) and not _NEGATION.search(match[0]):
        core = core[: match.start()]
    before, _, after = core.partition(";")
    core = before.strip() if not re.search(r"\d", after) and not _NEGATION.search(after) else core
    candidates = [prefix + core]
    if match := _NAME_BEFORE_SIGN.fullmatch(core):
        candidates.append(prefix + match["rest"])
    if not _NEGATION.search(core):
        if (match := _NUMBER_IN_WORDS.fullmatch(core)) and _is_harmless(match["words"]):
            candidates.append(prefix + core[match.start("number") :])
        if match := _NUMBER_AFTER_VERB.fullmatch(core):
            candidates.append(prefix + match["number"])
    error: InputError | None = None
    for candidate in candidates:
        try:
            return read(candidate)
        except InputError as raised:
            error = error or raised
    value = compute_number(core)
    if value is not None:
        return WrittenNumber(core, value, Fraction(0))
    raise error or InputError(f"'{text[:40]}' is not read as a number")


def compute_number(text: str) -> Fraction | None:
    """Return the exact value of a computation with numbers only, such as 15*(75 + 75); None for anything else."""
    text = text.strip()
    if not text or len(text) > 400 or re.search(r"[A-Za-z_]", re.sub(r"\\frac|(?<=\d)[eE][+-]?\d+", "", text)):
        return None
    if re.search(r"[;:=\n]|,(?!\d{3}(?!\d))", text):  # several parts, which a formula would add up
        return None
    if re.fullmatch(r".*\d\.\d{3}", text) and not re.search(r"[-+*/^()]", text):  # a point that may mean thousands
        return None
    try:
        return read_formula(text, []).constant
    except (InputError, ZeroDivisionError):
        return None


def _agrees(number: WrittenNumber, value: Fraction) -> bool:
    """Return whether a number states a value, exactly or rounded, in full or in per cent."""
    return any(number.matches(scaled) or number.value == scaled for scaled in (value, value / 100, value * 100))


def split_unit(text: str, expected: str = "") -> tuple[str, str]:
    """Split a number and the unit after it; single letters are units only where such a unit is expected.

    >>> split_unit("180,000 bytes"), split_unit("1.5B"), split_unit("9.7 million parameters in total")
    (('180,000', 'bytes'), ('1.5B', ''), ('9.7 million', 'parameters'))
    """
    text = re.sub(r"\s*(?:per\s?cent|pct)\b\.?", " %", text.strip(), flags=re.IGNORECASE)
    match = _UNIT.fullmatch(text)
    words = match["unit"].replace("/", " ").split() if match else []
    if not match or not words:
        return text, ""
    number = match["number"]
    first = words[0].lower()
    is_expected = UNITS.get(first, ("",))[0] == UNITS.get(expected.lower(), ("-",))[0]
    if first in UNITS and len(first) == 1 and first not in _FACTOR_WORDS and not is_expected:
        return text, ""
    if first in _FACTOR_WORDS and not (is_expected and len(words) == 1):
        number, words = f"{number} {words[0]}" if len(first) > 1 else f"{number}{words[0]}", words[1:]
    units = [word.lower() for word in words if word.lower() not in _FILLERS]
    if not units:
        return number, ""
    if any(word not in _HARMLESS for word in units[:-1]):
        return text, ""
    return number, units[-1]


def find_unit(question: str) -> str:
    """Return the unit that the text of a question asks for, as in "How many bytes …?"; "" without one.

    >>> find_unit("How many bytes does AdamW need?"), find_unit("How long does it take, in ms?"), find_unit("How many?")
    ('bytes', 'ms', '')
    """
    words = re.findall(r"\b(?:how many|number of|in)\s+([A-Za-zµμ]+)", question, re.IGNORECASE)
    return next((word for word in map(str.lower, words) if word in UNITS and len(word) > 1), "")


def convert_unit(number: WrittenNumber, unit: str, expected: str) -> WrittenNumber | None:
    """Return a number in the expected unit; None if its unit cannot be converted.

    >>> from lemma.report.numbers import read_number
    >>> convert_unit(read_number("2"), "kib", "bytes").value
    Fraction(2048, 1)
    """
    if not unit or singular(unit) == singular(expected):
        return number
    (dimension, size), (expected_dimension, base) = UNITS.get(unit, ("", 0)), UNITS.get(expected.lower(), ("-", 1))
    if dimension != expected_dimension:
        return None
    factor = Fraction(size) / Fraction(base)
    return WrittenNumber(number.text, number.value * factor, number.unit * factor, number.decimals)


def singular(unit: str) -> str:
    """Return a unit in lower case without the s of the plural."""
    unit = unit.lower()
    return unit[:-1] if unit.endswith("s") and len(unit) > 3 else unit


# Lines that name values.

_CLAIM_START = re.compile(r",\s*(?=[^\s,=\d\[(][^,=\[\]]{0,60}(?:\[[^\]]*\])?\s*=(?!=))|;\s*(?=\S[^;=]{0,80}=(?!=))")
_ITEM_LABEL = re.compile(r"\(?(?:[a-z]|[ivx]{1,4}|\d{1,2})[.)]\s+(?=\S[^=]*=)", re.IGNORECASE)
_HAT = re.compile(r"\\(hat|widehat|tilde|bar)\s*(?:\{\s*\\?([A-Za-z]+)\s*\}|([A-Za-z])(?![A-Za-z]))")
_NUMBER_AND_WORDS = re.compile(
    r"(?P<number>[≈~]?\s*[+−-]?\d[\d., _/]*(?:[eE][+-]?\d+)?)\s*(?P<words>%|(?:[A-Za-z]+[ ]?)+)\.?"
)


def read_claims(
    text: str, question_id: str, name: str, is_values: bool, is_derivation: bool = False
) -> list[AnswerReading]:
    """Return the texts of lines `NAME = VALUE` that an answer may be read as, as it is written first; none is parsed.

    Args:
        text: the answer as it was written.
        question_id: the name of the question, which may come before the answer.
        name: the value that is asked for, if it is a single one: a last line without a name is about it.
        is_values: whether the right sides are values, so that the last member of a chain is the answer.
        is_derivation: whether the lines are steps, which are not split.
    """
    literal = text.strip()
    cleaned = clean_answer(text, question_id)
    if is_derivation:
        return [AnswerReading(each, None) for each in dict.fromkeys(filter(None, (literal, cleaned)))]
    lines = [part.strip() for line in _split_lines(cleaned) for part in _split_claims(line) if part.strip()]
    lines = [_ITEM_LABEL.sub("", line, count=1) if _ITEM_LABEL.match(line) else line for line in lines]
    if not is_values:
        lines = [_HAT.sub(_write_accent, line) for line in lines]
    if name and lines and not any(sign in lines[-1] for sign in "=<>≈:∈"):
        lines[-1] = f"{name} = {lines[-1]}"
    elif name and len(lines) == 1 and lines[0].startswith("="):
        lines = [f"{name} {lines[0]}"]
    texts = [literal, "\n".join(lines)]
    readings = [AnswerReading(each, None) for each in dict.fromkeys(filter(None, texts))]
    if is_values:
        reduced = [_reduce_chain(line) for line in lines]
        if reduced != lines:
            readings.append(AnswerReading("\n".join(reduced), None))
        readings += _convert_percent(reduced)
    return readings


def _split_claims(line: str) -> list[str]:
    """Split a line at semicolons, or commas, outside brackets that are followed by another NAME = VALUE."""
    parts, start, depth = list[str](), 0, 0
    if "=" not in line:
        return [line]
    for index, character in enumerate(line):
        depth += (character in "([{") - (character in ")]}")
        if character in ",;" and not depth and (match := _CLAIM_START.match(line, index)):
            parts.append(line[start:index])
            start = match.end()
    return [*parts, line[start:]]


def _write_accent(match: re.Match[str]) -> str:
    r"""Return a name with its accent written out: \hat{y} becomes y_hat."""
    accent = {"widehat": "hat"}.get(match[1], match[1])
    return f"{match[2] or match[3]}_{accent}"


def _reduce_chain(line: str) -> str:
    """Return a line NAME = a = b with the last member alone, and without words after a number."""
    name, sign, chain = line.partition("=")
    members = [part.strip() for part in _CHAIN.split(chain) if part.strip()]
    if not sign or not members:
        return line
    value = members[-1]
    match = _NUMBER_AND_WORDS.fullmatch(value)
    if match and match["words"] != "%":
        words = [singular(word) for word in match["words"].split()]
        if all(word in COUNT_WORDS or word in _FILLERS for word in words):
            value = match["number"].strip()
    return f"{name.strip()} = {value.lstrip('≈~ ')}"


def _convert_percent(lines: list[str]) -> list[AnswerReading]:
    """Return the lines with 75 % as 0.75; and, not sure, as 75. Without a percentage return []."""
    pattern = re.compile(r"(?<![\w.])([+−-]?\d{1,15})(?:\.(\d{1,15}))?\s*\\?%")
    text = "\n".join(lines)
    if not pattern.search(text) or len(text) > MAX_CLEANED_CHARS:
        return []

    def divide(match: re.Match[str]) -> str:
        digits = len(match[2] or "") + 2
        number = Fraction(f"{match[1].replace('−', '-')}.{match[2] or '0'}") / 100
        return f"{float(number):.{min(digits, 15)}f}"

    without_sign = pattern.sub(lambda match: match[0].rstrip("%\\ "), text)
    return [AnswerReading(pattern.sub(divide, text), None), AnswerReading(without_sign, None, is_sure=False)]
