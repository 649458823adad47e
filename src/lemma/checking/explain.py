"""The simplest explanation of the difference between an answer and the model's formula.

A mistake (see `mistakes.py`) adds something to the model's formula and has a cost. The mistakes whose sum is the
difference, at the least total cost, explain it.
"""

import random
from collections.abc import Hashable, Iterable, Iterator, Sequence
from fractions import Fraction
from functools import lru_cache
from itertools import combinations, product
from math import inf
from typing import Literal, get_args, get_origin

from lemma.checking.accounts import TIED_SIZES
from lemma.checking.compare_formula import FormulaComparison
from lemma.checking.mistakes import (
    COST_FACTOR,
    COST_TENSOR,
    HEADS,
    Mistake,
    PartGroup,
    candidate_mistakes,
    foreign_mistakes,
    group_parts,
)
from lemma.counting.polynomial import Polynomial, divide_exactly, spend, sum_polynomials, work_limit
from lemma.errors import InputError, SpecError
from lemma.models.build import count_spec_parameters
from lemma.spec.base import Spec
from lemma.spec.models import FAMILIES, ModelSpec

RIVAL_MARGIN = 3  # pairs of mistakes that cost at most this much more make the cheapest pair uncertain
MAX_ALTERNATIVES, MAX_LISTED, MAX_FACTOR = 4, 6, 12
MAX_CACHED_TABLES = 32
MAX_COMPARED_TERMS, MIN_OVERLAP = 3, 0.5  # of a difference without an explanation
NUM_DRAWS = 4  # random sizes at which other settings are tried


def explain(comparison: FormulaComparison) -> tuple[str, float]:
    """Return a sentence on the simplest mistakes that explain a wrong formula, and their cost; or ("", infinity)."""
    difference, answer = comparison.explainable_difference, comparison.answer_polynomial
    if difference is None or answer is None:
        return "", inf
    mistakes = list(foreign_mistakes(comparison, difference))
    ratio = divide_exactly(answer, comparison.expected) if answer.symbols else None
    if ratio is not None and len(ratio.terms) == 1:
        number = ratio.common_factor()[0]
        if max(abs(number.numerator), number.denominator) <= MAX_FACTOR:
            paths = frozenset(part.path for part in comparison.quantity.groups)
            message = f"your formula is {comparison.write(ratio)} times the model's"
            mistakes.append(Mistake(difference, COST_TENSOR, message, paths=paths))
    return MistakeTable(mistakes, _build_table(comparison)).explain(difference)


def explain_number(comparison: FormulaComparison) -> str:
    """Return a sentence on the mistake that explains a wrong number at the model's sizes; "" without one.

    Only single mistakes are tried: with two, almost any number could be explained by chance.
    """
    sizes, table = comparison.account.symbols, _build_table(comparison)
    difference = comparison.answer.at(sizes) - comparison.expected.at(sizes)
    deltas = [delta for delta in table.by_delta if delta.at(sizes) == difference]
    lowest = min(map(table.cost, deltas), default=None)
    mistakes = [mistake for delta in deltas for mistake in table.by_delta[delta] if mistake.cost == lowest]
    return _to_sentence(_join_alternatives(_describe_mistakes(mistakes), ", or ")) if mistakes else ""


def describe_nearest(comparison: FormulaComparison) -> str:
    """Return a hint for a difference that no mistakes explain: the terms that differ, and where the model has them."""
    difference, groups = comparison.explainable_difference, group_parts(comparison.quantity.groups)
    assert difference is not None
    if not groups:
        return "No simple explanation: the model has nothing of the kind."

    def overlap(group: PartGroup) -> float:
        """Return the fraction of monomials that the difference and the group's formula have in common."""
        left, right = difference.terms.keys(), group.total.terms.keys()
        return len(left & right) / len(left | right)

    answer = comparison.answer_polynomial
    assert answer is not None
    clauses: list[str] = []
    for monomial in sorted(difference.terms, key=lambda term: -abs(difference.terms[term]))[:MAX_COMPARED_TERMS]:
        answer_count, model_count = (formula.terms.get(monomial, 0) for formula in (answer, comparison.expected))
        parts = [part for part in comparison.quantity.groups if monomial in part.total.terms]
        names = _join_names([f"'{part.path}'" for part in parts[:3]]).replace(" or ", " and ") if parts else ""
        more = f" and {len(parts) - 3} more" if len(parts) > 3 else ""
        source = f", from {names}{more}" if names else ""
        name = comparison.write(Polynomial({monomial: 1})) if monomial else "plain numbers"
        clauses.append(
            f"of {name} yours has {_format_count(answer_count)}, the model {_format_count(model_count)}{source}"
        )
    more = len(difference.terms) - len(clauses)
    omitted = f"; and {more} more terms differ" if more > 0 else ""
    nearest = max(groups, key=lambda group: (overlap(group), -len(group.parts)))
    hint = f" The terms that differ are like those of {nearest.name}." if overlap(nearest) > MIN_OVERLAP else ""
    return f"Term by term: {'; '.join(clauses)}{omitted}.{hint}"


def _format_count(number: Fraction | int) -> str:
    """Return a coefficient as text; "none" for 0."""
    return str(number) if number else "none"


_PRIME = 2**61 - 1
_RANDOM_POINT: dict[str, int] = {}


def fingerprint(formula: Polynomial) -> int:
    """Return a formula's value at a fixed random point modulo a prime: fingerprints add up as their formulas do.

    >>> from lemma.counting.polynomial import symbol
    >>> left, right = symbol("d") * 3 + 1, symbol("L") / symbol("h")
    >>> (fingerprint(left) + fingerprint(right) - fingerprint(left + right)) % _PRIME
    0
    """
    value = 0
    for monomial, coefficient in formula.terms.items():
        term = coefficient.numerator * pow(coefficient.denominator, -1, _PRIME)
        for name, power in monomial:
            number = _RANDOM_POINT.setdefault(name, random.Random(name).randrange(2, _PRIME))
            term = term * pow(number, power, _PRIME) % _PRIME
        value += term
    return value % _PRIME


class MistakeTable:
    """Candidate mistakes by their change of the model's formula; of mistakes with the same name, the cheapest."""

    def __init__(self, mistakes: Iterable[Mistake], base: "MistakeTable | None" = None) -> None:
        self.by_delta = {delta: [*mistakes] for delta, mistakes in base.by_delta.items()} if base else {}
        self.by_fingerprint = dict(base.by_fingerprint) if base else {}
        for new in mistakes:
            if not new.delta:
                continue
            entries = self.by_delta.setdefault(new.delta, [])
            if not entries:
                self.by_fingerprint[fingerprint(new.delta)] = new.delta
            same = [entry for entry in entries if new.name and (entry.name, entry.paths) == (new.name, new.paths)]
            if not any(entry.cost <= new.cost for entry in same):
                entries.append(new)
                entries.sort(key=lambda entry: entry.cost)

    def cost(self, delta: Polynomial) -> float:
        """Return the cost of the cheapest mistake that changes the model's formula by `delta`; infinity without one."""
        return self.by_delta[delta][0].cost if delta in self.by_delta else inf

    def explain(self, difference: Polynomial) -> tuple[str, float]:
        """Return a sentence on the mistakes whose changes sum to a difference, and their cost; or ("", infinity).

        Single mistakes are tried first, then pairs, then triples; the sentence lists all of the least cost.
        """
        if difference in self.by_delta:
            lowest, separator, has_rivals = self.cost(difference), ", or ", False
            clauses = _describe_mistakes([choice for choice in self.by_delta[difference] if choice.cost == lowest])
        else:
            explanations, lowest, has_rivals = self._select_cheapest(self._find_sums(difference, 2, COST_FACTOR + 1))
            if not explanations:
                explanations, lowest, has_rivals = self._select_cheapest(self._find_sums(difference, 3, COST_TENSOR))
            if not explanations:
                return "", inf
            separator = "; or "
            clauses = list(dict.fromkeys(map(_describe_combination, explanations)))
        num_hidden = len(clauses) - MAX_ALTERNATIVES
        if num_hidden > 0:
            clauses = [*clauses[:MAX_ALTERNATIVES], f"one of {num_hidden} other pairs of mistakes"]
        text = _join_alternatives(clauses, separator)
        if has_rivals and len(clauses) == 1:
            text = f"most likely {text}"
        return _to_sentence(text), lowest

    def _find_sums(self, difference: Polynomial, count: int, max_cost: int) -> set[tuple[Polynomial, ...]]:
        """Return all combinations of `count` changes with that sum, each of mistakes that cost at most `max_cost`."""
        marks = [mark for mark, delta in self.by_fingerprint.items() if self.cost(delta) <= max_cost]
        spend(len(marks) ** (count - 1) // 50)
        available, target = {*marks}, fingerprint(difference)
        sums = set[tuple[Polynomial, ...]]()
        for selected in combinations(marks, count - 1):
            if (remainder := (target - sum(selected)) % _PRIME) in available:
                sums.add(tuple(self.by_fingerprint[mark] for mark in sorted((*selected, remainder))))
        return {deltas for deltas in sums if sum_polynomials(deltas) == difference}

    def _select_cheapest(
        self, candidates: Iterable[Sequence[Polynomial]]
    ) -> tuple[list[list[list[Mistake]]], int, bool]:
        """Return the explanations of the least cost, this cost, and whether others cost at most RIVAL_MARGIN more.

        A candidate is a combination of formula changes; its explanation has the alternative mistakes for each change.
        """
        order = {delta: index for index, delta in enumerate(self.by_delta)}.__getitem__
        explanations = [sorted(deltas, key=order) for deltas in candidates]
        explanations.sort(key=lambda deltas: [*map(order, deltas)])
        choices = (_choose_disjoint([self.by_delta[delta] for delta in deltas]) for deltas in explanations)
        priced = [(cost, mistakes) for cost, mistakes in choices if mistakes]
        lowest = min((cost for cost, _ in priced), default=0)
        # the same tensors left out, grouped in other ways, are described once
        by_union = dict[frozenset[str], list[list[Mistake]]]()
        for index, mistakes in enumerate(mistakes for cost, mistakes in priced if cost == lowest):
            missing = [choices[0].paths for choices in mistakes if choices[0].kind == "missing" and len(choices) == 1]
            is_omission = len(missing) == len(mistakes)
            union = frozenset().union(*missing) if is_omission else frozenset({str(index)})
            by_union.setdefault(union, mistakes)
        has_rivals = any(lowest < cost <= lowest + RIVAL_MARGIN for cost, _ in priced)
        return list(by_union.values()), lowest, has_rivals


_TABLES: dict[Hashable, MistakeTable] = {}


def _build_table(comparison: FormulaComparison) -> MistakeTable:
    """Return the table of candidate mistakes; cached, since many students answer the same question."""
    account, quantity = comparison.account, comparison.quantity
    unset, sizes = frozenset(account.defaults) - comparison.answer.symbols, tuple(account.symbols.items())
    key = (quantity.groups, comparison.original_parts, account.order, sizes, quantity.name, unset)
    if key not in _TABLES:
        while len(_TABLES) >= MAX_CACHED_TABLES:
            del _TABLES[next(iter(_TABLES))]
        with work_limit(None):
            _TABLES[key] = MistakeTable(candidate_mistakes(comparison))
    return _TABLES[key]


def _choose_disjoint(mistakes: Sequence[Sequence[Mistake]]) -> tuple[int, list[list[Mistake]]]:
    """Choose a mistake for each formula change such that no part of the model is explained twice.

    `mistakes` has the alternatives for each change. Return the least total cost, and for each change the mistakes in
    choices of this cost; [] without a choice.
    """
    choices: dict[int, list[Sequence[Mistake]]] = {}
    for choice in product(*mistakes):
        paths = [path for mistake in choice for path in mistake.paths]
        if len(paths) == len({*paths}):
            choices.setdefault(sum(mistake.cost for mistake in choice), []).append(choice)
    lowest = min(choices, default=0)
    return lowest, [list(dict.fromkeys(effect)) for effect in zip(*choices.get(lowest, []), strict=True)]


# Sentences.


def _describe_mistakes(mistakes: Sequence[Mistake]) -> list[str]:
    """Return clauses that describe alternative mistakes, most likely first; mistakes of one kind share a clause."""
    clauses: list[str] = []
    for kind in dict.fromkeys(mistake.kind for mistake in mistakes):
        same_kind = [mistake for mistake in mistakes if mistake.kind == kind]
        text, names = same_kind[0].text, _join_names([mistake.name for mistake in same_kind])
        if kind == "other":
            locations: dict[str, list[str]] = {}
            for mistake in same_kind:
                locations.setdefault(mistake.text, []).append(mistake.location)
            clauses += [text.replace("{}", _join_names(names)) for text, names in locations.items()]
        elif kind == "missing":
            alternatives = f"your formula leaves out one of these, which are all of one size: {names}"
            clauses.append(alternatives if len(same_kind) > 1 else f"the model has {text} that your formula leaves out")
        else:
            alternatives = f"one of these twice: {names}"
            single = f"{text.replace('a ', 'the ', 1)} twice"
            clauses.append(f"your formula counts {alternatives if len(same_kind) > 1 else single}")
    return list(dict.fromkeys(clauses))


def _describe_combination(mistakes: Sequence[Sequence[Mistake]]) -> str:
    """Return the clause for mistakes that were all made; each element lists the alternatives for one of them."""
    is_same_twice = len(mistakes) == 2 and {*mistakes[0]} == {*mistakes[1]}
    if is_same_twice and {mistake.kind for mistake in mistakes[0]} == {"missing"}:
        *first, last = (mistake.text.rstrip(",") for mistake in mistakes[0])
        if len(first) == 1:
            return f"your formula leaves out both {first[0]} and {last}"
        return f"your formula leaves out two of these, which are all of one size: {', '.join(first)} or {last}"
    omissions = [choices for choices in mistakes if len(choices) == 1 and choices[0].kind == "missing"]
    clauses: list[str] = []
    if len(omissions) > 1:
        *first, last = (choices[0].text.rstrip(",") for choices in omissions)
        clauses = [f"the model has {', '.join(first)} and {last} that your formula leaves out"]
        mistakes = [choices for choices in mistakes if choices not in omissions]
    alternatives = (_join_alternatives(_describe_mistakes(choices), ", or ") for choices in mistakes)
    return ", and ".join([*clauses, *alternatives])


def _join_names(names: Sequence[str]) -> str:
    """Join names by commas and "or"; a long list ends with the number of names left out."""
    if len(names) > MAX_LISTED:
        names = [*names[: MAX_LISTED - 1], f"{len(names) - MAX_LISTED + 1} more"]
    return f"{', '.join(names[:-1])} or {names[-1]}" if len(names) > 1 else names[0]


def _join_alternatives(clauses: Sequence[str], separator: str) -> str:
    """Return a single clause as it is, several as "either a, or b" with this separator."""
    return clauses[0] if len(clauses) == 1 else f"either {separator.join(clauses)}"


def _to_sentence(text: str) -> str:
    """Return a clause with a capital letter and a full stop."""
    return text[0].upper() + text[1:] + "."


# Other settings of the model under which the answer would be right.

_count_parameters = lru_cache(512)(count_spec_parameters)  # the same random sizes are tried for every answer


def suggest_settings(comparison: FormulaComparison, spec: ModelSpec) -> str:
    """Return a sentence with the settings that would make the answer the number of parameters; "" without any."""
    source, account = random.Random(0), comparison.account  # the same draws each time
    unset = account.defaults.keys() - comparison.answer.symbols

    def draw_size(name: str, size: int) -> int:
        """Draw a random size for a symbol: few layers, heads that divide `size`, widths in multiples of `size`."""
        if name == HEADS:
            return source.choice([divisor for divisor in range(1, size + 1) if size % divisor == 0])
        return source.randint(2, 9) if name in comparison.counting_symbols else size * source.randint(1, 5)

    draws = [
        {name: draw_size(name, size) for name, size in account.symbols.items() if name not in unset}
        for _ in range(NUM_DRAWS)
    ]

    def is_right(other: ModelSpec) -> bool:
        """Return whether the answer is the number of parameters of a spec at all random sizes."""
        for sizes in draws:
            names = other.sizes()
            tied = {name: sizes[of] for name, of in TIED_SIZES.items() if name in names and name not in sizes}
            try:
                actual = _count_parameters(other.with_sizes({**sizes, **tied}))  # pyright: ignore[reportArgumentType]
                if comparison.answer.at(sizes) != actual:
                    return False
            except InputError:  # sizes that this model cannot have, or at which the formula divides by zero
                return False
        return True

    settings = [setting for setting, other in neighbor_specs(spec) if is_right(other)]
    return f"It would be right with {' or '.join(settings)}." if settings else ""


def neighbor_specs(spec: ModelSpec) -> Iterator[tuple[str, ModelSpec]]:
    """Yield (setting, spec) for every spec that differs in one choice, such as `bias=false` or `family=gru`."""
    for name, field in type(spec).model_fields.items():
        if name in ("family", "activation"):  # a family has other fields; no size depends on the activation
            continue
        choices = get_args(field.annotation)
        if field.annotation is bool:
            choices = (True, False)
        elif get_origin(field.annotation) is not Literal:  # a tagged union
            kinds = [kind for kind in choices if isinstance(kind, type) and issubclass(kind, Spec)]
            choices = tuple(kind.model_fields["kind"].default for kind in kinds if "kind" in kind.model_fields)
        for value in choices:
            if name == "tied" and value and getattr(spec, "hidden", None) is not None:
                continue  # tying needs hidden = width, which is another model altogether
            try:
                changed = spec.replace(**{name: value})
            except SpecError:
                continue
            if changed != spec:
                yield f"{name}={str(value).lower()}", changed
    for family, kind in FAMILIES.items():
        if family != spec.family and kind.letters() == type(spec).letters():
            settings = {name: value for name, value in spec.to_dict().items() if name in kind.model_fields}
            yield f"family={family}", kind.read({**settings, "family": family}, family)
