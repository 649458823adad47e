"""Hostile input: always a verdict or an InputError, and quickly."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lemma.checking.cells import CELLS as DESCRIBED
from lemma.checking.gradients import CELLS, GradientReport, judge_gradients
from lemma.errors import InputError

SECONDS = 5.0
"""Of the processor, since a busy machine may keep us waiting; a second is the aim, a slow processor may take a few."""


def judged_or_refused(cell: str, lines: list[str]) -> GradientReport | None:
    started = time.process_time()
    try:
        return judge_gradients(cell, lines)
    except InputError as refusal:
        assert len(str(refusal)) < 1000
        return None
    finally:
        assert time.process_time() - started < SECONDS


NAMES = [*sorted(DESCRIBED["lstm"].known), "e", "Γ_f", "ŷ"]
PIECES = [
    *NAMES,
    *"+-*/@^()[];,:=.#",
    "²",
    "ᵀ",
    ".T",
    "tanh(",
    "sum(",
    "outer(",
    "1",
    "0",
    "1e999",
    "-6",
    "axis=1",
    "\n",
]


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=60))
def test_any_text_at_all(text: str) -> None:
    judged_or_refused("lstm", [text, f"dc = {text}"])
    assert judge_gradients("lstm", ["dz = y_hat - y"]).right


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(NAMES), st.lists(st.sampled_from(PIECES), max_size=12))
def test_any_heap_of_pieces_of_the_language(name: str, pieces: list[str]) -> None:
    report = judged_or_refused("lstm", [f"{name} = {' '.join(pieces)}"])
    assert report is None or (str(report) and report.to_dict())


def trees(cell: str) -> st.SearchStrategy[str]:
    names = sorted(DESCRIBED[cell].known)
    return st.recursive(
        st.sampled_from(names) | st.sampled_from(["0", "1", "1e308"]),
        lambda inner: st.one_of(
            st.tuples(inner, st.sampled_from("+-*/@"), inner).map(lambda parts: f"({' '.join(parts)})"),
            inner.map(lambda text: f"({text}).T"),
            inner.map(lambda text: f"({text})^-3"),
            inner.map(lambda text: f"({text})[1:]"),
            st.tuples(st.sampled_from(["exp", "log", "sqrt", "softmax", "diag", "sum"]), inner).map(
                lambda parts: f"{parts[0]}({parts[1]})"
            ),
            st.tuples(inner, inner).map(lambda parts: f"outer({parts[0]}, {parts[1]})"),
            st.tuples(inner, inner).map(lambda parts: f"[{parts[0]}; {parts[1]}]"),
        ),
        max_leaves=6,
    )


@settings(max_examples=60, deadline=None)
@given(st.data(), st.sampled_from(CELLS))
def test_any_expression_gets_a_verdict_and_a_repair_that_is_right(data: st.DataObject, cell: str) -> None:
    target = data.draw(st.sampled_from(DESCRIBED[cell].gradients))
    report = judged_or_refused(cell, [f"{target} = {data.draw(trees(cell))}"])
    if report is not None and report.verdicts[0].repair:
        assert judge_gradients(cell, [report.verdicts[0].repair]).right


HOSTILE = {
    "a megabyte": ["dc = " + "c+" * 500_000 + "c"],
    "a megabyte of lines": ["dc = c\n" * 150_000],
    "deep brackets": ["dc = " + "(" * 900 + "c" + ")" * 900],
    "deep stacks": ["dc = " + "[" * 900 + "c" + "]" * 900],
    "deep calls": ["dc = " + "tanh(" * 39 + "c" + ")" * 39],
    "many minus signs": ["dc = " + "-" * 1900 + "c"],
    "many transposes": ["dc = c" + ".T" * 190],
    "a long sum": ["dc = " + "+".join(["c*a"] * 49)],
    "a long product": ["dc = " + "*".join(["c"] * 99)],
    "a tower": ["dc = c^6^6^6^6^6^6^6^6"],
    "a huge power": ["dc = c^999999999999999999"],
    "a huge number": ["dc = 1e99999 * c"],
    "helpers that double": ["h0 = c + a", *(f"h{i} = h{i - 1} * h{i - 1}" for i in range(1, 80)), "dc = h79"],
    "stacks that grow": ["h0 = [c;c]", *(f"h{i} = [{';'.join([f'h{i - 1}'] * 8)}]" for i in range(1, 20)), "dc = h19"],
    "a hundred wrong lines": ["dc = " + "+".join(["c*a"] * 45)] * 100,
    "attributes": ["dc = c.__class__.__mro__"],
    "dunder names": ["dc = __builtins__"],
    "import": ["dc = __import__('os').system('true')"],
    "lambda": ["dc = (lambda: c)()"],
    "full-width letters": ["dc = ｅｖａｌ(c)"],
    "a right-to-left mark": ["dc = c \u202e+ a"],
    "a null": ["dc = c\x00"],
    "a lone surrogate": ["dc = \ud800"],
    "format braces": ["dc = {0.__class__}"],
    "subscripts": ["dc = c_{{}}"],
    "expanding letters": ["dc = " + "ﷺ" * 39],
    "other digits": ["dc = ٣ * c"],
    "superscript tower": ["dc = c²²²²²²"],
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_lines_are_judged_wrong_or_refused_in_time(kind: str) -> None:
    report = judged_or_refused("lstm", HOSTILE[kind])
    assert report is None or not report.right
