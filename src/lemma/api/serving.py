"""The verb that serves: runs behind a page and an API."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from lemma.api.asking import generate
from lemma.api.mathematics import count
from lemma.api.seeing import look
from lemma.api.shared import opened
from lemma.errors import InputError

if TYPE_CHECKING:
    from fastapi import FastAPI

    from lemma.runs import Run
    from lemma.web.running import Ready
    from lemma.web.verbs import Verbs


def serve(
    *runs: Path | str | Run,
    host: str = "127.0.0.1",
    port: int = 8000,
    on_ready: Callable[[Ready], object] | None = None,
) -> None:
    """Serve runs until Ctrl-C: a page at the address, and under /v1 the API that OpenAI's clients speak.

    Requests tell runs apart by the names of their folders. `on_ready` is told the address; else stderr is.
    """
    _refuse_without("serve", "fastapi", "uvicorn")
    from lemma.web.running import serve_runs

    serve_runs(runs, _verbs(), host, port, on_ready or partial(print, file=sys.stderr, flush=True))


def application(*runs: Path | str | Run, hosts: Iterable[str] | None = None) -> FastAPI:
    """Give what `serve` serves as an ASGI application, for a server of one's own or a test.

    `hosts` are the names it answers to; every name if none are given.
    """
    _refuse_without("serve", "fastapi")
    from lemma.web.application import application as make

    return make(runs, _verbs(), hosts)


def _verbs() -> Verbs:
    """The verbs as the web room is handed them."""
    from lemma.web.verbs import Verbs

    return Verbs(opened, generate, _kind_of_answer, _attends, _heads_page, _account_page)


def _kind_of_answer(run: Run) -> str:
    """What a run makes of a text; one that answers none says what it is for."""
    kind = {"encoder-decoder": "translation", "classifier": "class"}.get(run.spec.family)
    return kind or (run.model and "prompt")


def _attends(run: Run) -> bool:
    """Whether `look` finds heads in a run: it is tried on a token."""
    try:
        return bool(look(run, text=run.tokenizer.decode([0])))
    except InputError:
        return False


def _heads_page(run: Run, text: str) -> str:
    from lemma.looking.page import page

    return page(look(run, text=text))


def _account_page(run: Run) -> str:
    return count(run.path)._repr_html_()


def _refuse_without(verb: str, *packages: str) -> None:
    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        raise InputError(f"{verb} needs {' and '.join(missing)}, not installed here: pip install 'lemma[serve]'")
