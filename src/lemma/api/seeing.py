"""The verb that shows: look."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lemma.api.shared import opened
from lemma.errors import SpecError, unknown

if TYPE_CHECKING:
    from lemma.looking import Heads, ParsedText
    from lemma.runs import Run


def look(what: Path | str | Run, *given: Any, **settings: Any) -> Any:
    """See what a model does, or a small case worked step by step.

    `look("runs/a", text="the cat sat")` shows every attention head; `look("parse", "runs/a", text=…)` a tree;
    `look("attention", "mine.toml")`, `look("cross", "mine.toml")`, `look("bpe", "abbc abb abc abb")` and
    `look("lstm", "mine.toml", backward=True)` work a small case by hand, every step shown.
    """
    if isinstance(what, (str, Path)) and str(what) not in _VIEWS and not Path(what).exists():
        raise SpecError(unknown("look", str(what), _VIEWS) + " Or give the folder of a run.")
    viewer = _VIEWS.get(str(what)) or partial(_look_heads, what)
    return viewer(given, settings)


Given, Settings = tuple[Any, ...], dict[str, Any]


def _look_heads(run: Path | str | Run, given: Given, settings: Settings) -> Heads:
    from lemma.looking import look_at_run

    return viewed(look_at_run, (opened(run), *given), settings)


def _look_worked(case: str, given: Given, settings: Settings) -> Any:
    from lemma.looking import worked

    return viewed(getattr(worked, case), given, settings)


def _look_parse(given: Given, settings: Settings) -> ParsedText:
    from lemma.looking import parse_text

    if not given:
        raise SpecError("look parse: a run is expected, as in look('parse', 'runs/parser', text='I sleep').")
    return viewed(parse_text, (opened(given[0]), *given[1:]), settings)


def viewed(view: Callable[..., Any], given: Given, settings: Settings) -> Any:
    """Call a view; what does not fit its arguments is said plainly."""
    try:
        inspect.signature(view).bind(*given, **settings)
    except TypeError as error:
        raise SpecError(f"look: {error}. As in: look('runs/a', text='the cat sat')") from None
    return view(*given, **settings)


_VIEWS: dict[str, Callable[..., Any]] = {
    "attention": partial(_look_worked, "attention_by_hand"),
    "bpe": partial(_look_worked, "trace_byte_pairs"),
    "cross": partial(_look_worked, "cross_by_hand"),
    "graph": partial(_look_worked, "graph_by_hand"),
    "lstm": partial(_look_worked, "lstm_by_hand"),
    "parse": _look_parse,
}
