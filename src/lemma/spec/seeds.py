"""The seeds of a study: one run is made with each."""

from typing import Annotated, Any

from pydantic import BeforeValidator, Field


def counted_seeds(value: Any) -> Any:
    """A number stands for so many seeds, from 1 on; a list for just these.

    >>> counted_seeds(3), counted_seeds([7])
    ((1, 2, 3), (7,))
    """
    if isinstance(value, bool) or not isinstance(value, (int, list, tuple)):
        return value
    if not value or (isinstance(value, int) and value < 0):
        raise ValueError(f"study.seeds = {value!r}: at least one seed is needed, as in seeds=3 or seeds=[7].")
    seeds = tuple(range(1, value + 1)) if isinstance(value, int) else tuple(value)
    if len({repr(seed) for seed in seeds}) < len(seeds):
        raise ValueError(f"study: seeds = {list(seeds)} must hold none twice.")
    return seeds


Seeds = Annotated[tuple[Annotated[int, Field(ge=0)], ...], BeforeValidator(counted_seeds), Field(min_length=1)]
