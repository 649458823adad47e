"""Public functions are annotated with one or two return types, never Any."""

import ast
import inspect
from collections.abc import Callable, Iterator
from types import UnionType
from typing import Any, get_overloads

import pytest

import lemma


def public_functions() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Return the verbs and helpers; for a namespace its call and its public methods."""
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


def test_public_functions_include_namespaced_verbs() -> None:
    assert {"train", "look.__call__", "look.bpe", "count.solve", "check.parameters", "adapt.compare", "choose"} <= {
        *FUNCTIONS
    }


@pytest.mark.parametrize("name", FUNCTIONS)
def test_public_functions_return_at_most_two_types_without_any(name: str) -> None:
    for function in (FUNCTIONS[name], *get_overloads(FUNCTIONS[name])):
        output = inspect.signature(function).return_annotation
        text = output if isinstance(output, str) else inspect.formatannotation(output)
        assert not problems(text, function.__globals__), f"{name} -> {text}"


@pytest.mark.parametrize("wrong", ["_empty", "Any", "list[Any]", "int | str | None", "Texts", "dict[str, Any] | None"])
def test_vague_return_types_are_rejected(wrong: str) -> None:
    assert problems(wrong, {"Texts": int | str | None})


@pytest.mark.parametrize("right", ["int", "int | None", "list[int | str | None]", "Run"])
def test_precise_return_types_are_accepted(right: str) -> None:
    assert not problems(right, {})
