"""Models next door: specs that differ in one choice, under which a wrong formula would be right."""

import random
from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

from lemma.errors import InputError, SpecError
from lemma.ledger.judging.question import Question
from lemma.ledger.judging.specs import FOLLOWS
from lemma.ledger.subject import Values
from lemma.models import parameters_of
from lemma.spec import FAMILIES, ModelSpec, Spec

DRAWS = 4
HEADS = "h"


def right_elsewhere(question: Question, spec: ModelSpec) -> str:
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


def _draws(question: Question) -> Iterator[Values]:
    """Sizes drawn at random, the same ones each time: few layers, heads that still divide, widths in multiples."""
    source, sizes = random.Random(0), question.account.symbols
    unset = question.account.defaults.keys() - question.yours.symbols
    for _ in range(DRAWS):
        yield {name: _drawn(source, question, name, size) for name, size in sizes.items() if name not in unset}


def _drawn(source: random.Random, question: Question, name: str, size: int) -> int:
    if name == HEADS:
        return source.choice([divisor for divisor in range(1, size + 1) if size % divisor == 0])
    return source.randint(2, 9) if name in question.counts else size * source.randint(1, 5)


def _agree(question: Question, spec: ModelSpec, values: Values) -> bool:
    """Whether the formula gives what the built model has."""
    followed = {name: values[other] for name, other in FOLLOWS.items() if name in spec.sizes() and name not in values}
    try:
        return question.yours.at(values) == parameters_of(spec.at({**values, **followed}))
    except InputError:  # sizes that this model cannot have, or at which the formula divides by zero
        return False
