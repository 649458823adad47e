"""Lemma: a workbench for language models where the mathematics and the machine agree.

>>> import lemma
>>> run = lemma.train("lstm", text="shakespeare", out="runs/a")  # doctest: +SKIP
>>> print(lemma.evaluate("runs/a"))  # doctest: +SKIP
>>> print(lemma.generate("runs/a", prompt="The"))  # doctest: +SKIP
"""

from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = [
    "adapt",
    "check",
    "count",
    "datasets",
    "evaluate",
    "export",
    "generate",
    "look",
    "search",
    "serve",
    "study",
    "train",
    "verify",
]
"""The verbs, as on the command line; `datasets` is `lemma data`, since `lemma.data` is a package."""
HELPERS = ("choose", "load", "register", "resume")

if TYPE_CHECKING:
    from lemma.api import adapt as adapt
    from lemma.api import check as check
    from lemma.api import count as count
    from lemma.api import datasets as datasets
    from lemma.api import evaluate as evaluate
    from lemma.api import export as export
    from lemma.api import generate as generate
    from lemma.api import load as load
    from lemma.api import look as look
    from lemma.api import register as register
    from lemma.api import resume as resume
    from lemma.api import search as search
    from lemma.api import serve as serve
    from lemma.api import study as study
    from lemma.api import train as train
    from lemma.api import verify as verify
    from lemma.spec.choose import choose as choose

PACKAGES = {module.name for module in iter_modules(__path__)} - {"__main__"}


def __getattr__(name: str) -> Any:
    """Import verbs and packages at first use: `import lemma` itself is light."""
    if name in __all__ or name in HELPERS:
        return getattr(import_module("lemma.api"), name)
    if name in PACKAGES:
        return import_module(f"lemma.{name}")
    raise AttributeError(f"module 'lemma' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *HELPERS, *PACKAGES})
