"""Libraries that not everyone needs."""

from importlib import import_module
from typing import Any

from lemma.errors import InputError


def import_optional(module: str, package: str, feature: str, requirement: str = "") -> Any:
    """Import and return an optional module; if it is missing, raise an InputError that says how to install it.

    The message begins with the `feature`, names the `package` and, if pip calls it otherwise, the `requirement`.
    """
    try:
        return import_module(module)
    except ImportError:
        install = f"pip install {requirement or package}"
        raise InputError(f"{feature} needs {package}, which is not installed here: {install}") from None
