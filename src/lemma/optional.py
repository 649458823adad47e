"""Libraries that not everyone needs."""

from importlib import import_module
from typing import Any

from lemma.errors import InputError


def import_optional(module: str, package: str, feature: str, requirement: str = "") -> Any:
    """Import a library where it is first needed; if it is missing, say how to install it, by `requirement` if given."""
    try:
        return import_module(module)
    except ImportError:
        install = f"pip install {requirement or package}"
        raise InputError(f"{feature} needs {package}, which is not installed here: {install}") from None
