"""What the public functions return is said: never Any, and one type or two."""

import ast
import inspect
from collections.abc import Callable, Iterator
from types import UnionType
from typing import Any, get_overloads

import pytest

import lemma


def public_functions() -> Iterator[tuple[str, Callable[..., Any]]]:
    """The verbs and helpers; of a verb that is a namespace its call and its public methods."""
    for name in (*lemma.__all__, *lemma.HELPERS):
        found = getattr(lemma, name)
        if inspect.isfunction(found):
            yield name, found
        else:
            for method, one in inspect.getmembers(type(found), inspect.isfunction):
                if not method.startswith("_") or method == "__call__":
                    yield f"{name}.{method}", one


FUNCTIONS = dict(public_functions())


def problems(annotation: str, names: dict[str, Any]) -> list[str]:
    """What is wrong with a return annotation: it is missing, it has Any in it, or it is a union of three or more."""
    if annotation == "_empty":  # of inspect.Signature
        return ["is missing"]

    def types(node: ast.expr) -> list[ast.expr]:
        if isinstance(node, ast.BinOp):
            return types(node.left) + types(node.right)
        meaning = names.get(node.id) if isinstance(node, ast.Name) else None
        return types(ast.parse(str(meaning), mode="eval").body) if isinstance(meaning, UnionType) else [node]

    union = types(ast.parse(annotation, mode="eval").body)
    unknown = [node for one in union for node in ast.walk(one) if isinstance(node, ast.Name) and node.id == "Any"]
    return ["has Any in it"] * bool(unknown) + ["is a union of more than two types"] * (len(union) > 2)


def test_the_namespaces_are_seen() -> None:
    assert {"train", "look.__call__", "look.bpe", "count.solve", "check.parameters", "adapt.compare", "choose"} <= {
        *FUNCTIONS
    }


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_public_function_returns_one_type_or_two_and_never_any(name: str) -> None:
    for function in (FUNCTIONS[name], *get_overloads(FUNCTIONS[name])):
        said = inspect.signature(function).return_annotation
        written = said if isinstance(said, str) else inspect.formatannotation(said)
        assert not problems(written, function.__globals__), f"{name} -> {written}"


@pytest.mark.parametrize("wrong", ["_empty", "Any", "list[Any]", "int | str | None", "Texts", "dict[str, Any] | None"])
def test_what_says_too_little_is_found(wrong: str) -> None:
    assert problems(wrong, {"Texts": int | str | None})


@pytest.mark.parametrize("right", ["int", "int | None", "list[int | str | None]", "Run"])
def test_what_says_enough_is_not(right: str) -> None:
    assert not problems(right, {})
