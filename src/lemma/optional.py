"""Libraries that not everyone needs."""

from importlib import import_module
from typing import Any

from lemma.errors import InputError


def import_optional(module: str, package: str, feature: str) -> Any:
    """Import a library where it is first needed; say how to install it if it is missing."""
    try:
        return import_module(module)
    except ImportError:
        raise InputError(f"{feature} needs {package}, which is not installed here: pip install {package}") from None
