"""Formulas as files of their own: a Python module without dependencies, LaTeX, JSON or Markdown.

Each has the formula, the sizes at which it holds, what is counted and how, and numbers that were read off the module.
Text of people and of modules (names, paths) is written in strings and comments only, escaped.
"""

import json
import keyword
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from fractions import Fraction
from functools import cached_property
from math import lcm
from typing import Any

from lemma import __version__
from lemma.counting.account import TITLES, Account, Part, Quantity, write_parts
from lemma.counting.breakdown import PartTotal, escape_latex, list_part_totals
from lemma.counting.derived import DerivedSize
from lemma.counting.polynomial import Polynomial, symbol
from lemma.counting.proved_domain import ProvedDomain, prove_domain
from lemma.counting.writing import Style, write_formula
from lemma.errors import CountingError, InputError, describe_unknown
from lemma.report.numbers import escape_invisible
from lemma.report.text import wrap

FUNCTIONS = {  # names of the functions by quantity
    "parameters": "parameters",
    "active": "active_parameters",
    "flops": "forward_flops",
    "backward": "backward_flops",
    "activations": "activation_bytes",
    "cache": "cache_bytes",
    "optimizer": "optimizer_bytes",
}
INPUT_SIZES = {"B": "batch size", "T": "tokens of a sequence", "S": "tokens of a source sequence", "n": "nodes"}
LINE_LENGTH = 88
RESERVED = {*keyword.kwlist, *keyword.softkwlist, *FUNCTIONS.values(), "min", "max", "divide", "check_sizes", "require"}
RESERVED |= {
    "CHECKS",
    "main",
    "print",
    "isinstance",
    "bool",
    "int",
    "str",
    "divmod",
    "repr",
    "ValueError",
    "SystemExit",
}


@dataclass(frozen=True)
class ProvedFormula:
    """A quantity's formula with the domain in which it was compared with the module."""

    quantity: Quantity
    proved: ProvedDomain

    @property
    def name(self) -> str:
        return FUNCTIONS[self.quantity.name]

    @property
    def title(self) -> str:
        return TITLES[self.quantity.name]

    @cached_property
    def symbols(self) -> tuple[str, ...]:
        """Return the sizes that the formula or its domain needs, in the order of the account."""
        used = self.quantity.polynomial.symbols | self.proved.symbols
        for rule in self.quantity.rules.values():
            used |= rule.symbols
        for default in self.defaults(used).values():
            used |= default.symbols
        return tuple(name for name in self.quantity.sizes if name in used and name in self.quantity.compared_at)

    def defaults(self, names: Sequence[str] | frozenset[str]) -> dict[str, Polynomial]:
        """Return the rules that sizes in `names` follow unless they are set, such as d_ff = 4·d."""
        sizes = self.quantity.compared_at
        return {
            name: default
            for name, default in self.quantity.defaults.items()
            if name in names and default.symbols <= {*sizes} and default.at(sizes) == sizes.get(name)
        }

    def describe_domain(self, style: Style = "plain") -> list[str]:
        """Return the conditions on sizes under which the formula holds, as text."""
        domain, write = self.proved.domain, _symbol_writer(style)
        at_most, below, at_least = {"plain": ("<=", "<", ">="), "unicode": ("≤", "<", "≥")}.get(
            style, (r"\le", "<", r"\ge")
        )
        conditions = [f"{write(name)} = {size}" for name, size in domain.only_at.items()]
        conditions += [f"{write(name)} {at_least} {size}" for name, size in domain.at_least.items()]
        conditions += [f"{write(name)} {at_most} {size}" for name, size in domain.at_most.items()]
        for low, high in domain.ordered.items():
            conditions.append(f"{write(low)} {below if (low, high) in self.proved.below else at_most} {write(high)}")
        if style == "latex":
            conditions = [f"${condition}$" for condition in conditions]
        delimiter = "$" if style == "latex" else ""
        for name, step in domain.multiples.items():
            conditions.append(f"{delimiter}{write(name)}{delimiter} is a multiple of {step}")
        for divisor, names in self.proved.divisors.items():
            for name in names:
                quoted = f"{delimiter}{write(name)}{delimiter}", f"{delimiter}{write(divisor)}{delimiter}"
                conditions.append(f"{quoted[0]} is a multiple of {quoted[1]}")
        return conditions


def emit_account(account: Account, form: str) -> str:
    """Write the formulas of an account in a form: "python", "latex", "json" or "markdown".

    Raises:
        InputError: the form is unknown, or no quantity has a formula that can be written.
    """
    if form not in EMITTERS:
        raise InputError(describe_unknown("form", form, EMITTERS))
    formulas: list[ProvedFormula] = []
    reasons: dict[str, str] = {}
    small: Mapping[str, int] | None = None
    for quantity in account.quantities.values():
        try:
            if small is None and quantity.recount is not None:
                small = quantity.recount.small_sizes()
            formulas.append(ProvedFormula(quantity, prove_domain(quantity, small or {})))
        except CountingError as error:
            reasons[quantity.name] = str(error)
    if not formulas:
        listed = "; ".join(f"{TITLES[name]}: {reason}" for name, reason in reasons.items())
        raise InputError(f"{account.model} has no formula that can be written on its own ({listed}).")
    recount = formulas[0].quantity.recount
    versions = {} if recount is None else recount.library_versions()
    return EMITTERS[form](Emission(account, tuple(formulas), reasons, versions, date.today().isoformat()))


@dataclass(frozen=True)
class Emission:
    """All that is written of an account.

    Attributes:
        reasons: why quantities are left out, by name.
        versions: the libraries with which the formulas were proved.
    """

    account: Account
    formulas: tuple[ProvedFormula, ...]
    reasons: Mapping[str, str]
    versions: Mapping[str, str]
    day: str

    @property
    def origin(self) -> str:
        """Return a sentence on how, when and with what the formulas were proved."""
        libraries = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        return (
            f"Written by Lemma {__version__} on {self.day}. The formulas were fitted to readings of the module and "
            f"compared with it at other sizes, with {libraries}."
        )

    @cached_property
    def symbols(self) -> tuple[str, ...]:
        """Return the sizes of all formulas, in the order of the account."""
        used = {name for formula in self.formulas for name in formula.symbols}
        return tuple(name for name in self.account.symbols if name in used)

    def describe_symbol(self, name: str) -> str:
        """Return what a size is: the name of its setting in words."""
        setting = self.account.setting_names.get(name)
        if setting is None:
            return INPUT_SIZES.get(name, "an argument of the factory")
        return setting.replace("_", " ")

    @property
    def omissions(self) -> list[str]:
        """Return a sentence for each quantity that is left out."""
        return [f"{TITLES[name]}: {reason}" for name, reason in self.reasons.items()]


# Python.


class PythonNames:
    """Identifiers for symbols and parts; names that are no identifiers, or are taken, are changed."""

    def __init__(self, symbols: Sequence[str]) -> None:
        self.taken = set(RESERVED)
        self.symbols = {name: self.add(name) for name in symbols}

    def add(self, name: str) -> str:
        """Return a new identifier like `name`."""
        stem = re.sub(r"\W+", "_", name).strip("_") or "part"
        stem = f"part_{stem}" if stem[0].isdigit() else stem
        stem = stem if stem.isidentifier() else "part"
        identifier, number = stem, 2
        while identifier in self.taken or keyword.iskeyword(identifier):
            identifier, number = f"{stem}_{number}", number + 1
        self.taken.add(identifier)
        return identifier


def emit_python(emission: Emission) -> str:
    """Write a Python module with a function for each quantity, which needs no packages and checks itself."""
    functions = [FunctionWriter(formula, emission).write() for formula in emission.formulas]
    body = "\n\n\n".join(functions)
    helpers = [CHECK_SIZES, *([DIVIDE] if "divide(" in body else []), *([REQUIRE] if "require(" in body else [])]
    checks = ["CHECKS = (  # numbers that were read off the module, not computed by these functions"]
    for formula in emission.formulas:
        names = PythonNames(formula.symbols).symbols
        for check in formula.proved.checks:
            sizes = ", ".join(f'"{names[name]}": {check.sizes[name]}' for name in formula.symbols)
            checks.append(f"    ({formula.name}, {{{sizes}}}, {check.number}),")
    ignored = "# ruff: noqa: E741\n" if {*emission.symbols} & {"l", "O", "I"} else ""
    return f"{ignored}{_module_docstring(emission)}\n\n\n" + "\n\n\n".join(
        [*helpers, body, "\n".join([*checks, ")"]), MAIN]
    )


CHECK_SIZES = '''
def check_sizes(**sizes: int) -> None:
    """Raise ValueError unless all sizes are whole numbers from 1 up."""
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise ValueError(f"{name} = {size!r}: a whole number from 1 up is expected")
'''.strip()
REQUIRE = '''
def require(holds: bool, condition: str) -> None:
    """Raise ValueError unless a condition on the sizes holds."""
    if not holds:
        raise ValueError(f"the formula holds only where {condition}")
'''.strip()
DIVIDE = '''
def divide(numerator: int, denominator: int) -> int:
    """Return an exact quotient; raise ValueError if it is no whole number."""
    quotient, remainder = divmod(numerator, denominator)
    if remainder:
        raise ValueError(f"{numerator} is no multiple of {denominator}")
    return quotient
'''.strip()
MAIN = (
    '''
def main() -> None:
    """Compare the functions with numbers of the module."""
    for function, sizes, expected in CHECKS:
        actual = function(**sizes)
        if actual != expected:
            raise SystemExit(
                f"{function.__name__} at {sizes} is {actual}; the module has {expected}"
            )
    print(f"{len(CHECKS)} numbers of the module agree with the formulas.")


if __name__ == "__main__":
    main()
'''.strip()
    + "\n"
)


def _module_docstring(emission: Emission) -> str:
    """Return the docstring of the module: what was counted, how it was proved, what the sizes are."""
    lines = [f"Cost formulas of {emission.account.model}.", "", *_wrap(emission.origin), "", "Sizes:"]
    for name in emission.symbols:
        size = emission.account.symbols[name]
        identifier = PythonNames(emission.symbols).symbols[name]
        lines.append(f"    {identifier}: {emission.describe_symbol(name)}, here {size:,}")
    if emission.omissions:
        lines += ["", "Not written:", *(line for reason in emission.omissions for line in _wrap(reason, "    "))]
    lines += ["", *_wrap("Run this file to compare the functions with numbers of the module.")]
    return "\n".join(['"""' + _escape_python(lines[0]), *map(_escape_python, lines[1:]), '"""'])


class FunctionWriter:
    """Writes the Python function of one formula."""

    def __init__(self, formula: ProvedFormula, emission: Emission) -> None:
        self.formula, self.emission, self.quantity = formula, emission, formula.quantity
        self.names = PythonNames(formula.symbols)
        self.order = tuple(self.names.symbols.values())
        self.quotients: dict[tuple[str, str], str] = {}  # identifiers of whole quotients, by size and divisor

    def write(self) -> str:
        """Return the source of the function."""
        symbols, quantity = self.names.symbols, self.quantity
        derived = {letter: self.names.add(letter) for letter in quantity.rules}
        renamed = {name: symbol(new) for name, new in {**symbols, **derived}.items() if new != name}
        self.order = (*self.order, *derived.values())
        totals = list_part_totals(quantity)
        parts = [[self._prepare(part, renamed) for part in total.parts] for total in totals]
        variables = [self._name_part(total, totals) for total in totals]
        body: list[str] = []
        if len(totals) > 1:
            for total, row, variable in zip(totals, parts, variables, strict=True):
                path = escape_invisible(total.name)
                body += [f"    # {path}"] if path != variable else []
                body += _assign(variable, self._write_parts(row))
            body += _assign("", " + ".join(variables))
        else:
            body += _assign("", self._write_parts(parts[0]) if parts else "0")
        rules = [
            line
            for letter, identifier in derived.items()
            for line in _assign(identifier, self._write_rule(quantity.rules[letter], renamed))
        ]
        quotients = [f"    {identifier} = {name} // {by}" for (name, by), identifier in self.quotients.items()]
        lines = [*self._signature(), *self._docstring(), *self._guards(), *rules, *quotients, *body]
        return "\n".join(lines)

    def _prepare(self, part: Part, renamed: Mapping[str, Polynomial]) -> Part:
        """Return a part in the identifiers of the function, with whole quotients in place of negative powers."""
        divisors = self.formula.proved.divisors

        def replace_quotients(polynomial: Polynomial) -> Polynomial:
            terms: Polynomial = Polynomial({})
            for monomial, number in polynomial.terms.items():
                powers, factor = dict(monomial), Polynomial({(): number})
                for name, power in monomial:
                    if power < 0:
                        numerator = divisors[name][0]
                        factor = factor * symbol(self._quotient(numerator, name)) ** -power
                        powers[numerator] += power
                        powers[name] = 0
                terms += factor * Polynomial({tuple((n, p) for n, p in sorted(powers.items()) if p): 1})
            return terms

        shape = None if part.shape is None else tuple(map(replace_quotients, part.shape))
        whole = Part(part.path, replace_quotients(part.each), replace_quotients(part.repeats), shape, part.note)
        return whole.substitute(renamed)

    def _quotient(self, name: str, divisor: str) -> str:
        """Return the identifier of the whole quotient of two sizes."""
        key = self.names.symbols[name], self.names.symbols[divisor]
        if key not in self.quotients:
            self.quotients[key] = self.names.add(f"{key[0]}_per_{key[1]}")
        return self.quotients[key]

    def _name_part(self, total: PartTotal, totals: Sequence[PartTotal]) -> str:
        """Return an identifier for a part: the last words of its path that no other part has."""
        words = [word for word in re.findall(r"\w+", total.name) if not word.isdigit()]
        others = [[word for word in re.findall(r"\w+", other.name) if not word.isdigit()] for other in totals]
        for length in range(1, len(words)):
            if sum(other[-length:] == words[-length:] for other in others) == 1:
                return self.names.add("_".join(words[-length:]))
        return self.names.add("_".join(words) or "module")

    def _write_parts(self, parts: Sequence[Part]) -> str:
        """Return the sum of parts as a Python expression of whole numbers."""
        text = write_parts(parts, self.order)
        if "/" not in text:
            return _space_out(text)
        total = Polynomial({})
        for part in parts:
            total += part.total
        return self._write_integer(total)

    def _write_integer(self, polynomial: Polynomial) -> str:
        """Return a polynomial whose values are whole numbers as a Python expression without fractions."""
        denominator = lcm(*(number.denominator for number in polynomial.terms.values()))
        text = write_formula(polynomial * denominator, self.order)
        if "/" not in text:
            return _space_out(text) if denominator == 1 else f"divide({_space_out(text)}, {denominator})"
        raise AssertionError(f"{polynomial} has a negative power")

    def _write_rule(self, rule: DerivedSize, renamed: Mapping[str, Polynomial]) -> str:
        """Return a derived size as a Python expression."""
        operands = [
            _write_quotient(operand.substitute_all(renamed), self.order, rule.kind) for operand in rule.operands
        ]
        text = f"{rule.kind}({', '.join(operands)})" if rule.kind in ("min", "max") else operands[0]
        if rule.factor == 1:
            return text
        return f"{rule.factor} * {text}" if rule.kind in ("min", "max") else f"{rule.factor} * ({text})"

    def _signature(self) -> list[str]:
        """Return the lines of `def`: all sizes by name, those that follow others optional."""
        symbols = self.names.symbols
        defaults = self.formula.defaults(self.formula.symbols)
        arguments = [
            f"{symbols[name]}: int | None = None" if name in defaults else f"{symbols[name]}: int"
            for name in sorted(self.formula.symbols, key=lambda name: name in defaults)
        ]
        line = f"def {self.formula.name}(*, {', '.join(arguments)}) -> int:"
        if not arguments:
            line = f"def {self.formula.name}() -> int:"
        if len(line) <= LINE_LENGTH:
            return [line]
        return [f"def {self.formula.name}(", "    *,", *(f"    {text}," for text in arguments), ") -> int:"]

    def _docstring(self) -> list[str]:
        """Return the docstring: formula, conventions and domain."""
        formula, quantity = self.formula, self.quantity
        rules = [f"{letter} = {rule.write()}" for letter, rule in quantity.rules.items()]
        defaults = [f"{name} = {write_formula(default)}" for name, default in formula.defaults(formula.symbols).items()]
        lines = [f"Return the {formula.title}.", "", *_wrap(f"{quantity.formula}", "    ")]
        lines += [line for rule in rules for line in _wrap(f"with {rule}", "    ")]
        lines += [f"    unless set: {', '.join(defaults)}"] if defaults else []
        lines += ["", *_wrap(". ".join(text[:1].upper() + text[1:] for text in self._notes()) + ".")]
        lines += ["", "Raises:", *_wrap(f"ValueError: {self._condition()}", "    ", "        ")]
        escaped = [f"    {_escape_python(line)}".rstrip() for line in lines]
        return [f'    """{escaped[0].strip()}', *escaped[1:], '    """']

    def _notes(self) -> Iterator[str]:
        """Yield what is counted, and remarks."""
        yield from filter(None, (self.quantity.convention, *self.quantity.remarks))

    def _condition(self) -> str:
        conditions = ", ".join(self.formula.describe_domain())
        sizes = "a size is no whole number from 1 up"
        return f"{sizes}, or not {conditions}." if conditions else f"{sizes}."

    def _guards(self) -> Iterator[str]:
        """Yield the statements that fill in sizes that are not set, and check all."""
        symbols, proved = self.names.symbols, self.formula.proved
        renamed = {name: symbol(new) for name, new in symbols.items() if new != name}
        for name, default in self.formula.defaults(self.formula.symbols).items():
            text = _write_quotient(default.substitute_all(renamed), self.order, "exact")
            yield f"    if {symbols[name]} is None:"
            yield f"        {symbols[name]} = {text}"
        pairs = [f"{identifier}={identifier}" for identifier in symbols.values()]
        if pairs:
            line = f"    check_sizes({', '.join(pairs)})"
            yield from [line] if len(line) <= LINE_LENGTH else _wrap_call("check_sizes", pairs)
        domain = proved.domain
        for name, size in domain.only_at.items():
            yield from self._require(f"{symbols[name]} == {size}")
        for name, step in domain.multiples.items():
            yield from self._require(f"{symbols[name]} % {step} == 0", f"{symbols[name]} is a multiple of {step}")
        for name, size in domain.at_least.items():
            yield from self._require(f"{symbols[name]} >= {size}")
        for name, size in domain.at_most.items():
            yield from self._require(f"{symbols[name]} <= {size}")
        for low, high in domain.ordered.items():
            sign = "<" if (low, high) in proved.below else "<="
            yield from self._require(f"{symbols[low]} {sign} {symbols[high]}")
        for divisor, names in proved.divisors.items():
            for name in names:
                condition = f"{symbols[name]} is a multiple of {symbols[divisor]}"
                yield from self._require(f"{symbols[name]} % {symbols[divisor]} == 0", condition)

    def _require(self, test: str, condition: str = "") -> list[str]:
        """Return a call of `require`; the condition is the test itself unless it is written in words."""
        return [f'    require({test}, "{condition or test.replace("==", "=")}")']


def _write_quotient(polynomial: Polynomial, order: Sequence[str], kind: str) -> str:
    """Return a polynomial with fractions as a Python expression: rounded down or up, or an exact quotient."""
    denominator = Polynomial({(): lcm(*(number.denominator for number in polynomial.terms.values()))})
    negative: dict[str, int] = {}
    for monomial in polynomial.terms:
        for name, power in monomial:
            negative[name] = max(negative.get(name, 0), -power)
    denominator *= Polynomial({tuple(sorted((name, power) for name, power in negative.items() if power > 0)): 1})
    top, bottom = (_space_out(write_formula(value, order)) for value in (polynomial * denominator, denominator))
    if denominator == Polynomial({(): Fraction(1)}):
        return top
    top = f"({top})" if " " in top else top
    bottom = f"({bottom})" if " " in bottom else bottom
    if kind == "ceil":
        return f"-(-{top} // {bottom})"
    if kind == "exact":
        return f"divide({top.removeprefix('(').removesuffix(')')}, {bottom})"
    return f"{top} // {bottom}"


def _space_out(text: str) -> str:
    """Return a formula with spaces around its operators, as formatters write them."""
    text = re.sub(r"(?<=[\w)])-(?=[\w(])", " - ", text)
    return re.sub(r"(?<!\*)\*(?!\*)", " * ", text)


def _assign(variable: str, expression: str) -> list[str]:
    """Return the lines of an assignment, or of `return` without a variable."""
    start = f"    {variable} = " if variable else "    return "
    if len(start + expression) <= LINE_LENGTH:
        return [start + expression]
    return [f"{start}(", *wrap(expression, LINE_LENGTH, indent=" " * 8), "    )"]


def _wrap_call(function: str, arguments: Sequence[str]) -> list[str]:
    """Return the lines of a call whose arguments take more than a line."""
    return [f"    {function}(", *wrap(", ".join(arguments) + ",", LINE_LENGTH, indent=" " * 8), "    )"]


def _wrap(text: str, indent: str = "", hanging: str | None = None) -> list[str]:
    return wrap(" ".join(text.split(" ")), LINE_LENGTH - 8, indent=indent, hanging=hanging)


def _escape_python(text: str) -> str:
    """Return a text that can stand in a docstring: no quotes, backslashes or invisible characters that matter there."""
    return escape_invisible(text).replace("\\", "\\\\").replace('"', '\\"')


# Other forms.


def emit_latex(emission: Emission) -> str:
    """Write an align* with the formulas, a list of the symbols, and comments on conventions and domains."""
    rows: list[str] = []
    for formula in emission.formulas:
        rows.append(rf"\text{{{formula.title}}} &= {formula.quantity.latex}")
        for letter, rule in formula.quantity.rules.items():
            rows.append(f"{write_formula(symbol(letter), (), 'latex')} &= {rule.write(emission.symbols, 'latex')}")
    lines = [r"\begin{align*}", " \\\\\n".join(dict.fromkeys(rows)), r"\end{align*}", "where", r"\begin{itemize}"]
    for name in emission.symbols:
        size = f"{emission.account.symbols[name]:,}".replace(",", "{,}")
        letter = write_formula(symbol(name), (), "latex")
        lines.append(rf"  \item ${letter}$: {escape_latex(emission.describe_symbol(name))} (here ${size}$)")
    lines.append(r"\end{itemize}")
    for formula in emission.formulas:
        if conditions := formula.describe_domain("latex"):
            lines.append(f"The {formula.title} hold where {', '.join(conditions)}.")
    comments = [f"Cost formulas of {emission.account.model}.", emission.origin]
    comments += [f"{formula.title}: {formula.quantity.convention}" for formula in emission.formulas]
    comments += [f"not written: {reason}" for reason in emission.omissions]
    for formula in emission.formulas:
        for check in formula.proved.checks:
            sizes = ", ".join(f"{name} = {check.sizes[name]}" for name in formula.symbols)
            comments.append(f"check, {formula.title} of the module at {sizes}: {check.number}")
    return "\n".join([*lines, *(f"% {escape_invisible(' '.join(comment.split()))}" for comment in comments)]) + "\n"


def emit_markdown(emission: Emission) -> str:
    """Write the formulas in LaTeX between dollars, with tables of symbols and checks."""
    lines = [f"# Cost formulas of {_escape_markdown(emission.account.model)}", "", emission.origin, ""]
    lines += ["| symbol | meaning | here |", "|---|---|---:|"]
    for name in emission.symbols:
        letter, size = write_formula(symbol(name), (), "latex"), emission.account.symbols[name]
        lines.append(f"| ${letter}$ | {_escape_markdown(emission.describe_symbol(name))} | {size:,} |")
    for formula in emission.formulas:
        lines += ["", f"## {formula.title}", "", "$$", formula.quantity.latex, "$$", ""]
        for letter, rule in formula.quantity.rules.items():
            lines += [f"with ${write_formula(symbol(letter), (), 'latex')} = {rule.write((), 'latex')}$", ""]
        conditions = formula.describe_domain("latex")
        lines += [f"Holds where {', '.join(conditions)}.", ""] if conditions else []
        notes = filter(None, (formula.quantity.convention, *formula.quantity.remarks))
        lines += [_escape_markdown("; ".join(notes)), ""]
        lines += ["| read off the module at | " + formula.title + " |", "|---|---:|"]
        for check in formula.proved.checks:
            sizes = ", ".join(f"{name} = {check.sizes[name]:,}" for name in formula.symbols)
            lines.append(f"| {_escape_markdown(sizes)} | {check.number:,} |")
    if emission.omissions:
        lines += ["", "Not written:", "", *(f"- {_escape_markdown(reason)}" for reason in emission.omissions)]
    return "\n".join(lines) + "\n"


def _escape_markdown(text: str) -> str:
    """Return a text on one line with Markdown's special characters escaped."""
    return re.sub(r"([\\`*_{}\[\]<>#|$~&])", r"\\\1", escape_invisible(" ".join(text.split())))


def emit_json(emission: Emission) -> str:
    """Write the formulas as exact terms: coefficients as text, exponents by symbol."""
    quantities: dict[str, Any] = {}
    for formula in emission.formulas:
        quantity, domain = formula.quantity, formula.proved.domain
        order = tuple(quantity.sizes)
        quantities[quantity.name] = {
            "title": formula.title,
            "unit": quantity.unit,
            "formula": quantity.formula,
            "terms": _list_terms(quantity.polynomial),
            "parts": [
                {
                    "part": total.name,
                    "formula": write_formula(total.polynomial, order),
                    "terms": _list_terms(total.polynomial),
                }
                for total in list_part_totals(quantity)
            ],
            "derived": {
                letter: {
                    "kind": rule.kind,
                    "operands": [_list_terms(operand) for operand in rule.operands],
                    "factor": rule.factor,
                    "formula": rule.write(),
                }
                for letter, rule in quantity.rules.items()
            },
            "defaults": {name: _list_terms(default) for name, default in formula.defaults(formula.symbols).items()},
            "symbols": list(formula.symbols),
            "domain": {
                "only_at": dict(domain.only_at),
                "multiples": dict(domain.multiples),
                "at_least": {**dict.fromkeys(formula.symbols, 1), **domain.at_least},
                "at_most": dict(domain.at_most),
                "ordered": [
                    {"smaller": low, "larger": high, "may_be_equal": (low, high) not in formula.proved.below}
                    for low, high in domain.ordered.items()
                ],
                "divisible": [
                    {"size": name, "by": by} for by, names in formula.proved.divisors.items() for name in names
                ],
            },
            "conventions": [note for note in (quantity.convention, *quantity.remarks) if note],
            "checks": [
                {"sizes": {name: check.sizes[name] for name in formula.symbols}, "value": check.number}
                for check in formula.proved.checks
            ],
        }
    document = {
        "model": emission.account.model,
        "written": {"by": f"lemma {__version__}", "on": emission.day, "with": dict(emission.versions)},
        "symbols": {
            name: {"meaning": emission.describe_symbol(name), "size": emission.account.symbols[name]}
            for name in emission.symbols
        },
        "quantities": quantities,
        "not_written": dict(emission.reasons),
    }
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def _list_terms(polynomial: Polynomial) -> list[dict[str, Any]]:
    """Return the terms of a polynomial: coefficient as text, such as "3/2", and powers by symbol."""
    return [{"coefficient": str(number), "powers": dict(monomial)} for monomial, number in polynomial.terms.items()]


def _symbol_writer(style: Style) -> Callable[[str], str]:
    """Return a function that writes a symbol in a style."""
    return lambda name: write_formula(symbol(name), (), style)


EMITTERS: dict[str, Callable[[Emission], str]] = {
    "python": emit_python,
    "latex": emit_latex,
    "json": emit_json,
    "markdown": emit_markdown,
}
