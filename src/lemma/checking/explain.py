"""Why a formula differs from the model's: the smallest explanation.

Every mistake that a person may have made is an element: what it adds to the model's formula, what it costs (how
far-fetched it is), and its sentence. The elements that together make the difference, at the least cost, explain it.
"""

import random
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, partial
from itertools import combinations, product
from math import inf, prod
from typing import Literal, get_args, get_origin

from lemma.checking.question import FOLLOWS, FormulaQuestion
from lemma.counting.account import Part
from lemma.counting.polynomial import ONE, Polynomial, quotient, symbol, total
from lemma.errors import InputError, SpecError
from lemma.models.build import parameters_of
from lemma.spec.base import Spec
from lemma.spec.models import FAMILIES, ModelSpec

PLAIN = 1.03
"""The cost up to which no mutation can be a better explanation than a tensor left out."""
NEAR, NEAREST, LEFT_OUT = 1.15, 1.0, 1.03
"""The cost up to which an element may be one of two, one of three, and one of three that are all left out."""
MOST_SHOWN, MOST_LISTED, MOST_COPIES, LARGEST_FACTOR = 2, 6, 8, 12
HEADS = "h"


def explain(question: FormulaQuestion) -> tuple[str, float]:
    """The simplest explanation of the difference and its cost: tensors, mutations, or a factor; "" without one."""
    residual, yours = question.residual, question.polynomial
    if residual is None or yours is None:
        return "", inf
    groups = groups_of([part for part in question.quantity.parts if part.whole])
    elements = Elements(tensor_elements(question, groups))
    if elements.cost(residual) > PLAIN:
        elements.add(mutation_elements(question, groups))
        ratio = quotient(yours, question.model) if yours.symbols else None
        if ratio is not None and len(ratio.terms) == 1:
            number = ratio.common()[0]
            if max(abs(number.numerator), number.denominator) <= LARGEST_FACTOR:
                elements.add([Element(residual, 1.0, f"your formula is {question.write(ratio)} times the model's")])
    return elements.explain(residual)


def explain_number(question: FormulaQuestion) -> str:
    """The simplest explanation of a difference of which only its number at the sizes asked for is known.

    By one element: by two, chance would explain anything.
    """
    sizes, groups = question.account.symbols, groups_of(question.quantity.parts)
    elements = Elements([*tensor_elements(question, groups), *mutation_elements(question, groups)])
    residual = question.yours.at(sizes) - question.model.at(sizes)
    fitting = [change for change in elements.table if change.at(sizes) == residual]
    least = min(map(elements.cost, fitting), default=None)
    alike = [one for change in fitting if elements.cost(change) == least for one in elements.table[change]]
    return sentence(clause(alike)) if alike else ""


@dataclass(frozen=True)
class Element:
    """A possible mistake: `change` is what it does to the model's formula, `cost` how far-fetched it is.

    `tell` is a clause, or for what is missing or counted twice the noun; where writing it takes time it is a function,
    since only the few that fit are ever told. `name` is a short name for lists; of several other mistakes with the
    same name one is enough. `paths` are those of what is missing.
    """

    change: Polynomial
    cost: float
    tell: str | Callable[[], str]
    name: str = ""
    kind: Literal["missing", "twice", "other"] = "other"
    paths: frozenset[str] = frozenset()

    @property
    def told(self) -> str:
        """The clause or noun."""
        return self.tell if isinstance(self.tell, str) else self.tell()


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
    def whole(self) -> Polynomial:
        """All of it together."""
        return total(part.whole for part in self.parts)

    @property
    def part(self) -> Part | None:
        """The only part, where there is just one."""
        return self.parts[0] if len(self.parts) == 1 else None

    @property
    def is_place(self) -> bool:
        """Whether it is a module, a tensor or namesakes of one, and not a kind of tensors."""
        return self.name.startswith(("'", "every"))


def groups_of(parts: Sequence[Part]) -> list[PartGroup]:
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


def module_of(path: str) -> str:
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
    return NORM.search(module_of(part.path)) is not None


# Tensors that a formula leaves out, counts twice, counts for one layer only, or that only the formula has.

TIED = "tied: also "
EMBEDDINGS = ("embed", "position", "wte", "wpe")


def tensor_elements(question: FormulaQuestion, groups: Sequence[PartGroup]) -> Iterator[Element]:
    """Everything that may be missing or too much, the most likely first."""
    for group in groups:
        cost, part = 1.0, group.part
        # people forget a norm rather than half of it, and all of a module rather than its biases or weights alone
        if part is not None and part.shape is not None and is_norm(part) and part.each.symbols:
            cost = 1.02
        elif group.name.startswith("the "):
            cost = 1.03
        paths = frozenset(part.path for part in group.parts)
        yield Element(-group.whole, cost, partial(_noun, question, group), group.name, "missing", paths)
    for group in groups:
        part = group.part
        if part is not None and TIED in part.note:  # what people do; counting another one twice is rarer
            other = part.note.partition(TIED)[2]
            text = f"your formula counts '{other}' again; it is tied to '{part.path}', and a tied tensor counts once"
            yield Element(group.whole, 1.0, text)
        else:
            yield Element(group.whole, 1.1, partial(_noun, question, group), group.name, "twice")
        depths = sorted({name for part in group.parts for name in part.repeats.symbols})
        for depth in depths:
            once = total(part.repeats.put(depth, 1) * part.each for part in group.parts)
            text = f"your formula counts {group.name} for one layer only; there are {depth}"
            yield Element(once - group.whole, 1.05, text)
        # one more or less than the members of each part in a layer, such as the two attentions of a decoder
        twins = [int(abs(part.repeats.common()[0])) if len(part.repeats.terms) == 1 else 1 for part in group.parts]
        # of a lone weight or bias people would forget or repeat the module as a whole
        half_a_module = part is not None and module_of(part.path) != part.path
        if min(twins) < 2 or not (group.is_place or group.name == ALL_NORMS) or half_a_module:
            continue
        layer = " in each layer" if depths else ""
        for step, cost in ((-1, 1.0), (1, 1.1)):
            change = total(one.whole * Fraction(step, number) for one, number in zip(group.parts, twins, strict=True))
            if len(set(twins)) == 1:
                text = f"there are {twins[0]} of {group.name}{layer}; your formula counts {twins[0] + step}"
            else:
                name = "norm" if group.name == ALL_NORMS else f"of {group.name}"
                text = f"your formula counts one {name} {'less' if step < 0 else 'more'}{layer} than there are"
            yield Element(change, cost, text)
    if question.quantity.name == "parameters":
        yield from _foreign_biases(question)


def _noun(question: FormulaQuestion, group: PartGroup) -> str:
    """What a group is, with its size."""
    part = group.part
    if part is None or part.shape is None:
        of = "" if question.quantity.name == "parameters" else "the products of "
        return f"{of}{group.name} ({question.write(group.whole)})"
    kind, module = "bias" if is_bias(part) else "weight", module_of(part.path)
    each, whole = question.write(part.each), question.write(part.whole)
    if module == part.path:
        return f"the {kind} '{module}' ({each}{'' if part.repeats == ONE else f' each, {whole} in all'})"
    if part.repeats == ONE:
        return f"a {kind} of {each} in '{module}'"
    return f"a {kind} of {each} in each '{module}', {whole} in all,"


def _foreign_biases(question: FormulaQuestion) -> Iterator[Element]:
    """Biases of maps that have none; a table of embeddings may be the output layer too."""
    biased = {module_of(part.path) for part in question.quantity.parts if is_bias(part)}
    for part in question.quantity.parts:
        module = module_of(part.path)
        if part.shape is None or len(part.shape) != 2 or module == part.path or module in biased:
            continue
        outputs, inputs = part.shape
        embeds = any(word in part.path.lower() for word in EMBEDDINGS)
        size, where = inputs if embeds else outputs, f"{'' if part.repeats == ONE else 'each '}'{module}'"
        text = f"your formula has a bias of {question.write(size)} in {where} that the model does not have"
        yield Element(part.repeats * size, 1.1 if embeds else 1.0, text)
        if embeds:
            whole = part.repeats * outputs
            text = f"your formula has a bias of {question.write(whole)} on the output that the model does not have"
            yield Element(whole, 1.05, text, text)


# Known mutations of a formula: one symbol for another, one too many, heads multiplied in, a factor forgotten.

ATTENTION = ("att", "head", "query")
BLOCKS = {
    "weight_ih": "one for each gate or candidate",
    "query_key_value": "query, key and value",
    "in_proj": "query, key and value",
    "c_attn": "query, key and value",
}


def mutation_elements(question: FormulaQuestion, groups: Sequence[PartGroup]) -> Iterator[Element]:
    """All mutations, of the whole formula first; in a group of parts a mutation is more far-fetched."""
    parts, names, sizes = question.quantity.parts, question.names, question.account.symbols
    counts, heads = [symbol(name) for name in question.counts], symbol(HEADS)
    attends = {part.path: any(word in part.path for word in ATTENTION) for part in parts}
    inner = [group for group in groups if group.is_place or group.name.startswith("the weights of")]

    def short(formula: Polynomial) -> str:  # a symbol or a count such as N-1
        return question.write(formula).replace(" ", "")

    def has_heads(scope: PartGroup | None) -> bool:
        """Whether attention heads are at home here: by the names of the parts, or because no part has such a name."""
        named = scope is None or all(attends[part.path] for part in scope.parts)
        return HEADS in question.account.order and (named or not any(attends.values()))

    def instead(
        here: Polynomial, there: Polynomial, changed: Polynomial, cost: float, scope: PartGroup | None
    ) -> Element:
        where, base, far = (f" in {scope.name}", scope.whole, 0.1) if scope else ("", question.model, 0.0)

        def tell() -> str:
            same = here.symbols.isdisjoint(there.symbols) and here.at(sizes) == there.at(sizes)
            equal = f" (the two are equal only at these sizes: {here.at(sizes)})" if same else ""
            return f"your formula has {short(here)} where the model has {short(there)}{where}{equal}"

        return Element(changed - base, cost + far, tell, f"{here!r} for {there!r}")

    for scope in (None, *inner):
        whole = scope.whole if scope else question.model
        for name, count in zip(question.counts, counts, strict=True):  # N for N−1, L+1 for L
            more, less = (whole.put(name, count + step) for step in (1, -1))
            there = count - 1 if len(more.terms) < len(whole.terms) else count
            yield instead(there + 1, there, more, 1.05, scope)
            yield instead(there - 1, there, less, 1.05, scope)
        for name in (name for name in names if name in whole.symbols):
            # d for d_h, 4d for d_ff, a head's width for that of all heads
            others = [symbol(other) for other in names if other != name]
            usual = [4 * other for other in others] if name == "d_ff" else []
            if has_heads(scope) and name not in (HEADS, *question.counts):
                usual += [symbol(name) * heads, symbol(name) / heads]
            for other in (*others, *usual):
                changed = whole.put(name, other)
                yield instead(other, symbol(name), changed, 1.05 if other in others else 1.1, scope)
    for scope in inner:
        whole = scope.whole
        number, _ = whole.common()
        if number.denominator == 1 and 2 <= number <= MOST_COPIES:  # four gates; query, key and value
            paths = [part.path for part in scope.parts]
            blocks = next((f" ({why})" for name, why in BLOCKS.items() if any(name in path for path in paths)), "")
            for counted in range(1, int(number) + 2):
                times = Fraction(counted, int(number))
                text = f"the model has {number} equal blocks in {scope.name}{blocks}; yours has {counted}"
                if question.quantity.name != "parameters":
                    text = f"your formula counts {times} times what the model does in {scope.name}"
                yield Element(whole * (times - 1), 1.1, text)
        # the heads, the layers or the words of the window multiplied in
        for factor in (*([heads] if has_heads(scope) else []), *counts, *(count - 1 for count in counts)):
            share = "; the heads share its width" if factor == heads else ""
            text = f"your formula multiplies {scope.name} by {short(factor)}{share}"
            yield Element(whole * (factor - 1), 1.2, text)
        # a factor forgotten: d for d², one word of the window for all of them; or a division by the heads
        for name in (name for name in names if name in whole.symbols):
            for factor in (symbol(name), symbol(name) - 1):
                left = quotient(whole, factor)
                if left is not None and all(power > 0 for monomial in left.terms for _, power in monomial):
                    text = f"your formula leaves the factor {short(factor)} out of {scope.name}"
                    yield Element(left - whole, 1.2, text)
        if has_heads(scope) and HEADS not in whole.symbols:
            text = f"your formula divides {scope.name} by h; all heads together have the full width"
            yield Element(whole / heads - whole, 1.2, text)
    # one side of a matrix taken for another size: what an upper layer reads, what a head gives
    for part in parts:
        shape = part.shape or ()
        for side, size in enumerate(shape):
            for name, other in product(size.symbols, names):
                if other not in (name, *question.counts):
                    changed = (*shape[:side], size.put(name, symbol(other)), *shape[side + 1 :])
                    text = f"your formula has {other} where the model has {name} on one side of '{part.path}'"
                    yield Element(part.repeats * prod(changed, start=ONE) - part.whole, 1.15, text)


Changes = tuple[Polynomial, ...]


class Elements:
    """Elements by what they do to a formula; of those that do the same only the cheapest."""

    def __init__(self, elements: Iterable[Element]) -> None:
        self.table: dict[Polynomial, list[Element]] = {}
        self.add(elements)

    def add(self, elements: Iterable[Element]) -> None:
        """Take more of them in."""
        for element in elements:
            if not element.change:
                continue
            held = self.table.setdefault(element.change, [])
            if held and element.cost < held[0].cost:
                held.clear()
            told = {other.name for other in held if element.kind == "other" and other.name}
            if not held or (element.cost == held[0].cost and element.name not in told):
                held.append(element)

    def cost(self, change: Polynomial) -> float:
        """The cost of the cheapest element that does this; infinite without one."""
        return self.table[change][0].cost if change in self.table else inf

    def explain(self, residual: Polynomial) -> tuple[str, float]:
        """The simplest explanation by one, two or three elements, or the two that are equally simple."""
        found: list[Changes] = [(residual,)]
        if residual not in self.table:
            near = set(self._up_to(NEAR))
            pairs = {
                frozenset((one, residual - one)) for one in near if residual - one in near and residual - one != one
            }
            found = self._cheapest(pairs)
            if found and any(self._of_kind(change, "twice") for change in found[0]):
                # people rather forget three things than forget one and count another twice
                missing = [change for change in self._up_to(LEFT_OUT) if self._of_kind(change, "missing")]
                found = self._cheapest(filter(self._apart, _triples(missing, residual))) or found
            found = found or self._cheapest(_triples(self._up_to(NEAREST), residual))
        if not found:
            return "", inf
        clauses = [together([self.table[change] for change in changes]) for changes in found[:MOST_SHOWN]]
        return sentence(either(clauses, "; or ")), sum(map(self.cost, found[0]))

    def _up_to(self, cost: float) -> list[Polynomial]:
        return [change for change in self.table if self.cost(change) <= cost]

    def _of_kind(self, change: Polynomial, kind: str) -> list[Element]:
        return [element for element in self.table[change] if element.kind == kind]

    def _apart(self, changes: Iterable[Polynomial]) -> bool:
        """Whether what is missing can be left out together: no tensor is in two of the elements."""
        choices = product(*(self._of_kind(change, "missing") for change in changes))
        paths = ([path for element in choice for path in element.paths] for choice in choices)
        return any(len(set(every)) == len(every) for every in paths)

    def _cheapest(self, found: Iterable[Iterable[Polynomial]]) -> list[Changes]:
        """Those of least cost; then those whose elements are told with the fewest words; each in a fixed order."""
        places = {change: place for place, change in enumerate(self.table)}
        ordered = [tuple(sorted(changes, key=places.__getitem__)) for changes in found]
        costs = {
            changes: (sum(map(self.cost, changes)), sum(len(self.table[change]) for change in changes))
            for changes in ordered
        }
        least = min(costs.values(), default=None)
        return sorted((c for c in ordered if costs[c] == least), key=lambda c: [places[change] for change in c])


def _triples(among: Sequence[Polynomial], residual: Polynomial) -> set[frozenset[Polynomial]]:
    """Three different changes that make the residual together, each three once."""
    known = set(among)
    return {
        frozenset((one, other, rest))
        for one, other in combinations(among, 2)
        if (rest := residual - one - other) in known and rest not in (one, other)
    }


def clause(elements: Sequence[Element]) -> str:
    """What happened, where any one of these elements explains it; those of one kind share their verb."""
    missing, twice = ([one for one in elements if one.kind == kind] for kind in ("missing", "twice"))
    clauses: list[str] = []
    if len(missing) == 1:
        clauses.append(f"the model has {missing[0].told} that your formula leaves out")
    elif missing:
        clauses.append(f"your formula leaves out one of these, which are all of one size: {_listed(missing)}")
    if len(twice) == 1:
        clauses.append(f"your formula counts {twice[0].told.replace('a ', 'the ', 1)} twice")
    elif twice:
        clauses.append(f"your formula counts one of these twice: {_listed(twice)}")
    clauses += [element.told for element in elements if element.kind == "other"]
    return either(list(dict.fromkeys(clauses)), ", or ")


def _listed(elements: Sequence[Element]) -> str:
    """Their names with commas and a last `or`."""
    names = [element.name for element in elements]
    if len(names) > MOST_LISTED:
        names = [*names[: MOST_LISTED - 1], f"{len(names) - MOST_LISTED + 1} more"]
    return f"{', '.join(names[:-1])} or {names[-1]}"


def together(mistakes: Sequence[Sequence[Element]]) -> str:
    """What happened, where each of these did; what is left out shares its verb."""
    alone = [one for one in mistakes if len(one) == 1 and one[0].kind == "missing"]
    if len(alone) < 2:
        return ", and ".join(map(clause, mistakes))
    *nouns, last = (one[0].told.rstrip(",") for one in alone)
    missing = f"the model has {', '.join(nouns)} and {last} that your formula leaves out"
    return ", and ".join([missing, *(clause(other) for other in mistakes if other not in alone)])


def either(clauses: Sequence[str], between: str) -> str:
    """One clause as it is; of several, either one or the other."""
    return clauses[0] if len(clauses) == 1 else f"either {between.join(clauses)}"


def sentence(text: str) -> str:
    """A clause as a sentence."""
    return text[0].upper() + text[1:] + "."


def nearest(question: FormulaQuestion) -> str:
    """Where nothing explains a difference: the group that, left out or counted twice, would explain most of it."""
    residual, groups = question.residual, groups_of(question.quantity.parts)
    assert residual is not None
    if not groups:
        return "No simple explanation: the model has nothing of the kind."

    def left_by(group: PartGroup) -> Polynomial:
        return min(residual - group.whole, residual + group.whole, key=lambda rest: len(rest.terms))

    def shared(group: PartGroup) -> float:  # terms that are the same but for their numbers
        mine, theirs = residual.terms.keys(), group.whole.terms.keys()
        return len(mine & theirs) / len(mine | theirs)

    group = min(groups, key=lambda one: (len(left_by(one).terms), len(one.parts)))
    if len(left_by(group).terms) < len(residual.terms):
        said = f"No simple explanation. Nearest to the difference is {group.name}, {question.write(group.whole)}"
        return f"{said}; beyond that, {question.write(left_by(group))} is left."
    group = max(groups, key=lambda one: (shared(one), -len(one.parts)))
    if not shared(group):
        return "No simple explanation: no part of the model has terms like those of the difference."
    like = f"{group.name}, {question.write(group.whole)}"
    return f"No simple explanation. The terms that differ are like those of {like}."


DRAWS = 4


def right_elsewhere(question: FormulaQuestion, spec: ModelSpec) -> str:
    """Say under which words the model would have this very number of parameters, whatever its sizes."""
    source, account = random.Random(0), question.account  # the same draws each time
    unset = account.defaults.keys() - question.yours.symbols

    def drawn(name: str, size: int) -> int:
        """Few layers, heads that still divide, widths in multiples."""
        if name == HEADS:
            return source.choice([divisor for divisor in range(1, size + 1) if size % divisor == 0])
        return source.randint(2, 9) if name in question.counts else size * source.randint(1, 5)

    def agree(other: ModelSpec) -> bool:
        """Whether the formula gives what the built model has, at all sizes drawn."""
        for values in draws:
            sizes = other.sizes()
            followed = {name: values[of] for name, of in FOLLOWS.items() if name in sizes and name not in values}
            try:
                if question.yours.at(values) != parameters_of(other.at({**values, **followed})):
                    return False
            except InputError:  # sizes that this model cannot have, or at which the formula divides by zero
                return False
        return True

    draws = [
        {name: drawn(name, size) for name, size in account.symbols.items() if name not in unset} for _ in range(DRAWS)
    ]
    fitting = [word for word, other in neighbours(spec) if agree(other)]
    return f"It would be right with {' or '.join(fitting)}." if fitting else ""


def neighbours(spec: ModelSpec) -> Iterator[tuple[str, ModelSpec]]:
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
