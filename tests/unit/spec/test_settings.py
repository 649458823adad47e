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
    """Return a type without its constraints; Any for a choice between specs and for coerced values."""
    origin = get_origin(annotation)
    if origin is Annotated:
        kind, *description = get_args(annotation)
        return Any if any(isinstance(mark, BeforeValidator) for mark in description) else plain(kind)
    if origin in (Union, UnionType):
        parts = [plain(part) for part in get_args(annotation)]
        return Any if Any in parts else Union[tuple(parts)]  # noqa: UP007
    if isinstance(annotation, type) and issubclass(annotation, Spec):
        return Any
    return annotation


def fields(kinds: Kinds) -> dict[str, Any]:
    """Return the type of every field of some specs; Any where they differ."""
    result: dict[str, Any] = {}
    for kind in kinds:
        hints = get_type_hints(kind, include_extras=True)
        for name in kind.model_fields:
            if name not in NOT_SETTINGS:
                hint = plain(hints[name])
                result[name] = hint if result.get(name, hint) == hint else Any
    return result


def letters(kinds: Kinds) -> dict[str, Any]:
    return dict.fromkeys((letter for kind in kinds if issubclass(kind, Spec) for letter in kind.letters()), int)


@pytest.mark.parametrize("case", CASES)
def test_typed_settings_match_spec_fields(case: str) -> None:
    declared, kinds = CASES[case]
    output = {name: plain(hint) for name, hint in get_type_hints(declared).items()}
    expected = fields(kinds) | (letters(kinds) if case == "model" else {})
    custom = (
        Recipe.model_fields.keys() if case == "model" else ()
    )  # an encoder's objective is also a setting of the recipe
    assert output == {name: hint for name, hint in expected.items() if name not in custom}


def test_sampling_settings_match_sampling_and_beam_fields() -> None:
    names = get_type_hints(Sampling) | get_type_hints(Beam)
    assert set(get_type_hints(SamplingSettings)) <= set(names)
