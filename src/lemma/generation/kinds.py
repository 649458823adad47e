"""Settings of the wrong kind, as temperature="hot", refused before anything is computed with them."""

from typing import Any

from lemma.errors import SpecError


def refuse_type(name: str, value: Any, kind: type, wanted: str) -> None:
    """Refuse a value that is not of a kind; True and False are no numbers.

    >>> refuse_type("temperature", "hot", float, "a number from 0 up")
    Traceback (most recent call last):
    lemma.errors.SpecError: temperature = 'hot' (str) is not a number from 0 up.
    """
    if isinstance(value, bool) or not isinstance(value, kind):
        raise SpecError(f"{name} = {value!r} ({type(value).__name__}) is not {wanted}.")
