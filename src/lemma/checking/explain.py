"""Why a formula differs from the model's: the smallest explanation.

Every mistake that a person may have made is an element: what it adds to the model's formula, what it costs (how
far-fetched it is), and its sentence. The elements that together make the difference, at the least cost, explain it.
"""

import random
import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, cached_property, lru_cache, partial
from itertools import chain, combinations, product
from math import inf, prod
from typing import Literal, get_args, get_origin

from lemma.checking.question import TIED_SIZES, FormulaQuestion
from lemma.counting.account import Part
from lemma.counting.polynomial import ONE, Polynomial, divide_exactly, spend, sum_polynomials, symbol, work_limit
from lemma.errors import InputError, SpecError
from lemma.models.build import count_spec_parameters
from lemma.spec.base import Spec
from lemma.spec.models import FAMILIES, ModelSpec

COST_TENSOR, COST_GLOBAL, COST_LOCAL, COST_FACTOR = 10, 11, 12, 13
"""What a mistake costs. Plain: something is left out, or added that the model does not have. Wide: several places at
once, or a symbol of the whole formula. Inside: the same inside one part, or a part counted twice. Odd: a factor more or
less. Fewer mistakes come before simpler ones: any two cost more than one."""
RIVAL_MARGIN = 3
"""Up to which a costlier pair of mistakes casts doubt on the simplest pair."""
MAX_ALTERNATIVES, MAX_LISTED, MAX_BLOCKS, MAX_FACTOR = 4, 6, 8, 12
HEADS, VOCABULARY = "h", "V"


def explain(question: FormulaQuestion) -> tuple[str, float]:
    """The simplest explanation of the difference and its cost: tensors, mutations, or a factor; "" without one."""
    residual, yours = question.explainable_difference, question.answer_polynomial
    if residual is None or yours is None:
        return "", inf
    elements = MistakeTable(foreign_mistakes(question, residual), possible_mistakes(question))
    ratio = divide_exactly(yours, question.expected) if yours.symbols else None
    if ratio is not None and len(ratio.terms) == 1:
        number = ratio.common_factor()[0]
        if max(abs(number.numerator), number.denominator) <= MAX_FACTOR:
            every = frozenset(part.path for part in question.quantity.groups)
            text = f"your formula is {question.write(ratio)} times the model's"
            elements.add([Mistake(residual, COST_TENSOR, text, paths=every)])
    return elements.explain(residual)


def explain_number(question: FormulaQuestion) -> str:
    """The simplest explanation of a difference of which only its number at the sizes asked for is known.

    By one element: by two, chance would explain anything.
    """
    sizes, elements = question.account.symbols, possible_mistakes(question)
    residual = question.answer.at(sizes) - question.expected.at(sizes)
    fitting = [change for change in elements.by_delta if change.at(sizes) == residual]
    least = min(map(elements.cost, fitting), default=None)
    alike = [one for change in fitting for one in elements.by_delta[change] if one.cost == least]
    return to_sentence(describe_alternatives(alike)) if alike else ""


_PRIME = 2**61 - 1
_RANDOM_POINT: dict[str, int] = {}


def fingerprint(formula: Polynomial) -> int:
    """The value of a formula at a random point, modulo a prime: sums of formulas are looked up by sums of these.

    >>> one, other = symbol("d") * 3 + 1, symbol("L") / symbol("h")
    >>> (fingerprint(one) + fingerprint(other) - fingerprint(one + other)) % _PRIME
    0
    """
    value = 0
    for monomial, number in formula.terms.items():
        term = number.numerator * pow(number.denominator, -1, _PRIME)
        for name, power in monomial:
            at = _RANDOM_POINT.setdefault(name, random.Random(name).randrange(2, _PRIME))
            term = term * pow(at, power, _PRIME) % _PRIME
        value += term
    return value % _PRIME


_MISTAKE_CACHE: dict[Hashable, "MistakeTable"] = {}
MAX_CACHED = 32


def possible_mistakes(question: FormulaQuestion) -> "MistakeTable":
    """Every mistake that the model allows, whatever the formula; kept, since a class answers the same question."""
    account, parts = question.account, question.quantity.groups
    left = frozenset(account.defaults) - question.answer.symbols
    key = (parts, question.original_parts, account.order, tuple(account.symbols.items()), question.quantity.name, left)
    if key not in _MISTAKE_CACHE:
        while len(_MISTAKE_CACHE) >= MAX_CACHED:
            del _MISTAKE_CACHE[next(iter(_MISTAKE_CACHE))]
        with work_limit(None):
            groups = group_parts([part for part in parts if part.total])
            _MISTAKE_CACHE[key] = MistakeTable(
                [*tensor_mistakes(question, groups), *mutation_mistakes(question, groups)]
            )
    return _MISTAKE_CACHE[key]


@dataclass(frozen=True)
class Mistake:
    """A possible mistake: `change` is what it does to the model's formula, `cost` how far-fetched it is.

    `tell` is a clause with `{}` for the place it is about, or for what is missing or counted twice the noun; where
    writing it takes time it is a function, since only the few that fit are ever told. `name` is a short name for
    lists; of several others with the same name and paths one is enough. `paths` are those of the parts it is about: no
    part is explained twice.
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
        """The clause or noun."""
        return self.message if isinstance(self.message, str) else self.message()


# Parts that belong together in a sentence: one tensor, all biases, all norms, everything in a module.

NORM = re.compile(r"norm|(^|[._])ln(_|\d|\.|$)")
LAYER_NUMBER = re.compile(r"_l(\d|\*).*$")
ALL_NORMS = "all norms"


@dataclass(frozen=True)
class PartGroup:
    """Some parts and what a sentence calls them."""

    name: str
    parts: tuple[Part, ...]

    @cached_property
    def total(self) -> Polynomial:
        """All of it together."""
        return sum_polynomials(part.total for part in self.parts)

    @property
    def single_part(self) -> Part | None:
        """The only part, where there is just one."""
        return self.parts[0] if len(self.parts) == 1 else None

    @property
    def is_module(self) -> bool:
        """Whether it is a module, a tensor or namesakes of one, and not a kind of tensors."""
        return self.name.startswith(("'", "every"))


def group_parts(parts: Sequence[Part]) -> list[PartGroup]:
    """All natural groups, the plainest first; of two that hold the same parts only the first."""

    def only(wanted: Callable[[Part], bool], among: Sequence[Part] = parts) -> list[Part]:
        return [part for part in among if wanted(part)]

    split = {part.path: part.path.split(".") for part in parts}
    prefixes = {path: [".".join(of[:length]) for length in range(1, len(of) + 1)] for path, of in split.items()}
    steps = {
        path: above if leaf in ("weight", "bias") else [*above, LAYER_NUMBER.sub("", leaf)]
        for path, (*above, leaf) in split.items()
    }
    above = {prefix for found in prefixes.values() for prefix in found[:-1]}
    # one that has others inside it, such as attention around its projections, is told from them
    tensors = [
        f"'{part.path}'{' itself' if part.path in above else ''}" if part.path else "the model" for part in parts
    ]
    places = [
        (f"'{prefix}'", only(lambda part, prefix=prefix: prefix in prefixes[part.path]))
        for prefix in dict.fromkeys(prefix for found in prefixes.values() for prefix in found)
    ]
    # a step of the path in common, wherever it is: attention in the encoder and the decoder
    every = dict.fromkeys(step for found in steps.values() for step in found if step != "*")
    places += [(f"every '{step}'", only(lambda part, step=step: step in steps[part.path])) for step in every]
    # layers that attend to themselves, and to a source
    attentions = [step for step in every if step.endswith(("attention", "attn"))]
    if len(attentions) > 1:
        name = "every " + " and ".join(f"'{step}'" for step in attentions)
        places.append((name, only(lambda part: not set(attentions).isdisjoint(steps[part.path]))))
    named = [
        *((name, [part]) for name, part in zip(tensors, parts, strict=True)),
        ("all biases", only(is_bias)),
        (ALL_NORMS, only(is_norm)),
        ("all biases but those of norms", only(lambda part: is_bias(part) and not is_norm(part))),
        ("the biases of all norms", only(lambda part: is_bias(part) and is_norm(part))),
        ("the weights of all norms", only(lambda part: is_norm(part) and not is_bias(part))),
        ("the norms of the layers", only(lambda part: is_norm(part) and part.repeats != ONE)),
        *places,
        *((f"the biases of {name}", only(is_bias, inside)) for name, inside in places),
        *(
            (f"the weights of {name}", only(lambda part: part.shape is not None and not is_bias(part), inside))
            for name, inside in places
        ),
    ]
    kept: dict[frozenset[int], PartGroup] = {}
    for name, inside in named:
        if inside and len(inside) < max(len(parts), 2):
            kept.setdefault(frozenset(map(id, inside)), PartGroup(name, tuple(inside)))
    return list(kept.values())


def module_path(path: str) -> str:
    """The module that a tensor belongs to; a tensor that is not called weight or bias is taken by itself.

    >>> module_of("hidden.bias"), module_of("layers.weight_ih_l0")
    ('hidden', 'layers.weight_ih_l0')
    """
    module, _, leaf = path.rpartition(".")
    return module if leaf in ("weight", "bias") and module else path


def is_bias(part: Part) -> bool:
    """Whether a part is a bias."""
    return "bias" in part.path.rpartition(".")[2]


def is_norm(part: Part) -> bool:
    """Whether a part belongs to a norm."""
    return NORM.search(module_path(part.path)) is not None


# Tensors that a formula leaves out, counts twice, counts for one layer only, or that only the formula has.

TIED_NOTE = "tied: also "
EMBEDDING_NAMES = ("embed", "position", "wte", "wpe")


def tensor_mistakes(question: FormulaQuestion, groups: Sequence[PartGroup]) -> Iterator[Mistake]:
    """Everything that may be missing or too much, the most likely first."""
    for group in groups:
        cost, part = COST_TENSOR, group.single_part
        # people forget a norm rather than half of it, and all of a module rather than its biases or weights alone
        half = part is not None and part.shape is not None and is_norm(part) and bool(part.each.symbols)
        half |= group.name == "the biases of all norms"
        if half or group.name.startswith(("every", "the biases of every", "the weights")):
            cost = COST_GLOBAL
        if group.name.startswith("the biases of") and len({*map(is_norm, group.parts)}) > 1:
            cost = COST_LOCAL  # nobody forgets the biases of norms and of other maps, but not all biases
        paths = frozenset(part.path for part in group.parts)
        yield Mistake(-group.total, cost, partial(_describe_group, question, group), group.name, "missing", paths)
    for group in groups:
        part, paths = group.single_part, frozenset(part.path for part in group.parts)
        if part is not None and TIED_NOTE in part.note:  # what people do; counting another one twice is rarer
            other = part.note.partition(TIED_NOTE)[2]
            text = f"your formula counts '{other}' again; it is tied to '{part.path}', and a tied tensor counts once"
            yield Mistake(group.total, COST_TENSOR, text, paths=paths)
        else:
            yield Mistake(
                group.total, COST_LOCAL, partial(_describe_group, question, group), group.name, "twice", paths
            )
        depths = sorted({name for part in group.parts for name in part.repeats.symbols})
        for depth in depths:
            once = sum_polynomials(part.repeats.substitute(depth, 1) * part.each for part in group.parts)
            text = f"your formula counts {{}} for one layer only; there are {depth}"
            about = frozenset(part.path for part in group.parts if depth in part.repeats.symbols)
            cost = COST_GLOBAL if part is None else COST_LOCAL
            yield Mistake(once - group.total, cost, text, f"one {depth}", paths=about, location=group.name)
        # one more or less than the members of each part in a layer, such as the two attentions of a decoder
        twins = [
            int(abs(part.repeats.common_factor()[0])) if len(part.repeats.terms) == 1 else 1 for part in group.parts
        ]
        # of a lone weight or bias people would forget or repeat the module as a whole
        half_a_module = part is not None and module_path(part.path) != part.path
        if min(twins) < 2 or not (group.is_module or group.name == ALL_NORMS) or half_a_module:
            continue
        layer = " in each layer" if depths else ""
        for step, cost in ((-1, COST_TENSOR), (1, COST_LOCAL)):
            change = sum_polynomials(
                one.total * Fraction(step, number) for one, number in zip(group.parts, twins, strict=True)
            )
            if len(set(twins)) == 1:
                text = f"there are {twins[0]} of {group.name}{layer}; your formula counts {twins[0] + step}"
            else:
                name = "norm" if group.name == ALL_NORMS else f"of {group.name}"
                text = f"your formula counts one {name} {'less' if step < 0 else 'more'}{layer} than there are"
            yield Mistake(change, cost, text, paths=paths)
    if question.quantity.name == "parameters":
        yield from _bias_mistakes(question)


def _describe_group(question: FormulaQuestion, group: PartGroup) -> str:
    """What a group is, with its size."""
    part = group.single_part
    if part is None or part.shape is None:
        of = "" if question.quantity.name == "parameters" else "the products of "
        return f"{of}{group.name} ({question.write(group.total)})"
    kind, module = "bias" if is_bias(part) else "weight", module_path(part.path)
    each, whole = question.write(part.each), question.write(part.total)
    if module == part.path:
        return f"the {kind} '{module}' ({each}{'' if part.repeats == ONE else f' each, {whole} in all'})"
    if part.repeats == ONE:
        return f"a {kind} of {each} in '{module}'"
    return f"a {kind} of {each} in each '{module}', {whole} in all,"


def _bias_mistakes(question: FormulaQuestion) -> Iterator[Mistake]:
    """Biases of maps that have none; a table of embeddings may be the output layer too."""
    biased = {module_path(part.path) for part in question.quantity.groups if is_bias(part)}
    for part in question.quantity.groups:
        module = module_path(part.path)
        if part.shape is None or len(part.shape) != 2 or module == part.path or module in biased:
            continue
        outputs, _ = part.shape
        embeds = any(word in part.path.lower() for word in EMBEDDING_NAMES)
        size = part.repeats * outputs if embeds else outputs
        where = "on the output" if embeds else f"in {'' if part.repeats == ONE else 'each '}'{module}'"
        text = f"your formula has a bias of {question.write(size)} {where} that the model does not have"
        about = "output bias" if embeds else f"{module} bias"
        cost = COST_GLOBAL if embeds else COST_TENSOR
        yield Mistake(part.repeats * outputs, cost, text, f"bias {size}", paths=frozenset({about}))


def foreign_mistakes(question: FormulaQuestion, residual: Polynomial) -> Iterator[Mistake]:
    """The terms in symbols on which the quantity does not depend: all of one symbol, and each of them alone."""
    what = question.quantity.name if question.quantity.name != "flops" else "FLOPs"
    for name in sorted(residual.symbols - question.expected.symbols):
        terms = {term: number for term, number in residual.terms.items() if name in dict(term)}
        alone = [{term: number} for term, number in terms.items()] if 1 < len(terms) <= MAX_LISTED else []
        for some in map(Polynomial, (terms, *alone)):
            said = f"your formula has {question.write(some)}, in which {name} is foreign"
            text = f"{said}: the {what} of this model do not depend on it"
            yield Mistake(some, COST_TENSOR, text, paths=frozenset({f"foreign {name}"}))


# Known mutations of a formula: one symbol for another, one too many, heads multiplied in, a factor forgotten.

ATTENTION_NAMES = ("att", "head", "query", "key", "value", "_proj")
BLOCK_NAMES = {
    "weight_ih": "one for each gate or candidate",
    "query_key_value": "query, key and value",
    "in_proj": "query, key and value",
    "c_attn": "query, key and value",
}


def mutation_mistakes(question: FormulaQuestion, groups: Sequence[PartGroup]) -> Iterator[Mistake]:
    """All mutations, of the whole formula first; in a group of parts a mutation is more far-fetched."""
    parts, names, sizes = question.quantity.groups, question.confusable_symbols, question.account.symbols
    counts, heads = [symbol(name) for name in question.count_symbols], symbol(HEADS)
    attends = {part.path: any(word in part.path for word in ATTENTION_NAMES) for part in parts}
    inner = [group for group in groups if group.is_module or group.name.startswith("the weights of")]
    depths = {name for part in parts for name in part.repeats.symbols}
    reduced = [
        symbol(name) - 1 for name in question.count_symbols if name in depths | {"N"}
    ]  # the words before the last
    places = set(question.count_symbols) - depths

    @cache
    def short(formula: Polynomial) -> str:  # a symbol or a count such as N-1
        return question.write(formula).replace(" ", "")

    def has_heads(scope: PartGroup | None) -> bool:
        """Whether attention heads are at home here: by the names of the parts, or because no part has such a name."""
        named = scope is None or all(attends[part.path] for part in scope.parts)
        return HEADS in question.account.order and (named or not any(attends.values()))

    def instead(
        here: Polynomial, there: Polynomial, changed: Polynomial, cost: int, scope: PartGroup | None
    ) -> Mistake:
        where, base, far = (scope.name, scope.total, 1) if scope else ("", question.expected, 0)
        touched = [part.path for part in (scope.parts if scope else parts) if part.total.symbols & there.symbols]

        def tell() -> str:
            same = here.symbols.isdisjoint(there.symbols) and here.at(sizes) == there.at(sizes)
            equal = f" (the two are equal only at these sizes: {here.at(sizes)})" if same else ""
            place = " in {}" if where else ""
            return f"your formula has {short(here)} where the model has {short(there)}{place}{equal}"

        name = f"{here!r} for {there!r}"
        return Mistake(changed - base, cost + far, tell, name, paths=frozenset(touched), location=where)

    for scope in (None, *inner):
        whole = scope.total if scope else question.expected
        by_heads = (whole * heads, whole / heads)
        for name, count in zip(question.count_symbols, counts, strict=True):  # N for N−1, L+1 for L
            more, less = (whole.substitute(name, count + step) for step in (1, -1))
            there = count - 1 if len(more.terms) < len(whole.terms) else count
            forgets = scope is not None and there != count  # L for L-1 is as common in one place
            yield instead(there + 1, there, more, COST_TENSOR if forgets else COST_GLOBAL, scope)
            yield instead(there - 1, there, less, COST_GLOBAL, scope)
        for name in (name for name in names if name in whole.symbols and name not in places):
            if scope and len(scope.parts) > 1 and sum(name in part.total.symbols for part in scope.parts) == 1:
                continue  # said of that part
            # d for d_h, 4d for d_ff, a head's width for that of all heads
            others = [symbol(other) for other in names if other != name]
            usual = [4 * other for other in others] if name == "d_ff" else []
            if has_heads(scope) and name not in (HEADS, *question.count_symbols):
                usual += [symbol(name) * heads, symbol(name) / heads]
            for other in (*others, *usual):
                # people mistake a width for a width and a depth for a depth, and what is foreign is a term of its own
                if other.symbols <= depths if name in depths else other.symbols.isdisjoint(question.count_symbols):
                    changed, cost = whole.substitute(name, other), COST_GLOBAL if other in others else COST_LOCAL
                    sides = scope.single_part.shape or () if scope and scope.single_part else ()
                    one_side = len(sides) > 1 and sum(name in side.symbols for side in sides) == 1
                    # what is said below: one side of a matrix, and all of it multiplied or divided by h
                    if not (one_side and other in others) and changed not in by_heads:
                        yield instead(other, symbol(name), changed, cost, scope)
    for scope in inner:
        whole, within = scope.total, frozenset(part.path for part in scope.parts)
        number, _ = whole.common_factor()
        equal = question.quantity.name != "parameters" or all(
            part.each.common_factor()[0] == number for part in scope.parts
        )
        if equal and number.denominator == 1 and 2 <= number <= MAX_BLOCKS:  # four gates; query, key and value
            paths = [part.path for part in scope.parts]
            blocks = next((f" ({why})" for name, why in BLOCK_NAMES.items() if any(name in path for path in paths)), "")
            for counted in range(1, int(number) + 2):
                times = Fraction(counted, int(number))
                text = f"the model has {number} equal blocks in {{}}{blocks}; yours has {counted}"
                if question.quantity.name != "parameters":
                    text = f"your formula counts {times} times what the model does in {{}}"
                cost = COST_GLOBAL if blocks else COST_LOCAL
                yield Mistake(whole * (times - 1), cost, text, paths=within, location=scope.name)
        # the heads, the layers or the words of the window multiplied in
        for factor in (*([heads] if has_heads(scope) else []), *counts, *reduced):
            share = "; the heads share its width" if factor == heads else ""
            text = f"your formula multiplies {{}} by {short(factor)}{share}"
            yield Mistake(whole * (factor - 1), COST_FACTOR, text, paths=within, location=scope.name)
        # a factor forgotten: d for d², one word of the window for all of them; or a division by the heads
        for name in (name for name in names if name in whole.symbols and name != VOCABULARY):
            for factor in (symbol(name), symbol(name) - 1):
                left = divide_exactly(whole, factor)
                if left is not None and all(power > 0 for monomial in left.terms for _, power in monomial):
                    text = f"your formula leaves the factor {short(factor)} out of {{}}"
                    yield Mistake(left - whole, COST_FACTOR, text, paths=within, location=scope.name)
        if has_heads(scope) and HEADS not in whole.symbols:
            text = "your formula divides {} by h; all heads together have the full width"
            yield Mistake(whole / heads - whole, COST_FACTOR, text, paths=within, location=scope.name)
    # one side of a matrix taken for another size: what an upper layer reads, what a head gives
    for part in parts:
        shape = part.shape or ()
        for side, size in enumerate(shape):
            for name, other in product(size.symbols, names):
                if other not in (name, *question.count_symbols) and name not in places:
                    changed = (*shape[:side], size.substitute(name, symbol(other)), *shape[side + 1 :])
                    text = f"your formula has {other} where the model has {name} on one side of {{}}"
                    counted, here = part.repeats * prod(changed, start=ONE), frozenset({part.path})
                    name_of = f"{symbol(other)!r} for {symbol(name)!r}"
                    yield Mistake(
                        counted - part.total, COST_LOCAL, text, name_of, paths=here, location=f"'{part.path}'"
                    )
    # a size that follows from others taken for another multiple of them: d for d_ff = 4d
    unused = {name: value for name, value in question.account.defaults.items() if name not in question.answer.symbols}
    for name, default in unused.items():
        number, _ = default.common_factor()
        for other in (default / number * count for count in range(1, MAX_BLOCKS + 1) if count != number > 1):
            before = [part for part in question.original_parts if name in part.total.symbols]
            changed = sum_polynomials(
                part.total.substitute_all({**unused, name: other}) - part.total.substitute_all(unused)
                for part in before
            )
            text = f"your formula has {short(other)} where the model has {name} = {short(default)}"
            cost = COST_TENSOR if other in (default / number, 2 * default / number) else COST_LOCAL
            yield Mistake(changed, cost, text, paths=frozenset(part.path for part in before))


class MistakeTable:
    """Elements by what they do to a formula, the most likely first; those less simple than others are left out."""

    def __init__(self, mistakes: Iterable[Mistake], base: "MistakeTable | None" = None) -> None:
        self.by_delta: dict[Polynomial, list[Mistake]] = (
            {change: [*held] for change, held in base.by_delta.items()} if base else {}
        )
        self.by_fingerprint: dict[int, Polynomial] = dict(base.by_fingerprint) if base else {}
        self.add(mistakes)

    def add(self, mistakes: Iterable[Mistake]) -> None:
        """Take more of them in."""
        for element in mistakes:
            if not element.delta:
                continue
            held = self.by_delta.setdefault(element.delta, [])
            if not held:
                self.by_fingerprint[fingerprint(element.delta)] = element.delta
            same = [one for one in held if element.name and (one.name, one.paths) == (element.name, element.paths)]
            if not any(one.cost <= element.cost for one in same):
                held.append(element)
                held.sort(key=lambda one: one.cost)

    def cost(self, delta: Polynomial) -> float:
        """The cost of the simplest element that does this; infinite without one."""
        return self.by_delta[delta][0].cost if delta in self.by_delta else inf

    def explain(self, residual: Polynomial) -> tuple[str, float]:
        """The simplest explanation: by one element, or else by two, or else by three; all that are as simple."""
        if residual in self.by_delta:
            found, rivals = [[[one for one in self.by_delta[residual] if one.cost == self.cost(residual)]]], False
        else:
            found, rivals = self._cheapest(self._find_sums(residual, 2, COST_FACTOR + 1))
            if not found:
                found, rivals = self._cheapest(self._find_sums(residual, 3, COST_TENSOR))
        if not found:
            return "", inf
        told = (describe_mistakes(one[0]) if len(one) == 1 else [describe_combination(one)] for one in found)
        clauses = list(dict.fromkeys(chain.from_iterable(told)))
        more = len(clauses) - MAX_ALTERNATIVES
        shown = clauses[:MAX_ALTERNATIVES] + ([f"one of {more} other pairs of mistakes"] if more > 0 else [])
        text = join_alternatives(shown, ", or " if len(found[0]) == 1 else "; or ")
        return to_sentence(f"most likely {text}" if rivals and len(shown) == 1 else text), _total_cost(found[0])

    def _find_sums(self, residual: Polynomial, count: int, cost: int) -> set[tuple[Polynomial, ...]]:
        """All changes, two or three of at most this cost, that make the residual together."""
        marks = [mark for mark, change in self.by_fingerprint.items() if self.cost(change) <= cost]
        spend(len(marks) ** (count - 1) // 50)
        known, whole = {*marks}, fingerprint(residual)
        found = set[tuple[Polynomial, ...]]()
        for some in combinations(marks, count - 1):
            if (rest := (whole - sum(some)) % _PRIME) in known:
                found.add(tuple(self.by_fingerprint[mark] for mark in sorted((*some, rest))))
        return {changes for changes in found if sum_polynomials(changes) == residual}

    def _cheapest(self, candidates: Iterable[Sequence[Polynomial]]) -> tuple[list[list[list[Mistake]]], bool]:
        """Those of the least cost, each with the elements that can be true together; whether others come close."""
        places = {change: place for place, change in enumerate(self.by_delta)}
        kept: list[tuple[int, list[list[Mistake]]]] = []
        for changes in sorted(candidates, key=lambda one: sorted(places[change] for change in one)):
            if apart := _disjoint_choices(
                [self.by_delta[change] for change in sorted(changes, key=places.__getitem__)]
            ):
                kept.append((_total_cost(apart), apart))
        least = min((cost for cost, _ in kept), default=0)
        unions = dict[frozenset[str], list[list[Mistake]]]()
        for place, mistakes in enumerate(mistakes for cost, mistakes in kept if cost == least):
            missing = [one[0].paths for one in mistakes if one[0].kind == "missing" and len(one) == 1]
            union = frozenset().union(*missing) if len(missing) == len(mistakes) else frozenset({str(place)})
            unions.setdefault(union, mistakes)  # the same tensors in other words are told once
        return list(unions.values()), any(least < cost <= least + RIVAL_MARGIN for cost, _ in kept)


def _total_cost(mistakes: Sequence[Sequence[Mistake]]) -> int:
    return sum(min(element.cost for element in mistake) for mistake in mistakes)


def _disjoint_choices(mistakes: Sequence[Sequence[Mistake]]) -> list[list[Mistake]]:
    """The simplest elements that can be true together, one of each mistake: no part is in two; [] if none can."""
    choices = [
        choice
        for choice in product(*mistakes)
        if sum(len(element.paths) for element in choice) == len(frozenset().union(*(one.paths for one in choice)))
    ]
    costs = [sum(one.cost for one in choice) for choice in choices]
    simplest = [choice for choice, cost in zip(choices, costs, strict=True) if cost == min(costs)]
    return [list(dict.fromkeys(which)) for which in zip(*simplest, strict=True)]


def describe_alternatives(mistakes: Sequence[Mistake]) -> str:
    """What happened, where any one of these elements explains it."""
    return join_alternatives(describe_mistakes(mistakes), ", or ")


def describe_mistakes(mistakes: Sequence[Mistake]) -> list[str]:
    """What may have happened, the most likely first; those of one kind share their verb."""
    clauses: list[str] = []
    for kind in dict.fromkeys(element.kind for element in mistakes):
        alike = [one for one in mistakes if one.kind == kind]
        if kind == "other":
            places: dict[str, list[str]] = {}
            for element in alike:
                places.setdefault(element.text, []).append(element.location)
            clauses += [text.replace("{}", _join_names(where)) for text, where in places.items()]
        elif kind == "missing" and len(alike) == 1:
            clauses.append(f"the model has {alike[0].text} that your formula leaves out")
        elif kind == "missing":
            listed = _join_names([one.name for one in alike])
            clauses.append(f"your formula leaves out one of these, which are all of one size: {listed}")
        elif len(alike) == 1:
            clauses.append(f"your formula counts {alike[0].text.replace('a ', 'the ', 1)} twice")
        else:
            clauses.append(f"your formula counts one of these twice: {_join_names([one.name for one in alike])}")
    return list(dict.fromkeys(clauses))


def _join_names(names: Sequence[str]) -> str:
    """Names with commas and a last `or`."""
    if len(names) > MAX_LISTED:
        names = [*names[: MAX_LISTED - 1], f"{len(names) - MAX_LISTED + 1} more"]
    return f"{', '.join(names[:-1])} or {names[-1]}" if len(names) > 1 else names[0]


def describe_combination(mistakes: Sequence[Sequence[Mistake]]) -> str:
    """What happened, where each of these did; what is left out shares its verb."""
    alike = len(mistakes) == 2 and {*mistakes[0]} == {*mistakes[1]}
    if alike and {one.kind for one in mistakes[0]} == {"missing"}:
        *others, last = (one.text.rstrip(",") for one in mistakes[0])
        which = "two of these, which are all of one size:" if len(others) > 1 else "both"
        return f"your formula leaves out {which} {', '.join(others)} {'or' if len(others) > 1 else 'and'} {last}"
    alone = [one for one in mistakes if len(one) == 1 and one[0].kind == "missing"]
    if len(alone) < 2:
        return ", and ".join(map(describe_alternatives, mistakes))
    *nouns, last = (one[0].text.rstrip(",") for one in alone)
    missing = f"the model has {', '.join(nouns)} and {last} that your formula leaves out"
    return ", and ".join([missing, *(describe_alternatives(other) for other in mistakes if other not in alone)])


def join_alternatives(clauses: Sequence[str], separator: str) -> str:
    """One clause as it is; of several, either one or the other."""
    return clauses[0] if len(clauses) == 1 else f"either {separator.join(clauses)}"


def to_sentence(text: str) -> str:
    """A clause as a sentence."""
    return text[0].upper() + text[1:] + "."


def describe_nearest(question: FormulaQuestion) -> str:
    """Where nothing explains a difference: the group that, left out or counted twice, would explain most of it."""
    residual, groups = question.explainable_difference, group_parts(question.quantity.groups)
    assert residual is not None
    if not groups:
        return "No simple explanation: the model has nothing of the kind."

    def left_by(group: PartGroup) -> Polynomial:
        return min(residual - group.total, residual + group.total, key=lambda rest: len(rest.terms))

    def shared(group: PartGroup) -> float:  # terms that are the same but for their numbers
        mine, theirs = residual.terms.keys(), group.total.terms.keys()
        return len(mine & theirs) / len(mine | theirs)

    group = min(groups, key=lambda one: (len(left_by(one).terms), len(one.parts)))
    if len(left_by(group).terms) < len(residual.terms):
        said = f"No simple explanation. Nearest to the difference is {group.name}, {question.write(group.total)}"
        return f"{said}; beyond that, {question.write(left_by(group))} is left."
    group = max(groups, key=lambda one: (shared(one), -len(one.parts)))
    if not shared(group):
        return "No simple explanation: no part of the model has terms like those of the difference."
    like = f"{group.name}, {question.write(group.total)}"
    return f"No simple explanation. The terms that differ are like those of {like}."


NUM_DRAWS = 4
_count_parameters = lru_cache(512)(count_spec_parameters)  # the sizes drawn are the same each time


def suggest_settings(question: FormulaQuestion, spec: ModelSpec) -> str:
    """Say under which words the model would have this very number of parameters, whatever its sizes."""
    source, account = random.Random(0), question.account  # the same draws each time
    unset = account.defaults.keys() - question.answer.symbols

    def drawn(name: str, size: int) -> int:
        """Few layers, heads that still divide, widths in multiples."""
        if name == HEADS:
            return source.choice([divisor for divisor in range(1, size + 1) if size % divisor == 0])
        return source.randint(2, 9) if name in question.count_symbols else size * source.randint(1, 5)

    def agree(other: ModelSpec) -> bool:
        """Whether the formula gives what the built model has, at all sizes drawn."""
        for values in draws:
            sizes = other.sizes()
            followed = {name: values[of] for name, of in TIED_SIZES.items() if name in sizes and name not in values}
            try:
                if question.answer.at(values) != _count_parameters(other.with_sizes({**values, **followed})):  # pyright: ignore[reportArgumentType]
                    return False
            except InputError:  # sizes that this model cannot have, or at which the formula divides by zero
                return False
        return True

    draws = [
        {name: drawn(name, size) for name, size in account.symbols.items() if name not in unset}
        for _ in range(NUM_DRAWS)
    ]
    fitting = [word for word, other in neighbor_specs(spec) if agree(other)]
    return f"It would be right with {' or '.join(fitting)}." if fitting else ""


def neighbor_specs(spec: ModelSpec) -> Iterator[tuple[str, ModelSpec]]:
    """Specs that differ in one choice, each with the word that makes the difference: `bias=false`, `family=gru`."""
    for name, field in type(spec).model_fields.items():
        choices = get_args(field.annotation)
        if field.annotation is bool:
            choices = (True, False)
        elif get_origin(field.annotation) is not Literal:  # the kinds of a tagged union
            kinds = [one for one in choices if isinstance(one, type) and issubclass(one, Spec)]
            choices = tuple(kind.model_fields["kind"].default for kind in kinds if "kind" in kind.model_fields)
        for value in choices:
            # another family has other words; tying would need hidden = width, another model altogether
            tying = name == "tied" and value and getattr(spec, "hidden", None) is not None
            if tying or name in ("family", "activation"):  # no size depends on the activation
                continue
            try:
                changed = spec.replace(**{name: value})
            except SpecError:
                continue
            if changed != spec:
                yield f"{name}={str(value).lower()}", changed
    for family, kind in FAMILIES.items():
        if family != spec.family and kind.letters() == type(spec).letters():
            words = {word: value for word, value in spec.to_dict().items() if word in kind.model_fields}
            yield f"family={family}", kind.read({**words, "family": family}, family)
