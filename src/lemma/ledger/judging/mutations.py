"""Known mutations of a formula: one symbol for another, one too many, heads multiplied in, a factor forgotten."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from math import prod

from lemma.ledger.formula import quotient
from lemma.ledger.judging.element import Element
from lemma.ledger.judging.groups import Group
from lemma.ledger.judging.question import Question
from lemma.ledger.polynomial import ONE, Polynomial, symbol
from lemma.ledger.quantity import Part

HEADS = "h"
ATTENTION = ("att", "head", "query")
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

    def has_heads(self, question: Question) -> bool:
        """Whether attention heads are at home here: by the names of the parts, or because no part has such a name."""
        if HEADS not in question.account.order:
            return False
        named = [path for path in self.paths if any(word in path for word in ATTENTION)]
        anywhere = any(word in part.path for part in question.quantity.parts for word in ATTENTION)
        return len(named) == len(self.paths) or not anywhere


def mutation_elements(question: Question, groups: Sequence[Group]) -> Iterator[Element]:
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


def _one_off(question: Question, scope: Scope) -> Iterator[Element]:
    """N for N−1, L+1 for L."""
    for name in question.counts:
        more = scope.whole.put(name, symbol(name) + 1)
        there = symbol(name) - 1 if len(more.terms) < len(scope.whole.terms) else symbol(name)
        less = scope.whole.put(name, symbol(name) - 1)
        for changed, here in ((more, there + 1), (less, there - 1)):
            yield _instead(question, scope, changed, (here, there), 1.05)


def _exchanged(question: Question, scope: Scope) -> Iterator[Element]:
    """Symbols d for d_h, 4d for d_ff, a head's width for that of all heads."""
    for name in (name for name in question.names if name in scope.whole.symbols):
        others = [symbol(other) for other in question.names if other != name]
        usual = [4 * other for other in others] if name == "d_ff" else []
        for other in (*others, *usual, *_by_heads(question, scope, name)):
            cost = 1.05 if other in others else 1.1
            yield _instead(question, scope, scope.whole.put(name, other), (other, symbol(name)), cost)


def _by_heads(question: Question, scope: Scope, name: str) -> list[Polynomial]:
    fits = scope.has_heads(question) and name not in (HEADS, *question.counts)
    return [symbol(name) * symbol(HEADS), symbol(name) / symbol(HEADS)] if fits else []


def _instead(
    question: Question, scope: Scope, changed: Polynomial, pair: tuple[Polynomial, Polynomial], cost: float
) -> Element:
    name = f"{pair[0]!r} for {pair[1]!r}"
    return Element(changed - scope.whole, cost + scope.far, "other", partial(_told, question, scope, pair), name)


def _told(question: Question, scope: Scope, pair: tuple[Polynomial, Polynomial]) -> str:
    here, there = pair
    text = f"your formula has {short(question, here)} where the model has {short(question, there)}{scope.where}"
    sizes = question.account.symbols
    if here.symbols.isdisjoint(there.symbols) and here.at(sizes) == there.at(sizes):
        text += f" (the two are equal only at these sizes: {here.at(sizes)})"
    return text


def _copies(question: Question, scope: Scope) -> Iterator[Element]:
    """A number in front of everything in a scope: four gates; query, key and value."""
    number, _ = scope.whole.common()
    if number.denominator != 1 or not 2 <= number <= MOST_COPIES:
        return
    for counted in range(1, int(number) + 2):
        change = scope.whole * (Fraction(counted, int(number)) - 1)
        yield Element(change, 1.1, "other", partial(_copied, question, scope, counted, int(number)))


def _copied(question: Question, scope: Scope, counted: int, number: int) -> str:
    if question.quantity.name != "parameters":
        return f"your formula counts {Fraction(counted, number)} times what the model does in {scope.name}"
    blocks = next((f" ({why})" for name, why in BLOCKS.items() if any(name in path for path in scope.paths)), "")
    return f"the model has {number} equal blocks in {scope.name}{blocks}; yours has {counted}"


def _multiplied(question: Question, scope: Scope) -> Iterator[Element]:
    """The heads, the layers or the words of the window multiplied in."""
    counts = [symbol(name) for name in question.counts]
    heads = [symbol(HEADS)] if scope.has_heads(question) else []
    for factor in (*heads, *counts, *(count - 1 for count in counts)):
        share = "; the heads share its width" if factor == symbol(HEADS) else ""
        text = f"your formula multiplies {scope.name} by {{}}{share}"
        yield Element(scope.whole * (factor - 1), 1.2, "other", partial(_with, question, text, factor))


def _left_out(question: Question, scope: Scope) -> Iterator[Element]:
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


def _with(question: Question, text: str, factor: Polynomial) -> str:
    return text.format(short(question, factor))


def _sides(question: Question, part: Part) -> Iterator[Element]:
    """One side of a matrix taken for another size: what an upper layer reads, what a head gives."""
    shape = part.shape or ()
    for side, size in enumerate(shape):
        for name in size.symbols:
            for other in (other for other in question.names if other not in (name, *question.counts)):
                changed = (*shape[:side], size.put(name, symbol(other)), *shape[side + 1 :])
                text = f"your formula has {other} where the model has {name} on one side of '{part.path}'"
                yield Element(part.repeats * prod(changed, start=ONE) - part.whole, 1.15, "other", text.__str__)


def short(question: Question, formula: Polynomial) -> str:
    """A symbol or a count such as N-1, written tightly."""
    return question.write(formula).replace(" ", "")
