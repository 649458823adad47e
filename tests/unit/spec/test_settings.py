"""The typed keyword arguments of the verbs are the fields of the specs, with their types."""

from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import pytest
from pydantic import BaseModel, BeforeValidator

from lemma.generation.beam import Beam
from lemma.generation.sampling import Sampling
from lemma.spec.base import Spec
from lemma.spec.models import FAMILIES
from lemma.spec.recipe import Adapters, Lora, Recipe
from lemma.spec.settings import MethodSettings, ModelSettings, RecipeSettings, SamplingSettings

Kinds = list[type[BaseModel]]
CASES: dict[str, tuple[Any, Kinds]] = {
    "recipe": (RecipeSettings, [Recipe]),
    "method": (MethodSettings, [Lora, Adapters]),
    "model": (ModelSettings, list(FAMILIES.values())),
}
NOT_SETTINGS = {"family", "kind"}  # chosen by name


def plain(annotation: Any) -> Any:
    """A type without its constraints; Any for a choice between specs, and where other values are read too."""
    origin = get_origin(annotation)
    if origin is Annotated:
        kind, *about = get_args(annotation)
        return Any if any(isinstance(mark, BeforeValidator) for mark in about) else plain(kind)
    if origin in (Union, UnionType):
        parts = [plain(part) for part in get_args(annotation)]
        return Any if Any in parts else Union[tuple(parts)]  # noqa: UP007
    if isinstance(annotation, type) and issubclass(annotation, Spec):
        return Any
    return annotation


def fields(kinds: Kinds) -> dict[str, Any]:
    """The type of every field of some specs; Any where they differ."""
    found: dict[str, Any] = {}
    for kind in kinds:
        hints = get_type_hints(kind, include_extras=True)
        for name in kind.model_fields:
            if name not in NOT_SETTINGS:
                hint = plain(hints[name])
                found[name] = hint if found.get(name, hint) == hint else Any
    return found


def letters(kinds: Kinds) -> dict[str, Any]:
    return dict.fromkeys((letter for kind in kinds if issubclass(kind, Spec) for letter in kind.letters()), int)


@pytest.mark.parametrize("case", CASES)
def test_settings_are_the_fields_of_their_specs_with_their_types(case: str) -> None:
    declared, kinds = CASES[case]
    said = {name: plain(hint) for name, hint in get_type_hints(declared).items()}
    wanted = fields(kinds) | (letters(kinds) if case == "model" else {})
    own = Recipe.model_fields.keys() if case == "model" else ()  # an encoder's objective is the recipe's word too
    assert said == {name: hint for name, hint in wanted.items() if name not in own}


def test_settings_of_sampling_are_those_of_sampling_and_of_the_beam() -> None:
    known = get_type_hints(Sampling) | get_type_hints(Beam)
    assert set(get_type_hints(SamplingSettings)) <= set(known)
