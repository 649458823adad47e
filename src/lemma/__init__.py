"""Lemma: a workbench for language models in which the mathematics and the machine agree.

>>> import lemma
>>> run = lemma.train("lstm", text="shakespeare", out="runs/a")  # doctest: +SKIP
>>> print(lemma.evaluate("runs/a"))  # doctest: +SKIP
>>> print(lemma.generate("runs/a", prompt="The"))  # doctest: +SKIP
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = [
    "adapt",
    "check",
    "choose",
    "corpora",
    "count",
    "evaluate",
    "generate",
    "load",
    "look",
    "resume",
    "search",
    "serve",
    "study",
    "train",
]

if TYPE_CHECKING:
    from lemma.api import (
        adapt,
        check,
        choose,
        corpora,
        count,
        evaluate,
        generate,
        load,
        look,
        resume,
        search,
        serve,
        study,
        train,
    )

ROOMS = {
    "spec",
    "data",
    "report",
    "layers",
    "models",
    "adaptation",
    "runs",
    "hub",
    "generation",
    "tasks",
    "training",
    "counting",
    "checking",
    "inspection",
    "retrieval",
    "studies",
    "serving",
    "api",
    "errors",
}


def __getattr__(name: str) -> Any:
    """Import the verbs and the rooms when they are first asked for: `import lemma` itself is light."""
    if name in __all__:
        return getattr(import_module("lemma.api"), name)
    if name in ROOMS:
        return import_module(f"lemma.{name}")
    raise AttributeError(f"module 'lemma' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *ROOMS})
