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
        result = getattr(lemma, name)
        if inspect.isfunction(result):
            yield name, result
        else:
            for method, item in inspect.getmembers(type(result), inspect.isfunction):
                if not method.startswith("_") or method == "__call__":
                    yield f"{name}.{method}", item


FUNCTIONS = dict(public_functions())


def problems(annotation: str, names: dict[str, Any]) -> list[str]:
    """Return what is wrong with a return annotation: missing, with Any in it, or a union of three or more."""
    if annotation == "_empty":  # of inspect.Signature
        return ["is missing"]

    def types(node: ast.expr) -> list[ast.expr]:
        if isinstance(node, ast.BinOp):
            return types(node.left) + types(node.right)
        meaning = names.get(node.id) if isinstance(node, ast.Name) else None
        return types(ast.parse(str(meaning), mode="eval").body) if isinstance(meaning, UnionType) else [node]

    union = types(ast.parse(annotation, mode="eval").body)
    unknown = [node for item in union for node in ast.walk(item) if isinstance(node, ast.Name) and node.id == "Any"]
    return ["has Any in it"] * bool(unknown) + ["is a union of more than two types"] * (len(union) > 2)


def test_the_namespaces_are_seen() -> None:
    assert {"train", "look.__call__", "look.bpe", "count.solve", "check.parameters", "adapt.compare", "choose"} <= {
        *FUNCTIONS
    }


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_public_function_returns_one_type_or_two_and_never_any(name: str) -> None:
    for function in (FUNCTIONS[name], *get_overloads(FUNCTIONS[name])):
        output = inspect.signature(function).return_annotation
        text = output if isinstance(output, str) else inspect.formatannotation(output)
        assert not problems(text, function.__globals__), f"{name} -> {text}"


@pytest.mark.parametrize("wrong", ["_empty", "Any", "list[Any]", "int | str | None", "Texts", "dict[str, Any] | None"])
def test_what_says_too_little_is_found(wrong: str) -> None:
    assert problems(wrong, {"Texts": int | str | None})


@pytest.mark.parametrize("right", ["int", "int | None", "list[int | str | None]", "Run"])
def test_what_says_enough_is_not(right: str) -> None:
    assert not problems(right, {})
