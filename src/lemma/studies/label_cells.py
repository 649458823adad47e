"""From a study of classifiers to its cells: a body, one recipe for all, and how many steps that makes."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from lemma.errors import SpecError, unknown
from lemma.spec import Classifier, Contender, LabelStudy, Recipe, Spec, choose, distribute
from lemma.studies.clock import spread_validations
from lemma.studies.grid import RESERVED, Cell

Words = Mapping[str, Any]
NOT_TO_SET = {
    **RESERVED,
    "vocabulary": "It comes from the tokenizer, the same for every run: set tokenizer.vocabulary.",
    "V": "It comes from the tokenizer, the same for every run: set tokenizer.vocabulary.",
    "classes": "They come from the labels.",
    "K": "They come from the labels.",
    "body": "Name another body, as in contenders=['rnn','lstm'].",
}
WARM_UP = 10
"""One step in so many warms up, unless warm_up is given."""


@dataclass(frozen=True)
class Described:
    """A classifier before its data are known, and the words of its recipe."""

    title: str
    model: Classifier
    recipe: Words


def describe_classifier(contender: Contender, shared: Words) -> Described:
    """Make a body the body of a classifier; of the shared words it takes those it knows, of its own all.

    The recipe is the study's alone, whatever the preset has, so that it is the same for every body.
    """
    model = choose(contender.model, classify=True).model
    assert isinstance(model, Classifier)
    kinds = _kinds(model)
    known = {word: value for word, value in shared.items() if _knows(kinds, word)}
    for word in (*known, *contender.words):
        if word in NOT_TO_SET:
            raise SpecError(f"study: '{word}' is no word for single runs. {NOT_TO_SET[word]}")
    shares = [distribute(words, kinds) for words in (known, contender.words)]
    body, own, recipe = ({**shares[0][kind], **shares[1][kind]} for kind in kinds)
    model = model.replace(**own, body=model.body.replace(**body).to_dict())
    return Described(contender.title, model, recipe)


def refuse_unknown_words(shared: Words, described: Iterable[Classifier]) -> None:
    """Refuse a shared word that no body knows."""
    kinds = [_kinds(model) for model in described]
    for word in shared:
        if not any(_knows(one, word) for one in kinds):
            words = dict.fromkeys(name for one in kinds for kind in one.values() for name in kind.known_words())
            raise SpecError(unknown("study.words: the word", word, [name for name in words if name not in NOT_TO_SET]))


def _kinds(model: Classifier) -> dict[str, type[Spec]]:
    return {"body": type(model.body), "model": Classifier, "recipe": Recipe}


def _knows(kinds: Mapping[str, type[Spec]], word: str) -> bool:
    return any(word.partition(".")[0] in kind.known_words() for kind in kinds.values())


def cell_of(study: LabelStudy, described: Described, point: Words, seed: int, texts: int) -> Cell:
    """One run: the described classifier with the study's recipe for so many labelled texts."""
    recipe = recipe_of(study, described.recipe, texts).replace(seed=seed)
    return Cell(described.title, point, seed, described.model, recipe)


def recipe_of(study: LabelStudy, words: Words, texts: int) -> Recipe:
    """The recipe for so many labelled texts: read `epochs` times, but for `least_steps` at least.

    >>> from lemma.spec import ClassifiersStudy
    >>> recipe_of(ClassifiersStudy(name="a", epochs=4, least_steps=10), {"batch": 8}, 100).steps
    50
    """
    recipe = Recipe.read(words, "study.words")
    if "steps" not in words:
        recipe = recipe.replace(steps=max(study.least_steps, math.ceil(study.epochs * texts / recipe.batch)))
    return paced(recipe, words, study.validations)


def paced(recipe: Recipe, words: Words, validations: int) -> Recipe:
    """Let a recipe of so many steps warm up and validate in proportion, unless its words say otherwise."""
    warm_up = recipe.warm_up if "warm_up" in words else recipe.steps // WARM_UP
    return spread_validations(recipe.replace(warm_up=warm_up), min(validations, recipe.steps))
