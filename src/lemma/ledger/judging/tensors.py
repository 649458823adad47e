"""Tensors that a formula leaves out, counts twice, counts for one layer only, or has of its own."""

from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import partial

from lemma.ledger.judging.element import Element
from lemma.ledger.judging.groups import ALL_NORMS, Group, in_layers, is_bias, is_norm, module_of
from lemma.ledger.judging.question import Question
from lemma.ledger.polynomial import ONE, Polynomial, total
from lemma.ledger.quantity import Part

TIED = "tied: also "
EMBEDDINGS = ("embed", "position", "wte", "wpe")


def tensor_elements(question: Question, groups: Sequence[Group]) -> Iterator[Element]:
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


def _oddness(group: Group) -> float:
    """People forget a norm rather than half of it, and all of a module rather than its biases or weights alone."""
    if group.part is not None and group.part.shape is not None and is_norm(group.part) and group.part.each.symbols:
        return 1.02
    return 1.03 if group.name.startswith("the ") else 1.0


def noun(question: Question, group: Group) -> str:
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


def _doubled(question: Question, group: Group) -> Element:
    """Counting a tied tensor again is what people do; counting another one twice is rarer."""
    tied = [part for part in group.parts if TIED in part.note]
    if group.part is None or not tied:
        return Element(group.whole, 1.1, "twice", partial(noun, question, group), group.name)
    other = tied[0].note.partition(TIED)[2]
    text = f"your formula counts '{other}' again; it is tied to '{tied[0].path}', and a tied tensor counts once"
    return Element(group.whole, 1.0, "other", text.__str__)


def _one_layer(question: Question, group: Group) -> Iterator[Element]:
    """Counted for one layer, as if it were not repeated."""
    depths = {name for part in group.parts for name in part.repeats.symbols}
    for depth in sorted(depths):
        once = total(part.repeats.put(depth, 1) * part.each for part in group.parts)
        text = f"your formula counts {group.name} for one layer only; there are {depth}"
        yield Element(once - group.whole, 1.05, "other", text.__str__)


def _too_few(group: Group) -> Iterator[Element]:
    """One more or less than the twins in each layer, such as the two attentions of a decoder."""
    if min(group.twins) < 2 or not (group.is_place or group.name == ALL_NORMS) or _is_half_a_module(group):
        return
    for step, cost in ((-1, 1.0), (1, 1.1)):
        change = total(part.whole * Fraction(step, twins) for part, twins in zip(group.parts, group.twins, strict=True))
        yield Element(change, cost, "other", partial(_miscounted, group, step))


def _miscounted(group: Group, step: int) -> str:
    layer = " in each layer" if any(part.repeats.symbols for part in group.parts) else ""
    if len(set(group.twins)) == 1:
        return f"there are {group.twins[0]} of {group.name}{layer}; your formula counts {group.twins[0] + step}"
    name = "norm" if group.name == ALL_NORMS else f"of {group.name}"
    return f"your formula counts one {name} {'less' if step < 0 else 'more'}{layer} than there are"


def _is_half_a_module(group: Group) -> bool:
    """Whether it is a lone weight or bias, whose module people would forget or repeat as a whole."""
    return group.part is not None and module_of(group.part.path) != group.part.path


def _foreign_biases(question: Question) -> Iterator[Element]:
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


def _foreign(question: Question, part: Part, size: Polynomial) -> str:
    where = f"{'each ' if in_layers(part) else ''}'{module_of(part.path)}'"
    return f"your formula has a bias of {question.write(size / part.repeats)} in {where} that the model does not have"


def _is_matrix(part: Part) -> bool:
    return part.shape is not None and len(part.shape) == 2 and module_of(part.path) != part.path


def _is_table(part: Part) -> bool:
    return any(word in part.path.lower() for word in EMBEDDINGS)
