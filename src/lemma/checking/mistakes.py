"""Candidate mistakes in a formula: tensors forgotten or counted twice, and known mutations of the model's formula.

Mutations are rules in two tables, `FORMULA_RULES` and `GROUP_RULES`. A rule yields mistakes with their effect on the
formula, their cost and a template of the sentence; `{}` stands for the group of parts.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache, partial
from itertools import product
from math import prod
from typing import Literal

from lemma.checking.compare_formula import FormulaQuestion
from lemma.checking.part_groups import ALL_NORMS, PartGroup, group_parts, is_bias, is_norm, module_path
from lemma.counting.account import Part
from lemma.counting.polynomial import ONE, Polynomial, divide_exactly, sum_polynomials, symbol

# Costs. Any two mistakes cost more than one: fewer mistakes are proposed before more plausible ones.
COST_TENSOR = 10  # a tensor is left out, or one is added that the model does not have
COST_GLOBAL = 11  # several modules at once, or a symbol of the whole formula
COST_LOCAL = 12  # a symbol inside one part, or a part counted twice
COST_FACTOR = 13  # a factor too many or too few

MAX_FOREIGN_TERMS, MAX_BLOCKS = 6, 8
HEADS, VOCABULARY = "h", "V"
TIED_NOTE = "tied: also "
EMBEDDING_NAMES = ("embed", "position", "wte", "wpe")
ATTENTION_NAMES = ("att", "head", "query", "key", "value", "_proj")
BLOCK_NAMES = {  # tensors that stack equal blocks, and what the blocks are
    "weight_ih": "one for each gate or candidate",
    "query_key_value": "query, key and value",
    "in_proj": "query, key and value",
    "c_attn": "query, key and value",
}


@dataclass(frozen=True)
class Mistake:
    """A candidate mistake and its effect on the model's formula.

    Attributes:
        delta: the mistaken formula minus the model's.
        cost: implausibility; cheaper mistakes are proposed first.
        message: clause of the diagnosis with `{}` for the location, or the noun phrase of what is missing or counted
            twice; a function if it is costly to format.
        name: short name in lists. Of mistakes with one delta, name and paths, the cheapest is enough.
        paths: parts it explains; each is explained at most once.
        location: the group of parts that it is about.
    """

    delta: Polynomial
    cost: int
    message: str | Callable[[], str]
    name: str = ""
    kind: Literal["missing", "twice", "other"] = "other"
    paths: frozenset[str] = frozenset()
    location: str = ""

    @property
    def text(self) -> str:
        return self.message if isinstance(self.message, str) else self.message()


def candidate_mistakes(question: FormulaQuestion) -> Iterator[Mistake]:
    """Yield every mistake that the model allows, whatever the answer."""
    groups = group_parts([part for part in question.quantity.groups if part.total])
    yield from tensor_mistakes(question, groups)
    yield from mutation_mistakes(question, groups)


def foreign_mistakes(question: FormulaQuestion, difference: Polynomial) -> Iterator[Mistake]:
    """Yield the terms in symbols on which the quantity does not depend: all of a symbol, and each term alone."""
    quantity = question.quantity.name if question.quantity.name != "flops" else "FLOPs"
    for name in sorted(difference.symbols - question.expected.symbols):
        terms = {term: number for term, number in difference.terms.items() if name in dict(term)}
        single_terms = [{term: number} for term, number in terms.items()] if 1 < len(terms) <= MAX_FOREIGN_TERMS else []
        for foreign in map(Polynomial, (terms, *single_terms)):
            message = (
                f"your formula has {question.write(foreign)}, in which {name} is foreign: the {quantity} of this model "
                "do not depend on it"
            )
            yield Mistake(foreign, COST_TENSOR, message, paths=frozenset({f"foreign {name}"}))


# Tensors that a formula leaves out, counts twice or counts for one layer only, and biases that only the formula has.


def tensor_mistakes(question: FormulaQuestion, groups: Sequence[PartGroup]) -> Iterator[Mistake]:
    """Yield everything that may be missing or counted too often, most likely first."""
    for group in groups:
        message = partial(_describe_group, question, group)
        yield Mistake(-group.total, _omission_cost(group), message, group.name, "missing", group.paths)
    for group in groups:
        yield _counted_twice(question, group)
        yield from _counted_for_single_layer(group)
        yield from _miscounted_members(group)
    if question.quantity.name == "parameters":
        yield from _foreign_biases(question)


def _omission_cost(group: PartGroup) -> int:
    """Return how implausible it is to forget a group.

    People forget a norm rather than half of it, and a whole module rather than its biases or weights alone.
    """
    part = group.single_part
    if group.name.startswith("the biases of") and len({*map(is_norm, group.parts)}) > 1:
        return COST_LOCAL  # biases of norms and of other maps, but not all biases
    is_half_norm = part is not None and part.shape is not None and is_norm(part) and bool(part.each.symbols)
    is_half = is_half_norm or group.name == "the biases of all norms"
    if is_half or group.name.startswith(("every", "the biases of every", "the weights")):
        return COST_GLOBAL
    return COST_TENSOR


def _counted_twice(question: FormulaQuestion, group: PartGroup) -> Mistake:
    part = group.single_part
    if part is None or TIED_NOTE not in part.note:
        message = partial(_describe_group, question, group)
        return Mistake(group.total, COST_LOCAL, message, group.name, "twice", group.paths)
    other = part.note.partition(TIED_NOTE)[2]  # counting a tied tensor again is a common mistake
    message = f"your formula counts '{other}' again; it is tied to '{part.path}', and a tied tensor counts once"
    return Mistake(group.total, COST_TENSOR, message, paths=group.paths)


def _depth_symbols(parts: Sequence[Part]) -> set[str]:
    return {name for part in parts for name in part.repeats.symbols}


def _counted_for_single_layer(group: PartGroup) -> Iterator[Mistake]:
    for depth in sorted(_depth_symbols(group.parts)):
        single = sum_polynomials(part.repeats.substitute(depth, 1) * part.each for part in group.parts)
        message = f"your formula counts {{}} for one layer only; there are {depth}"
        paths = frozenset(part.path for part in group.parts if depth in part.repeats.symbols)
        cost = COST_LOCAL if group.single_part else COST_GLOBAL
        yield Mistake(single - group.total, cost, message, f"one {depth}", paths=paths, location=group.name)


def _miscounted_members(group: PartGroup) -> Iterator[Mistake]:
    """Yield one member more or less per layer, such as of the two attentions of a decoder layer."""
    members = [int(abs(part.repeats.common_factor()[0])) if len(part.repeats.terms) == 1 else 1 for part in group.parts]
    part = group.single_part
    is_half_module = part is not None and module_path(part.path) != part.path  # people repeat the module as a whole
    if min(members) < 2 or not (group.is_module or group.name == ALL_NORMS) or is_half_module:
        return
    per_layer = " in each layer" if _depth_symbols(group.parts) else ""
    for step, cost in ((-1, COST_TENSOR), (1, COST_LOCAL)):
        delta = sum_polynomials(
            part.total * Fraction(step, number) for part, number in zip(group.parts, members, strict=True)
        )
        if len(set(members)) == 1:
            message = f"there are {members[0]} of {group.name}{per_layer}; your formula counts {members[0] + step}"
        else:
            name = "norm" if group.name == ALL_NORMS else f"of {group.name}"
            message = f"your formula counts one {name} {'less' if step < 0 else 'more'}{per_layer} than there are"
        yield Mistake(delta, cost, message, paths=group.paths)


def _describe_group(question: FormulaQuestion, group: PartGroup) -> str:
    part = group.single_part
    if part is None or part.shape is None:
        prefix = "" if question.quantity.name == "parameters" else "the products of "
        return f"{prefix}{group.name} ({question.write(group.total)})"
    kind, module = "bias" if is_bias(part) else "weight", module_path(part.path)
    each, total = question.write(part.each), question.write(part.total)
    if module == part.path:
        return f"the {kind} '{module}' ({each}{'' if part.repeats == ONE else f' each, {total} in all'})"
    if part.repeats == ONE:
        return f"a {kind} of {each} in '{module}'"
    return f"a {kind} of {each} in each '{module}', {total} in all,"


def _foreign_biases(question: FormulaQuestion) -> Iterator[Mistake]:
    """Yield biases of maps that have none; an embedding table may serve as the output layer too."""
    parts = question.quantity.groups
    biased = {module_path(part.path) for part in parts if is_bias(part)}
    for part in parts:
        module = module_path(part.path)
        if part.shape is None or len(part.shape) != 2 or module == part.path or module in biased:
            continue
        outputs, _ = part.shape
        if any(name in part.path.lower() for name in EMBEDDING_NAMES):
            size, location, path, cost = part.repeats * outputs, "on the output", "output bias", COST_GLOBAL
        else:
            each = "" if part.repeats == ONE else "each "
            size, location, path, cost = outputs, f"in {each}'{module}'", f"{module} bias", COST_TENSOR
        message = f"your formula has a bias of {question.write(size)} {location} that the model does not have"
        yield Mistake(part.repeats * outputs, cost, message, f"bias {size}", paths=frozenset({path}))


# Mutations: one symbol for another, one too many, heads multiplied in, a factor forgotten.


class Mutations:
    """The symbols of a question as mutation rules need them."""

    def __init__(self, question: FormulaQuestion) -> None:
        self.question, self.parts = question, question.quantity.groups
        self.is_parameters = question.quantity.name == "parameters"
        self.names, self.counts = question.confusable_symbols, question.count_symbols
        self.depths = _depth_symbols(self.parts)
        self.lengths = set(self.counts) - self.depths  # symbols that count words or positions, not layers
        self.is_attention = {part.path: any(name in part.path for name in ATTENTION_NAMES) for part in self.parts}
        self.write = lru_cache(None)(lambda formula: question.write(formula).replace(" ", ""))

    @cached_property
    def formula(self) -> PartGroup:
        """The formula of all parts as a group, whose name is empty."""
        return PartGroup("", tuple(self.parts))

    def has_heads(self, group: PartGroup) -> bool:
        """Return whether attention heads are plausible here: by the names of the parts, or if no part has such one."""
        if HEADS not in self.question.account.order:
            return False
        is_attention = not group.name or all(self.is_attention[part.path] for part in group.parts)
        return is_attention or not any(self.is_attention.values())

    def replacement(
        self, group: PartGroup, actual: Polynomial, expected: Polynomial, mutated: Polynomial, cost: int
    ) -> Mistake:
        """Return the mistake of writing `actual` where the group's formula has `expected`."""
        paths = frozenset(part.path for part in group.parts if part.total.symbols & expected.symbols)

        def message() -> str:
            sizes = self.question.account.symbols
            coincides = actual.symbols.isdisjoint(expected.symbols) and actual.at(sizes) == expected.at(sizes)
            note = f" (the two are equal only at these sizes: {actual.at(sizes)})" if coincides else ""
            location = " in {}" if group.name else ""
            return f"your formula has {self.write(actual)} where the model has {self.write(expected)}{location}{note}"

        name = f"{actual!r} for {expected!r}"
        cost += 1 if group.name else 0
        return Mistake(mutated - group.total, cost, message, name, paths=paths, location=group.name)

    def scaling(self, group: PartGroup, mutated: Polynomial, message: str, cost: int = COST_FACTOR) -> Mistake:
        """Return the mistake of writing another multiple of a group's formula."""
        return Mistake(mutated - group.total, cost, message, paths=group.paths, location=group.name)


def off_by_one(mutations: Mutations, group: PartGroup) -> Iterator[Mistake]:
    """Yield N for N−1, L+1 for L."""
    for name in mutations.counts:
        count = symbol(name)
        more, less = (group.total.substitute(name, count + step) for step in (1, -1))
        expected = count - 1 if len(more.terms) < len(group.total.terms) else count
        # inside one module, L for L-1 is as common as in the whole formula
        cost = COST_TENSOR if group.name and expected != count else COST_GLOBAL
        yield mutations.replacement(group, expected + 1, expected, more, cost)
        yield mutations.replacement(group, expected - 1, expected, less, COST_GLOBAL)


def confused_symbol(mutations: Mutations, group: PartGroup) -> Iterator[Mistake]:
    """Yield d for d_h, 4d for d_ff, the width of one head for that of all heads."""
    heads, total = symbol(HEADS), group.total
    scaled_by_heads = (total * heads, total / heads)
    for name in mutations.names:
        if name not in total.symbols or name in mutations.lengths:
            continue
        if group.name and len(group.parts) > 1 and sum(name in part.total.symbols for part in group.parts) == 1:
            continue  # it is a mistake in that part alone
        symbols = [symbol(other) for other in mutations.names if other != name]
        multiples = [4 * other for other in symbols] if name == "d_ff" else []
        if mutations.has_heads(group) and name not in (HEADS, *mutations.counts):
            multiples += [symbol(name) * heads, symbol(name) / heads]
        part = group.single_part if group.name else None
        shape = (part.shape or ()) if part else ()
        is_single_axis = len(shape) > 1 and sum(name in side.symbols for side in shape) == 1
        for other in (*symbols, *multiples):
            # people mistake a width for a width and a depth for a depth; other symbols are foreign terms
            is_depth = name in mutations.depths
            fits = other.symbols <= mutations.depths if is_depth else other.symbols.isdisjoint(mutations.counts)
            if not fits:
                continue
            mutated = total.substitute(name, other)
            # other rules describe these better: one side of a matrix, and all of it multiplied or divided by h
            if (is_single_axis and other in symbols) or mutated in scaled_by_heads:
                continue
            cost = COST_GLOBAL if other in symbols else COST_LOCAL
            yield mutations.replacement(group, other, symbol(name), mutated, cost)


def block_count(mutations: Mutations, group: PartGroup) -> Iterator[Mistake]:
    """Yield three gates for four, or a query without key and value."""
    number, _ = group.total.common_factor()
    is_equal = not mutations.is_parameters or all(part.each.common_factor()[0] == number for part in group.parts)
    if not is_equal or number.denominator != 1 or not 2 <= number <= MAX_BLOCKS:
        return
    blocks = next((f" ({blocks})" for name, blocks in BLOCK_NAMES.items() if any(name in p for p in group.paths)), "")
    for counted in range(1, int(number) + 2):
        times = Fraction(counted, int(number))
        message = f"the model has {number} equal blocks in {{}}{blocks}; yours has {counted}"
        if not mutations.is_parameters:
            message = f"your formula counts {times} times what the model does in {{}}"
        yield mutations.scaling(group, group.total * times, message, COST_GLOBAL if blocks else COST_LOCAL)


def extra_factor(mutations: Mutations, group: PartGroup) -> Iterator[Mistake]:
    """Yield the heads, the layers or the words of the window multiplied in."""
    if mutations.has_heads(group):
        message = f"your formula multiplies {{}} by {HEADS}; the heads share its width"
        yield mutations.scaling(group, group.total * symbol(HEADS), message)
    counts = [symbol(name) for name in mutations.counts]
    reduced = [symbol(name) - 1 for name in mutations.counts if name in mutations.depths | {"N"}]
    for factor in (*counts, *reduced):
        message = f"your formula multiplies {{}} by {mutations.write(factor)}"
        yield mutations.scaling(group, group.total * factor, message)


def missing_factor(mutations: Mutations, group: PartGroup) -> Iterator[Mistake]:
    """Yield d for d², one word of the window for all of them."""
    for name in mutations.names:
        if name not in group.total.symbols or name == VOCABULARY:
            continue
        for factor in (symbol(name), symbol(name) - 1):
            quotient = divide_exactly(group.total, factor)
            if quotient is not None and all(power > 0 for monomial in quotient.terms for _, power in monomial):
                message = f"your formula leaves the factor {mutations.write(factor)} out of {{}}"
                yield mutations.scaling(group, quotient, message)


def divided_by_heads(mutations: Mutations, group: PartGroup) -> Iterator[Mistake]:
    """Yield a division by the number of heads."""
    if mutations.has_heads(group) and HEADS not in group.total.symbols:
        message = "your formula divides {} by h; all heads together have the full width"
        yield mutations.scaling(group, group.total / symbol(HEADS), message)


Rule = Callable[[Mutations, PartGroup], Iterator[Mistake]]
FORMULA_RULES: tuple[Rule, ...] = (off_by_one, confused_symbol)  # for the whole formula and for each group
GROUP_RULES: tuple[Rule, ...] = (block_count, extra_factor, missing_factor, divided_by_heads)


def mutation_mistakes(question: FormulaQuestion, groups: Sequence[PartGroup]) -> Iterator[Mistake]:
    """Yield all mutations, of the whole formula first; in a group of parts a mutation is less plausible."""
    mutations = Mutations(question)
    inner = [group for group in groups if group.is_module or group.name.startswith("the weights of")]
    for group in (mutations.formula, *inner):
        for rule in FORMULA_RULES:
            yield from rule(mutations, group)
    for group in inner:
        for rule in GROUP_RULES:
            yield from rule(mutations, group)
    yield from _confused_axes(mutations)
    yield from _other_multiples(mutations)


def _confused_axes(mutations: Mutations) -> Iterator[Mistake]:
    """Yield one side of a matrix taken for another size: what an upper layer reads, what a head outputs."""
    for part in mutations.parts:
        shape = part.shape or ()
        for side, size in enumerate(shape):
            for name, other in product(size.symbols, mutations.names):
                if other in (name, *mutations.counts) or name in mutations.lengths:
                    continue
                mutated = (*shape[:side], size.substitute(name, symbol(other)), *shape[side + 1 :])
                yield Mistake(
                    part.repeats * prod(mutated, start=ONE) - part.total,
                    COST_LOCAL,
                    f"your formula has {other} where the model has {name} on one side of {{}}",
                    f"{symbol(other)!r} for {symbol(name)!r}",
                    paths=frozenset({part.path}),
                    location=f"'{part.path}'",
                )


def _other_multiples(mutations: Mutations) -> Iterator[Mistake]:
    """Yield a size that follows from others taken for another multiple of them: d for d_ff = 4d."""
    question = mutations.question
    defaults = {name: v for name, v in question.account.defaults.items() if name not in question.answer.symbols}
    for name, default in defaults.items():
        number, _ = default.common_factor()
        if number <= 1:
            continue
        parts = [part for part in question.original_parts if name in part.total.symbols]
        unit = default / number
        for other in (unit * count for count in range(1, MAX_BLOCKS + 1) if count != number):
            mutated = {**defaults, name: other}
            delta = sum_polynomials(
                part.total.substitute_all(mutated) - part.total.substitute_all(defaults) for part in parts
            )
            expected = f"{name} = {mutations.write(default)}"
            message = f"your formula has {mutations.write(other)} where the model has {expected}"
            cost = COST_TENSOR if other in (unit, 2 * unit) else COST_LOCAL
            yield Mistake(delta, cost, message, paths=frozenset(part.path for part in parts))
