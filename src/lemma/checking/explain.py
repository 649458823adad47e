"""Why a formula differs from the model's: the smallest explanation."""

import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, partial
from itertools import combinations, product
from math import inf, prod
from typing import Any, Literal, get_args, get_origin

from lemma.checking.question import FOLLOWS, FormulaQuestion
from lemma.counting.polynomial import ONE, Polynomial, quotient, symbol, total
from lemma.counting.quantity import Part
from lemma.counting.subject import Values
from lemma.errors import InputError, SpecError
from lemma.models.build import parameters_of
from lemma.spec.base import Spec
from lemma.spec.models import FAMILIES, ModelSpec

# One thing that may be wrong with a formula, and what it adds to the difference.


Kind = Literal["missing", "twice", "other"]


@dataclass(frozen=True)
class Element:
    """A possible mistake: `change` is what it does to the model's formula, `cost` how far-fetched it is.

    `tell` gives a clause, or for what is missing or counted twice the noun: only the few that fit are ever told.
    `name` is a short name for lists; of several other mistakes with the same name one is enough. `paths` are those of
    what is missing.
    """

    change: Polynomial
    cost: float
    kind: Kind
    tell: Callable[[], str]
    name: str = ""
    paths: frozenset[str] = frozenset()


def clause(elements: Sequence[Element]) -> str:
    """What happened, where any one of these elements explains it; those of one kind share their verb."""
    clauses = [_alike([one for one in elements if one.kind == kind]) for kind in ("missing", "twice")]
    clauses += [element.tell() for element in elements if element.kind == "other"]
    return either(list(dict.fromkeys(said for said in clauses if said)), ", or ")


def together(mistakes: Sequence[Sequence[Element]]) -> str:
    """What happened, where each of these did; what is left out shares its verb."""
    alone = [one for one in mistakes if len(one) == 1 and one[0].kind == "missing"]
    if len(alone) < 2:
        return ", and ".join(map(clause, mistakes))
    *nouns, last = (one[0].tell().rstrip(",") for one in alone)
    missing = f"the model has {', '.join(nouns)} and {last} that your formula leaves out"
    return ", and ".join([missing, *(clause(other) for other in mistakes if other not in alone)])


def either(clauses: Sequence[str], between: str) -> str:
    """One clause as it is; of several, either one or the other."""
    return clauses[0] if len(clauses) == 1 else f"either {between.join(clauses)}"


def sentence(text: str) -> str:
    """A clause as a sentence."""
    return text[0].upper() + text[1:] + "."


def _alike(elements: Sequence[Element]) -> str:
    if not elements:
        return ""
    (first, *others), missing = elements, elements[0].kind == "missing"
    if not others:
        said = f"the model has {first.tell()} that your formula leaves out"
        return said if missing else f"your formula counts {first.tell().replace('a ', 'the ', 1)} twice"
    names = listed([element.name for element in elements])
    verb = "leaves out one of these, which are all of one size" if missing else "counts one of these twice"
    return f"your formula {verb}: {names}"


def listed(names: Sequence[str], most: int = 6) -> str:
    """Names with commas and a last `or`."""
    if len(names) > most:
        names = [*names[: most - 1], f"{len(names) - most + 1} more"]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"


# Parts that belong together in a sentence: one tensor, all biases, all norms, everything in a module.


NORM = re.compile(r"norm|(^|[._])ln(_|\d|\.|$)")
LAYER_NUMBER = re.compile(r"_l(\d|\*).*$")
ATTENTION = ("attention", "attn")
ALL_NORMS = "all norms"
Wanted = Callable[[Part], bool]


@dataclass(frozen=True)
class PartGroup:
    """Some parts and what a sentence calls them."""

    name: str
    parts: tuple[Part, ...]

    @cached_property
    def whole(self) -> Polynomial:
        """All of it together."""
        return total(part.whole for part in self.parts)

    @property
    def part(self) -> Part | None:
        """The only part, where there is just one."""
        return self.parts[0] if len(self.parts) == 1 else None

    @property
    def twins(self) -> list[int]:
        """How many members of each part there are in a layer: 2 of the attentions of a decoder."""
        return [int(abs(part.repeats.common()[0])) if len(part.repeats.terms) == 1 else 1 for part in self.parts]

    @property
    def is_place(self) -> bool:
        """Whether it is a module, a tensor or namesakes of one, and not a kind of tensors."""
        return self.name.startswith(("'", "every"))


def groups_of(parts: Sequence[Part]) -> list[PartGroup]:
    """All natural groups, the plainest first; of two that hold the same parts only the first."""
    places = [*_modules(parts), *_namesakes(parts), *_attentions(parts)]
    biases = [(f"the biases of {name}", _only(inside, is_bias)) for name, inside in places]
    weights = [(f"the weights of {name}", _only(inside, _is_weight)) for name, inside in places]
    named = [*_tensors(parts), *_kinds(parts), *places, *biases, *weights]
    kept: dict[frozenset[int], PartGroup] = {}
    for name, inside in named:
        if inside and len(inside) < max(len(parts), 2):
            kept.setdefault(frozenset(map(id, inside)), PartGroup(name, tuple(inside)))
    return list(kept.values())


def module_of(path: str) -> str:
    """The module in which a tensor stands; a tensor with a name of its own stands for itself.

    >>> module_of("hidden.bias"), module_of("layers.weight_ih_l0")
    ('hidden', 'layers.weight_ih_l0')
    """
    module, _, leaf = path.rpartition(".")
    return module if leaf in ("weight", "bias") and module else path


def is_bias(part: Part) -> bool:
    """Whether a part is a bias."""
    return "bias" in part.path.rpartition(".")[2]


def _is_weight(part: Part) -> bool:
    return part.shape is not None and not is_bias(part)


def is_norm(part: Part) -> bool:
    """Whether a part belongs to a norm."""
    return NORM.search(module_of(part.path)) is not None


def in_layers(part: Part) -> bool:
    """Whether there is more than one of it."""
    return part.repeats != ONE


def _tensors(parts: Sequence[Part]) -> list[tuple[str, list[Part]]]:
    """Each part alone; one that has others inside it, such as attention around its projections, is told from them."""
    above = {prefix for part in parts for prefix in _prefixes(part.path)[:-1]}
    names = [f"'{part.path}' itself" if part.path in above else f"'{part.path}'" for part in parts]
    return [(name if part.path else "the model", [part]) for name, part in zip(names, parts, strict=True)]


def _kinds(parts: Sequence[Part]) -> list[tuple[str, list[Part]]]:
    wanted: dict[str, Wanted] = {
        "all biases": is_bias,
        ALL_NORMS: is_norm,
        "all biases but those of norms": lambda part: is_bias(part) and not is_norm(part),
        "the biases of all norms": lambda part: is_bias(part) and is_norm(part),
        "the weights of all norms": lambda part: is_norm(part) and not is_bias(part),
        "the norms of the layers": lambda part: is_norm(part) and in_layers(part),
    }
    return [(name, _only(parts, want)) for name, want in wanted.items()]


def _modules(parts: Sequence[Part]) -> list[tuple[str, list[Part]]]:
    prefixes = {prefix: None for part in parts for prefix in _prefixes(part.path)}
    return [(f"'{prefix}'", [part for part in parts if _inside(part.path, prefix)]) for prefix in prefixes]


def _prefixes(path: str) -> list[str]:
    steps = path.split(".")
    return [".".join(steps[:length]) for length in range(1, len(steps) + 1)]


def _inside(path: str, prefix: str) -> bool:
    return path == prefix or path.startswith(prefix + ".")


def _namesakes(parts: Sequence[Part]) -> list[tuple[str, list[Part]]]:
    """Parts that have a step of their path in common, wherever it stands: attention in the encoder and the decoder."""
    steps = {step: None for part in parts for step in _steps(part.path) if step != "*"}
    return [(f"every '{step}'", [part for part in parts if step in _steps(part.path)]) for step in steps]


def _attentions(parts: Sequence[Part]) -> list[tuple[str, list[Part]]]:
    """All attention of layers that have more than one kind of it: to themselves, and to a source."""
    found = {step: None for part in parts for step in _steps(part.path) if step.endswith(ATTENTION)}
    name = "every " + " and ".join(f"'{step}'" for step in found)
    return [(name, [part for part in parts if found.keys() & _steps(part.path)])] if len(found) > 1 else []


def _steps(path: str) -> list[str]:
    *above, leaf = path.split(".")
    return [*above, LAYER_NUMBER.sub("", leaf)] if leaf not in ("weight", "bias") else above


def _only(parts: Sequence[Part], wanted: Wanted) -> list[Part]:
    return [part for part in parts if wanted(part)]


# Tensors that a formula leaves out, counts twice, counts for one layer only, or has of its own.


TIED = "tied: also "
EMBEDDINGS = ("embed", "position", "wte", "wpe")


def tensor_elements(question: FormulaQuestion, groups: Sequence[PartGroup]) -> Iterator[Element]:
    """Everything that may be missing or too much, the likeliest first."""
    for group in groups:
        paths = frozenset(part.path for part in group.parts)
        yield Element(-group.whole, _oddness(group), "missing", partial(noun, question, group), group.name, paths)
    for group in groups:
        yield _doubled(question, group)
        yield from _one_layer(question, group)
        yield from _too_few(group)
    if question.quantity.name == "parameters":
        yield from _foreign_biases(question)


def _oddness(group: PartGroup) -> float:
    """People forget a norm rather than half of it, and all of a module rather than its biases or weights alone."""
    if group.part is not None and group.part.shape is not None and is_norm(group.part) and group.part.each.symbols:
        return 1.02
    return 1.03 if group.name.startswith("the ") else 1.0


def noun(question: FormulaQuestion, group: PartGroup) -> str:
    """What a group is, with its size."""
    part = group.part
    if part is None or part.shape is None:
        of = "" if question.quantity.name == "parameters" else "the products of "
        return f"{of}{group.name} ({question.write(group.whole)})"
    kind = "bias" if is_bias(part) else "weight"
    where = f"'{module_of(part.path)}'"
    if module_of(part.path) == part.path:
        members = "" if part.repeats == ONE else f" each, {question.write(part.whole)} in all"
        return f"the {kind} {where} ({question.write(part.each)}{members})"
    if part.repeats == ONE:
        return f"a {kind} of {question.write(part.each)} in {where}"
    return f"a {kind} of {question.write(part.each)} in each {where}, {question.write(part.whole)} in all,"


def _doubled(question: FormulaQuestion, group: PartGroup) -> Element:
    """Counting a tied tensor again is what people do; counting another one twice is rarer."""
    tied = [part for part in group.parts if TIED in part.note]
    if group.part is None or not tied:
        return Element(group.whole, 1.1, "twice", partial(noun, question, group), group.name)
    other = tied[0].note.partition(TIED)[2]
    text = f"your formula counts '{other}' again; it is tied to '{tied[0].path}', and a tied tensor counts once"
    return Element(group.whole, 1.0, "other", text.__str__)


def _one_layer(question: FormulaQuestion, group: PartGroup) -> Iterator[Element]:
    """Counted for one layer, as if it were not repeated."""
    depths = {name for part in group.parts for name in part.repeats.symbols}
    for depth in sorted(depths):
        once = total(part.repeats.put(depth, 1) * part.each for part in group.parts)
        text = f"your formula counts {group.name} for one layer only; there are {depth}"
        yield Element(once - group.whole, 1.05, "other", text.__str__)


def _too_few(group: PartGroup) -> Iterator[Element]:
    """One more or less than the twins in each layer, such as the two attentions of a decoder."""
    if min(group.twins) < 2 or not (group.is_place or group.name == ALL_NORMS) or _is_half_a_module(group):
        return
    for step, cost in ((-1, 1.0), (1, 1.1)):
        change = total(part.whole * Fraction(step, twins) for part, twins in zip(group.parts, group.twins, strict=True))
        yield Element(change, cost, "other", partial(_miscounted, group, step))


def _miscounted(group: PartGroup, step: int) -> str:
    layer = " in each layer" if any(part.repeats.symbols for part in group.parts) else ""
    if len(set(group.twins)) == 1:
        return f"there are {group.twins[0]} of {group.name}{layer}; your formula counts {group.twins[0] + step}"
    name = "norm" if group.name == ALL_NORMS else f"of {group.name}"
    return f"your formula counts one {name} {'less' if step < 0 else 'more'}{layer} than there are"


def _is_half_a_module(group: PartGroup) -> bool:
    """Whether it is a lone weight or bias, whose module people would forget or repeat as a whole."""
    return group.part is not None and module_of(group.part.path) != group.part.path


def _foreign_biases(question: FormulaQuestion) -> Iterator[Element]:
    """Biases of maps that have none; a table of embeddings may be the output layer too."""
    parts = question.quantity.parts
    biased = {module_of(part.path) for part in parts if is_bias(part)}
    for part in (part for part in parts if _is_matrix(part) and module_of(part.path) not in biased):
        outputs, inputs = (part.repeats * size for size in part.shape or ())
        if _is_table(part):
            yield Element(inputs, 1.1, "other", partial(_foreign, question, part, inputs))
            text = f"your formula has a bias of {question.write(outputs)} on the output that the model does not have"
            yield Element(outputs, 1.05, "other", text.__str__, text)
        else:
            yield Element(outputs, 1.0, "other", partial(_foreign, question, part, outputs))


def _foreign(question: FormulaQuestion, part: Part, size: Polynomial) -> str:
    where = f"{'each ' if in_layers(part) else ''}'{module_of(part.path)}'"
    return f"your formula has a bias of {question.write(size / part.repeats)} in {where} that the model does not have"


def _is_matrix(part: Part) -> bool:
    return part.shape is not None and len(part.shape) == 2 and module_of(part.path) != part.path


def _is_table(part: Part) -> bool:
    return any(word in part.path.lower() for word in EMBEDDINGS)


# Known mutations of a formula: one symbol for another, one too many, heads multiplied in, a factor forgotten.


HEADS = "h"
MUTATIONS_ATTENTION = ("att", "head", "query")
MOST_COPIES = 8
BLOCKS = {
    "weight_ih": "one for each gate or candidate",
    "query_key_value": "query, key and value",
    "in_proj": "query, key and value",
    "c_attn": "query, key and value",
}


@dataclass(frozen=True)
class Scope:
    """Where a mutation may have happened: in the whole formula or in a group of parts."""

    name: str
    whole: Polynomial
    paths: tuple[str, ...]
    far: float
    """How much more far-fetched a mutation is here than in the whole formula."""

    @property
    def where(self) -> str:
        """The place in a sentence."""
        return f" in {self.name}" if self.far else ""

    def has_heads(self, question: FormulaQuestion) -> bool:
        """Whether attention heads are at home here: by the names of the parts, or because no part has such a name."""
        if HEADS not in question.account.order:
            return False
        named = [path for path in self.paths if any(word in path for word in MUTATIONS_ATTENTION)]
        anywhere = any(word in part.path for part in question.quantity.parts for word in MUTATIONS_ATTENTION)
        return len(named) == len(self.paths) or not anywhere


def mutation_elements(question: FormulaQuestion, groups: Sequence[PartGroup]) -> Iterator[Element]:
    """All mutations in all scopes, the whole formula first."""
    everything = Scope("the whole formula", question.model, (), 0.0)
    named = [group for group in groups if group.is_place or group.name.startswith("the weights of")]
    scopes = [everything, *(Scope(g.name, g.whole, tuple(p.path for p in g.parts), 0.1) for g in named)]
    for scope in scopes:
        yield from _one_off(question, scope)
        yield from _exchanged(question, scope)
    for scope in scopes[1:]:
        yield from _copies(question, scope)
        yield from _multiplied(question, scope)
        yield from _left_out(question, scope)
    for part in question.quantity.parts:
        yield from _sides(question, part)


def _one_off(question: FormulaQuestion, scope: Scope) -> Iterator[Element]:
    """N for N−1, L+1 for L."""
    for name in question.counts:
        more = scope.whole.put(name, symbol(name) + 1)
        there = symbol(name) - 1 if len(more.terms) < len(scope.whole.terms) else symbol(name)
        less = scope.whole.put(name, symbol(name) - 1)
        for changed, here in ((more, there + 1), (less, there - 1)):
            yield _instead(question, scope, changed, (here, there), 1.05)


def _exchanged(question: FormulaQuestion, scope: Scope) -> Iterator[Element]:
    """Symbols d for d_h, 4d for d_ff, a head's width for that of all heads."""
    for name in (name for name in question.names if name in scope.whole.symbols):
        others = [symbol(other) for other in question.names if other != name]
        usual = [4 * other for other in others] if name == "d_ff" else []
        for other in (*others, *usual, *_by_heads(question, scope, name)):
            cost = 1.05 if other in others else 1.1
            yield _instead(question, scope, scope.whole.put(name, other), (other, symbol(name)), cost)


def _by_heads(question: FormulaQuestion, scope: Scope, name: str) -> list[Polynomial]:
    fits = scope.has_heads(question) and name not in (HEADS, *question.counts)
    return [symbol(name) * symbol(HEADS), symbol(name) / symbol(HEADS)] if fits else []


def _instead(
    question: FormulaQuestion, scope: Scope, changed: Polynomial, pair: tuple[Polynomial, Polynomial], cost: float
) -> Element:
    name = f"{pair[0]!r} for {pair[1]!r}"
    return Element(changed - scope.whole, cost + scope.far, "other", partial(_told, question, scope, pair), name)


def _told(question: FormulaQuestion, scope: Scope, pair: tuple[Polynomial, Polynomial]) -> str:
    here, there = pair
    text = f"your formula has {short(question, here)} where the model has {short(question, there)}{scope.where}"
    sizes = question.account.symbols
    if here.symbols.isdisjoint(there.symbols) and here.at(sizes) == there.at(sizes):
        text += f" (the two are equal only at these sizes: {here.at(sizes)})"
    return text


def _copies(question: FormulaQuestion, scope: Scope) -> Iterator[Element]:
    """A number in front of everything in a scope: four gates; query, key and value."""
    number, _ = scope.whole.common()
    if number.denominator != 1 or not 2 <= number <= MOST_COPIES:
        return
    for counted in range(1, int(number) + 2):
        change = scope.whole * (Fraction(counted, int(number)) - 1)
        yield Element(change, 1.1, "other", partial(_copied, question, scope, counted, int(number)))


def _copied(question: FormulaQuestion, scope: Scope, counted: int, number: int) -> str:
    if question.quantity.name != "parameters":
        return f"your formula counts {Fraction(counted, number)} times what the model does in {scope.name}"
    blocks = next((f" ({why})" for name, why in BLOCKS.items() if any(name in path for path in scope.paths)), "")
    return f"the model has {number} equal blocks in {scope.name}{blocks}; yours has {counted}"


def _multiplied(question: FormulaQuestion, scope: Scope) -> Iterator[Element]:
    """The heads, the layers or the words of the window multiplied in."""
    counts = [symbol(name) for name in question.counts]
    heads = [symbol(HEADS)] if scope.has_heads(question) else []
    for factor in (*heads, *counts, *(count - 1 for count in counts)):
        share = "; the heads share its width" if factor == symbol(HEADS) else ""
        text = f"your formula multiplies {scope.name} by {{}}{share}"
        yield Element(scope.whole * (factor - 1), 1.2, "other", partial(_with, question, text, factor))


def _left_out(question: FormulaQuestion, scope: Scope) -> Iterator[Element]:
    """A factor forgotten: d for d², one word of the window for all of them; or a division by the heads."""
    for name in (name for name in question.names if name in scope.whole.symbols):
        for factor in (symbol(name), symbol(name) - 1):
            left = quotient(scope.whole, factor)
            if left is not None and all(power > 0 for monomial in left.terms for _, power in monomial):
                text = f"your formula leaves the factor {{}} out of {scope.name}"
                yield Element(left - scope.whole, 1.2, "other", partial(_with, question, text, factor))
    if scope.has_heads(question) and HEADS not in scope.whole.symbols:
        text = f"your formula divides {scope.name} by h; all heads together have the full width"
        yield Element(scope.whole / symbol(HEADS) - scope.whole, 1.2, "other", text.__str__)


def _with(question: FormulaQuestion, text: str, factor: Polynomial) -> str:
    return text.format(short(question, factor))


def _sides(question: FormulaQuestion, part: Part) -> Iterator[Element]:
    """One side of a matrix taken for another size: what an upper layer reads, what a head gives."""
    shape = part.shape or ()
    for side, size in enumerate(shape):
        for name in size.symbols:
            for other in (other for other in question.names if other not in (name, *question.counts)):
                changed = (*shape[:side], size.put(name, symbol(other)), *shape[side + 1 :])
                text = f"your formula has {other} where the model has {name} on one side of '{part.path}'"
                yield Element(part.repeats * prod(changed, start=ONE) - part.whole, 1.15, "other", text.__str__)


def short(question: FormulaQuestion, formula: Polynomial) -> str:
    """A symbol or a count such as N-1, written tightly."""
    return question.write(formula).replace(" ", "")


# The simplest explanations of a difference: as few elements as possible, and none of them far-fetched.


NEAR = 1.15
"""The cost up to which an element may be one of two."""
NEAREST = 1.0
"""The cost up to which an element may be one of three."""
LEFT_OUT = 1.03
"""The cost up to which it may be one of three that are all left out."""
MOST_SHOWN = 2


@dataclass(frozen=True)
class Explanation:
    """A sentence, and how far-fetched it is."""

    text: str
    cost: float


class Elements:
    """Elements by what they do to a formula; of those that do the same only the cheapest."""

    def __init__(self, elements: Iterable[Element]) -> None:
        self.table: dict[Polynomial, list[Element]] = {}
        self.add(elements)

    def add(self, elements: Iterable[Element]) -> None:
        """Take more of them in."""
        for element in elements:
            if element.change:
                self._add(element)

    def _add(self, element: Element) -> None:
        held = self.table.setdefault(element.change, [])
        if held and element.cost < held[0].cost:
            held.clear()
        told = {other.name for other in held if element.kind == "other" and other.name}
        if not held or (element.cost == held[0].cost and element.name not in told):
            held.append(element)

    def cost(self, change: Polynomial) -> float:
        """The cost of the cheapest element that does this; infinite without one."""
        return self.table[change][0].cost if change in self.table else inf

    def up_to(self, cost: float) -> list[Polynomial]:
        """What the elements of at most this cost do."""
        return [change for change in self.table if self.cost(change) <= cost]

    def explain(self, residual: Polynomial) -> "Explanation | None":
        """The simplest explanation, or the two that are equally simple; None if there is none."""
        found = self._one(residual) or self._plainer(self._two(residual), residual) or self._three(residual)
        if not found:
            return None
        clauses = [together([self.table[change] for change in changes]) for changes in found[:MOST_SHOWN]]
        return Explanation(sentence(either(clauses, "; or ")), sum(map(self.cost, found[0])))

    def explain_number(self, residual: Fraction, sizes: Mapping[str, int]) -> "Explanation | None":
        """The simplest element that makes this difference at these sizes; by two, chance would explain anything."""
        fitting = [change for change in self.table if change.at(sizes) == residual]
        if not fitting:
            return None
        least = min(map(self.cost, fitting))
        alike = [element for change in fitting if self.cost(change) == least for element in self.table[change]]
        return Explanation(sentence(clause(alike)), least)

    def _one(self, residual: Polynomial) -> list[tuple[Polynomial, ...]]:
        return [(residual,)] if residual in self.table else []

    def _two(self, residual: Polynomial) -> list[tuple[Polynomial, ...]]:
        near = set(self.up_to(NEAR))
        pairs = {frozenset((one, residual - one)) for one in near if residual - one in near and residual - one != one}
        return self._cheapest(tuple(pair) for pair in pairs)

    def _three(self, residual: Polynomial) -> list[tuple[Polynomial, ...]]:
        return self._cheapest(_triples(self.up_to(NEAREST), residual))

    def _plainer(self, found: list[tuple[Polynomial, ...]], residual: Polynomial) -> list[tuple[Polynomial, ...]]:
        """People rather forget three things than forget one and count another twice."""
        if not found or all(self._all_of(change, "twice") == [] for change in found[0]):
            return found
        missing = [change for change in self.up_to(LEFT_OUT) if self._all_of(change, "missing")]
        return self._cheapest(triple for triple in _triples(missing, residual) if self._apart(triple)) or found

    def _all_of(self, change: Polynomial, kind: Kind) -> list[Element]:
        return [element for element in self.table[change] if element.kind == kind]

    def _apart(self, changes: Sequence[Polynomial]) -> bool:
        """Whether what is missing can be left out together: no tensor is in two of the elements."""
        choices = product(*(self._all_of(change, "missing") for change in changes))
        paths = ([path for element in choice for path in element.paths] for choice in choices)
        return any(len(set(every)) == len(every) for every in paths)

    def _cheapest(self, found: Iterable[tuple[Polynomial, ...]]) -> list[tuple[Polynomial, ...]]:
        """Those of least cost; then those whose elements are told with the fewest words; each in a fixed order."""
        places = {change: place for place, change in enumerate(self.table)}
        ordered = [tuple(sorted(changes, key=places.__getitem__)) for changes in found]
        if not ordered:
            return []
        costs = {changes: (sum(map(self.cost, changes)), self._tally(changes)) for changes in ordered}
        least = min(costs.values())
        return sorted((c for c in ordered if costs[c] == least), key=lambda c: [places[change] for change in c])

    def _tally(self, changes: Sequence[Polynomial]) -> int:
        return sum(len(self.table[change]) for change in changes)


def _triples(among: Sequence[Polynomial], residual: Polynomial) -> Iterator[tuple[Polynomial, ...]]:
    """Three different changes that make the residual together, each three once."""
    known = set(among)
    triples = {
        frozenset((one, other, rest))
        for one, other in combinations(among, 2)
        if (rest := residual - one - other) in known and rest not in (one, other)
    }
    return map(tuple, triples)


# Where nothing explains a difference: the part of the model to look at first.


def nearest(question: FormulaQuestion, groups: Sequence[PartGroup]) -> str:
    """Name the group that, left out or counted twice, would explain most of the difference."""
    residual = question.residual
    assert residual is not None
    if not groups:
        return "No simple explanation: the model has nothing of the kind."
    tried = [(_left(residual, group.whole), group) for group in groups]
    left, group = min(tried, key=lambda pair: (len(pair[0].terms), len(pair[1].parts)))
    said = f"No simple explanation. Nearest to the difference is {group.name}, {question.write(group.whole)}"
    if len(left.terms) < len(residual.terms):
        return f"{said}; beyond that, {question.write(left)} is left."
    group = max(groups, key=lambda one: (_shared(residual, one.whole), -len(one.parts)))
    if not _shared(residual, group.whole):
        return "No simple explanation: no part of the model has terms like those of the difference."
    return (
        f"No simple explanation. The terms that differ are like those of {group.name}, {question.write(group.whole)}."
    )


def _left(residual: Polynomial, whole: Polynomial) -> Polynomial:
    return min(residual - whole, residual + whole, key=lambda rest: len(rest.terms))


def _shared(residual: Polynomial, whole: Polynomial) -> float:
    """How much of the difference's and the part's terms are the same but for their numbers."""
    both = residual.terms.keys() & whole.terms.keys()
    return len(both) / len(residual.terms.keys() | whole.terms.keys())


# Models next door: specs that differ in one choice, under which a wrong formula would be right.


DRAWS = 4


def right_elsewhere(question: FormulaQuestion, spec: ModelSpec) -> str:
    """Say under which words the model would have this very number of parameters, whatever its sizes."""
    draws = list(_draws(question))
    fitting = [word for word, other in neighbours(spec) if all(_agree(question, other, values) for values in draws)]
    return f"It would be right with {' or '.join(fitting)}." if fitting else ""


def neighbours(spec: ModelSpec) -> Iterator[tuple[str, ModelSpec]]:
    """Specs that differ in one choice, each with the word that makes the difference: `bias=false`, `family=gru`."""
    for name, field in type(spec).model_fields.items():
        if name == "activation":  # no size depends on it
            continue
        for value in _choices(field.annotation):
            changed = _changed(spec, name, value)
            if changed is not None and changed != spec:
                yield f"{name}={str(value).lower()}", changed
    for family, kind in FAMILIES.items():
        if family != spec.family and kind.letters() == type(spec).letters():
            words = {word: value for word, value in spec.to_dict().items() if word in kind.model_fields}
            yield f"family={family}", kind.read({**words, "family": family}, family)


def _choices(annotation: Any) -> list[Any]:
    """The values of a field that has only a few: a truth value, a Literal, or the kinds of a tagged union."""
    if annotation is bool:
        return [True, False]
    if get_origin(annotation) is Literal:
        return list(get_args(annotation))
    kinds = [one for one in get_args(annotation) if isinstance(one, type) and issubclass(one, Spec)]
    return [kind.model_fields["kind"].default for kind in kinds if "kind" in kind.model_fields]


def _changed(spec: ModelSpec, name: str, value: Any) -> ModelSpec | None:
    if name == "family" or (name == "tied" and value and getattr(spec, "hidden", None) is not None):
        return None  # another family has other words; tying would need hidden = width, another model altogether
    try:
        return spec.replace(**{name: value})
    except SpecError:
        return None


def _draws(question: FormulaQuestion) -> Iterator[Values]:
    """Sizes drawn at random, the same ones each time: few layers, heads that still divide, widths in multiples."""
    source, sizes = random.Random(0), question.account.symbols
    unset = question.account.defaults.keys() - question.yours.symbols
    for _ in range(DRAWS):
        yield {name: _drawn(source, question, name, size) for name, size in sizes.items() if name not in unset}


def _drawn(source: random.Random, question: FormulaQuestion, name: str, size: int) -> int:
    if name == HEADS:
        return source.choice([divisor for divisor in range(1, size + 1) if size % divisor == 0])
    return source.randint(2, 9) if name in question.counts else size * source.randint(1, 5)


def _agree(question: FormulaQuestion, spec: ModelSpec, values: Values) -> bool:
    """Whether the formula gives what the built model has."""
    followed = {name: values[other] for name, other in FOLLOWS.items() if name in spec.sizes() and name not in values}
    try:
        return question.yours.at(values) == parameters_of(spec.at({**values, **followed}))
    except InputError:  # sizes that this model cannot have, or at which the formula divides by zero
        return False
