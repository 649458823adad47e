"""Candidate mistakes in a formula: tensors forgotten or counted twice, and known mutations of the model's formula.

A mistake is about the whole formula or about a group of parts that a sentence can name: one tensor, a module, all
biases, all norms. It has an effect on the formula, a cost and a template of the sentence; `{}` stands for the group.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache, partial
from itertools import product
from math import prod
from typing import Literal

from lemma.checking.compare_formula import FormulaComparison
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
NORM_NAME = re.compile(r"norm|(^|[._])ln(_|\d|\.|$)")
LAYER_NUMBER = re.compile(r"_l(\d|\*).*$")


# Groups of tensors that a sentence can name.


@dataclass(frozen=True)
class PartGroup:
    """Parts of a quantity, with the noun phrase that sentences use for them."""

    name: str
    parts: tuple[Part, ...]

    @cached_property
    def total(self) -> Polynomial:
        """The sum of the parts' formulas."""
        return sum_polynomials(part.total for part in self.parts)

    @cached_property
    def paths(self) -> frozenset[str]:
        """The paths of the parts."""
        return frozenset(part.path for part in self.parts)

    @property
    def single_part(self) -> Part | None:
        """The only part of the group; None if there are several."""
        return self.parts[0] if len(self.parts) == 1 else None

    @property
    def is_module(self) -> bool:
        """True for a module, a tensor or all modules of one name; False for a kind of tensors such as all biases."""
        return self.name.startswith(("'", "every"))


def is_bias(part: Part) -> bool:
    """Return whether a part of a formula belongs to a bias, by its path."""
    return "bias" in part.path.rpartition(".")[2]


def is_norm(part: Part) -> bool:
    """Return whether a part of a formula belongs to a normalization layer, by its path."""
    return NORM_NAME.search(module_path(part.path)) is not None


def module_path(path: str) -> str:
    """Return the path of a tensor's module; a tensor not named weight or bias is returned as it is.

    >>> module_path("hidden.bias"), module_path("layers.weight_ih_l0")
    ('hidden', 'layers.weight_ih_l0')
    """
    module, _, leaf = path.rpartition(".")
    return module if leaf in ("weight", "bias") and module else path


ALL_NORMS = "all norms"
TENSOR_KINDS: dict[str, Callable[[Part], bool]] = {
    "all biases": is_bias,
    ALL_NORMS: is_norm,
    "all biases but those of norms": lambda part: is_bias(part) and not is_norm(part),
    "the biases of all norms": lambda part: is_bias(part) and is_norm(part),
    "the weights of all norms": lambda part: is_norm(part) and not is_bias(part),
    "the norms of the layers": lambda part: is_norm(part) and part.repeats != ONE,
}


def group_parts(parts: Sequence[Part]) -> list[PartGroup]:
    """Return all groups of parts with a natural name, such as "all biases" or "every 'attention'", simplest first.

    Parts that several names describe are returned once, by the first name.
    """
    by_prefix: dict[str, list[Part]] = {}  # parts by their modules, shortest path first, and by their own path
    by_component: dict[str, list[Part]] = {}  # parts by each name on the way to their module
    parents: set[str] = set()
    for part in parts:
        *modules, leaf = names = part.path.split(".")
        prefixes = [".".join(names[:length]) for length in range(1, len(names) + 1)]
        parents.update(prefixes[:-1])
        for prefix in prefixes:
            by_prefix.setdefault(prefix, []).append(part)
        components = modules if leaf in ("weight", "bias") else [*modules, LAYER_NUMBER.sub("", leaf)]
        for name in dict.fromkeys(components):
            if name != "*":
                by_component.setdefault(name, []).append(part)

    def tensor_name(part: Part) -> str:
        """Return the quoted path of a part, as the name of a group of its own."""
        if not part.path:
            return "the model"
        # attention has projections inside it: what it computes itself must be distinguishable from all of it
        return f"'{part.path}' itself" if part.path in parents else f"'{part.path}'"

    modules = [(f"'{prefix}'", members) for prefix, members in by_prefix.items()]
    # modules of one name wherever they are: attention in the encoder and in the decoder
    modules += [(f"every '{name}'", members) for name, members in by_component.items()]
    attentions = [name for name in by_component if name.endswith(("attention", "attn"))]
    if len(attentions) > 1:  # self-attention and attention to a source together
        attending = {id(part) for name in attentions for part in by_component[name]}
        label = "every " + " and ".join(f"'{name}'" for name in attentions)
        modules.append((label, [part for part in parts if id(part) in attending]))
    candidates = [(tensor_name(part), [part]) for part in parts]
    candidates += [(name, [*filter(is_kind, parts)]) for name, is_kind in TENSOR_KINDS.items()]
    candidates += modules
    candidates += [(f"the biases of {name}", [*filter(is_bias, members)]) for name, members in modules]
    candidates += [
        (f"the weights of {name}", [part for part in members if part.shape is not None and not is_bias(part)])
        for name, members in modules
    ]
    groups: dict[frozenset[int], PartGroup] = {}
    for name, members in candidates:
        if members and len(members) < max(len(parts), 2):
            groups.setdefault(frozenset(map(id, members)), PartGroup(name, tuple(members)))
    return list(groups.values())


# Mistakes.


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
        """The message, formatted now if it is a function."""
        return self.message if isinstance(self.message, str) else self.message()


def candidate_mistakes(comparison: FormulaComparison) -> Iterator[Mistake]:
    """Yield every mistake that is possible in this model's formula, whatever the answer, most likely first."""
    return _MistakeRules(comparison).candidates()


def foreign_mistakes(comparison: FormulaComparison, difference: Polynomial) -> Iterator[Mistake]:
    """Yield a mistake for all terms with a symbol that the model's formula lacks, and for each such term alone."""
    quantity = comparison.quantity.name if comparison.quantity.name != "flops" else "FLOPs"
    for name in sorted(difference.symbols - comparison.expected.symbols):
        terms = {term: number for term, number in difference.terms.items() if name in dict(term)}
        single_terms = [{term: number} for term, number in terms.items()] if 1 < len(terms) <= MAX_FOREIGN_TERMS else []
        for foreign in map(Polynomial, (terms, *single_terms)):
            message = (
                f"your formula has {comparison.write(foreign)}, in which {name} is foreign: the {quantity} of this "
                "model do not depend on it"
            )
            yield Mistake(foreign, COST_TENSOR, message, paths=frozenset({f"foreign {name}"}))


def _omission_cost(group: PartGroup) -> int:
    """Return the cost of forgetting a group of parts: how implausible it is.

    People forget a norm rather than half of it, and a whole module rather than its biases or weights alone.
    """
    part = group.single_part
    if group.name.startswith("the biases of") and len({*map(is_norm, group.parts)}) > 1:
        return COST_LOCAL  # biases of norms and of other maps, but not all biases
    is_half_norm = part is not None and part.shape is not None and is_norm(part) and bool(part.each.symbols)
    halves = ("every", "the biases of every", "the biases of all norms", "the weights")
    return COST_GLOBAL if is_half_norm or group.name.startswith(halves) else COST_TENSOR


class _MistakeRules:
    """The rules that derive candidate mistakes; each method yields those of one kind, in a group of parts or in all."""

    def __init__(self, comparison: FormulaComparison) -> None:
        self.comparison, self.parts = comparison, comparison.quantity.groups
        self.groups = group_parts([part for part in self.parts if part.total])
        self.is_parameters = comparison.quantity.name == "parameters"
        self.names, self.counts = comparison.confusable_symbols, comparison.counting_symbols
        self.depths = _depth_symbols(self.parts)
        self.lengths = set(self.counts) - self.depths  # symbols that count words or positions, not layers
        self.is_attention = {part.path: any(name in part.path for name in ATTENTION_NAMES) for part in self.parts}
        self.write = lru_cache(None)(lambda formula: comparison.write(formula).replace(" ", ""))

    def candidates(self) -> Iterator[Mistake]:
        """Yield the mistakes of all rules: of the whole formula before those of groups of parts."""
        for group in self.groups:
            message = partial(self.describe_group, group)
            yield Mistake(-group.total, _omission_cost(group), message, group.name, "missing", group.paths)
        for group in self.groups:
            yield self.counted_twice(group)
            yield from self.counted_for_single_layer(group)
            yield from self.miscounted_members(group)
        if self.is_parameters:
            yield from self.foreign_biases()
        inner = [group for group in self.groups if group.is_module or group.name.startswith("the weights of")]
        for group in (PartGroup("", self.parts), *inner):
            yield from self.off_by_one(group)
            yield from self.confused_symbol(group)
        for group in inner:
            yield from self.miscounted_blocks(group)
            yield from self.wrong_factor(group)
        yield from self.confused_side()
        yield from self.wrong_multiples()

    # Tensors that a formula counts twice or for one layer only, and biases that only the formula has.

    def counted_twice(self, group: PartGroup) -> Mistake:
        """Return the mistake of counting a group of parts twice, such as a tied tensor."""
        part = group.single_part
        if part is not None and self.is_single_recurrent_bias(part):
            size = self.write(part.each)
            message = (
                f"your formula has two bias vectors of {size} in each layer, b_ih and b_hh as in PyTorch; this model "
                "has one, so that one bias per layer is counted twice"
            )
            return Mistake(group.total, COST_GLOBAL, message, paths=group.paths)
        if part is None or TIED_NOTE not in part.note:
            message = partial(self.describe_group, group)
            return Mistake(group.total, COST_LOCAL, message, group.name, "twice", group.paths)
        other = part.note.partition(TIED_NOTE)[2]  # counting a tied tensor again is a common mistake
        message = f"your formula counts '{other}' again; it is tied to '{part.path}', and a tied tensor counts once"
        return Mistake(group.total, COST_TENSOR, message, paths=group.paths)

    def is_single_recurrent_bias(self, part: Part) -> bool:
        """Return whether a part is the only bias of a recurrent layer, where PyTorch has two."""
        return "bias_ih" in part.path and not any("bias_hh" in other.path for other in self.parts)

    def counted_for_single_layer(self, group: PartGroup) -> Iterator[Mistake]:
        """Yield the mistakes of counting a group of parts for one layer only, for each symbol of layers such as L."""
        for depth in sorted(_depth_symbols(group.parts)):
            single = sum_polynomials(part.repeats.substitute(depth, 1) * part.each for part in group.parts)
            message = f"your formula counts {{}} for one layer only; there are {depth}"
            paths = frozenset(part.path for part in group.parts if depth in part.repeats.symbols)
            cost = COST_LOCAL if group.single_part else COST_GLOBAL
            yield Mistake(single - group.total, cost, message, f"one {depth}", paths=paths, location=group.name)

    def miscounted_members(self, group: PartGroup) -> Iterator[Mistake]:
        """Yield the mistakes of one copy too many or too few of a module that each layer has several times."""
        repeats = [part.repeats for part in group.parts]
        members = [int(abs(count.common_factor()[0])) if len(count.terms) == 1 else 1 for count in repeats]
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

    def describe_group(self, group: PartGroup) -> str:
        """Return the noun phrase of a group with its formula, such as "a bias of d_h in 'hidden'"."""
        part, write = group.single_part, self.comparison.write
        if part is None or part.shape is None:
            return f"{'' if self.is_parameters else 'the products of '}{group.name} ({write(group.total)})"
        kind, module = "bias" if is_bias(part) else "weight", module_path(part.path)
        each, total, is_single = write(part.each), write(part.total), part.repeats == ONE
        if module == part.path:
            return f"the {kind} '{module}' ({each}{'' if is_single else f' each, {total} in all'})"
        return f"a {kind} of {each} in " + (f"'{module}'" if is_single else f"each '{module}', {total} in all,")

    def foreign_biases(self) -> Iterator[Mistake]:
        """Yield the mistakes of a bias for a matrix without one; for an embedding, in its use as the output layer."""
        biased = {module_path(part.path) for part in self.parts if is_bias(part)}
        for part in self.parts:
            module = module_path(part.path)
            if part.shape is None or len(part.shape) != 2 or module == part.path or module in biased:
                continue
            outputs, _ = part.shape
            if any(name in part.path.lower() for name in EMBEDDING_NAMES):
                size, location, path, cost = part.repeats * outputs, "on the output", "output bias", COST_GLOBAL
            else:
                each = "" if part.repeats == ONE else "each "
                size, location, path, cost = outputs, f"in {each}'{module}'", f"{module} bias", COST_TENSOR
            message = (
                f"your formula has a bias of {self.comparison.write(size)} {location} that the model does not have"
            )
            yield Mistake(part.repeats * outputs, cost, message, f"bias {size}", paths=frozenset({path}))

    # Mutations: one symbol for another, one too many, heads multiplied in, a factor forgotten.

    def can_be_attention(self, group: PartGroup) -> bool:
        """Return whether a group can belong to attention: by the names of its parts, or if no part has such a name."""
        if HEADS not in self.comparison.account.order:
            return False
        is_attention = not group.name or all(self.is_attention[part.path] for part in group.parts)
        return is_attention or not any(self.is_attention.values())

    def replacement(
        self, group: PartGroup, actual: Polynomial, expected: Polynomial, mutated: Polynomial, cost: int
    ) -> Mistake:
        """Return the mistake of writing `actual` for `expected`, which turns a group's formula into `mutated`."""

        def describe() -> str:
            sizes = self.comparison.account.symbols
            coincides = actual.symbols.isdisjoint(expected.symbols) and actual.at(sizes) == expected.at(sizes)
            note = f" (the two are equal only at these sizes: {actual.at(sizes)})" if coincides else ""
            location = " in {}" if group.name else ""
            formulas = f"your formula has {self.write(actual)} where the model has {self.write(expected)}"
            return f"{formulas}{location}{note}"

        paths = frozenset(part.path for part in group.parts if part.total.symbols & expected.symbols)
        name, cost = f"{actual!r} for {expected!r}", cost + bool(group.name)
        return Mistake(mutated - group.total, cost, describe, name, paths=paths, location=group.name)

    def off_by_one(self, group: PartGroup) -> Iterator[Mistake]:
        """Yield the mistakes of the next higher or lower number for a count: N for N−1, L+1 for L."""
        for name in self.counts:
            count = symbol(name)
            more, less = (group.total.substitute(name, count + step) for step in (1, -1))
            expected = count - 1 if len(more.terms) < len(group.total.terms) else count
            # inside one module, L for L-1 is as common as in the whole formula
            cost = COST_TENSOR if group.name and expected != count else COST_GLOBAL
            yield self.replacement(group, expected + 1, expected, more, cost)
            yield self.replacement(group, expected - 1, expected, less, COST_GLOBAL)

    def confused_symbol(self, group: PartGroup) -> Iterator[Mistake]:
        """Yield the mistakes of a symbol that people confuse with another: d for d_h, 4d for d_ff, d/h for d."""
        heads, total, part = symbol(HEADS), group.total, group.single_part if group.name else None
        scaled_by_heads = (total * heads, total / heads)
        for name in self.names:
            if name not in total.symbols or name in self.lengths:
                continue
            if group.name and len(group.parts) > 1 and sum(name in part.total.symbols for part in group.parts) == 1:
                continue  # it is a mistake in that part alone
            symbols = [symbol(other) for other in self.names if other != name]
            multiples = [4 * other for other in symbols] if name == "d_ff" else []
            if self.can_be_attention(group) and name not in (HEADS, *self.counts):
                multiples += [symbol(name) * heads, symbol(name) / heads]
            shape = part.shape or () if part else ()
            is_single_axis = len(shape) > 1 and sum(name in side.symbols for side in shape) == 1
            # people mistake a width for a width and a depth for a depth; other symbols are foreign terms
            is_depth = name in self.depths
            for other in (*symbols, *multiples):
                if not (other.symbols <= self.depths if is_depth else other.symbols.isdisjoint(self.counts)):
                    continue
                mutated = total.substitute(name, other)
                # other rules describe these better: one side of a matrix, and all of it multiplied or divided by h
                if not (is_single_axis and other in symbols) and mutated not in scaled_by_heads:
                    cost = COST_GLOBAL if other in symbols else COST_LOCAL
                    yield self.replacement(group, other, symbol(name), mutated, cost)

    def miscounted_blocks(self, group: PartGroup) -> Iterator[Mistake]:
        """Yield the mistakes of a wrong number of equal blocks, such as three gates for four."""
        number, _ = group.total.common_factor()
        is_equal = not self.is_parameters or all(part.each.common_factor()[0] == number for part in group.parts)
        if not is_equal or number.denominator != 1 or not 2 <= number <= MAX_BLOCKS:
            return
        names = (f" ({blocks})" for name, blocks in BLOCK_NAMES.items() if any(name in path for path in group.paths))
        blocks = next(names, "")
        for counted in range(1, int(number) + 2):
            times = Fraction(counted, int(number))
            message = f"the model has {number} equal blocks in {{}}{blocks}; yours has {counted}"
            if not self.is_parameters:
                message = f"your formula counts {times} times what the model does in {{}}"
            delta, cost = group.total * (times - 1), COST_GLOBAL if blocks else COST_LOCAL
            yield Mistake(delta, cost, message, paths=group.paths, location=group.name)

    def wrong_factor(self, group: PartGroup) -> Iterator[Mistake]:
        """Yield the mistakes of a factor too many (heads, layers, positions), too few, or of dividing by h."""
        mutations: list[tuple[Polynomial, str]] = []
        if self.can_be_attention(group):
            message = f"your formula multiplies {{}} by {HEADS}; the heads share its width"
            mutations.append((group.total * symbol(HEADS), message))
        counts = [symbol(name) for name in self.counts]
        reduced = [symbol(name) - 1 for name in self.counts if name in self.depths | {"N"}]
        for factor in (*counts, *reduced):
            mutations.append((group.total * factor, f"your formula multiplies {{}} by {self.write(factor)}"))
        for name in self.names:  # d for d², one word of the window for all of them
            if name not in group.total.symbols or name == VOCABULARY:
                continue
            for factor in (symbol(name), symbol(name) - 1):
                quotient = divide_exactly(group.total, factor)
                if quotient is not None and all(power > 0 for monomial in quotient.terms for _, power in monomial):
                    mutations.append((quotient, f"your formula leaves the factor {self.write(factor)} out of {{}}"))
        if self.can_be_attention(group) and HEADS not in group.total.symbols:
            message = "your formula divides {} by h; all heads together have the full width"
            mutations.append((group.total / symbol(HEADS), message))
        for mutated, message in mutations:
            yield Mistake(mutated - group.total, COST_FACTOR, message, paths=group.paths, location=group.name)

    def confused_side(self) -> Iterator[Mistake]:
        """Yield the mistakes of another size for one side of a matrix, such as d for d_h."""
        for part in self.parts:
            shape = part.shape or ()
            for side, size in enumerate(shape):
                for name, other in product(size.symbols, self.names):
                    if other in (name, *self.counts) or name in self.lengths:
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

    def wrong_multiples(self) -> Iterator[Mistake]:
        """Yield the mistakes of a wrong multiple in a size that follows from others, such as 2d for d_ff = 4d."""
        comparison = self.comparison
        defaults = {name: v for name, v in comparison.account.defaults.items() if name not in comparison.answer.symbols}
        for name, default in defaults.items():
            number, _ = default.common_factor()
            if number <= 1:
                continue
            parts = [part for part in comparison.original_parts if name in part.total.symbols]
            expected = sum_polynomials(part.total.substitute_all(defaults) for part in parts)
            unit = default / number
            for other in (unit * count for count in range(1, MAX_BLOCKS + 1) if count != number):
                mutated = sum_polynomials(part.total.substitute_all({**defaults, name: other}) for part in parts)
                message = f"your formula has {self.write(other)} where the model has {name} = {self.write(default)}"
                cost = COST_TENSOR if other in (unit, 2 * unit) else COST_LOCAL
                yield Mistake(mutated - expected, cost, message, paths=frozenset(part.path for part in parts))


def _depth_symbols(parts: Sequence[Part]) -> set[str]:
    """Return the symbols in the parts' numbers of repeats, such as L for layers."""
    return {name for part in parts for name in part.repeats.symbols}
