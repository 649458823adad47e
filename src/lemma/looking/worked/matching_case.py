"""What a person writes in a file to have images and sentences matched by hand: their vectors and two maps."""

from typing import Annotated, Any

from pydantic import Field, field_validator

from lemma.looking.worked.cases import Case, Rows

Names = Annotated[tuple[str, ...], Field(max_length=100)]


class MatchingCase(Case):
    """Images and sentences, each a row of numbers, and the maps that take both to one space."""

    I: Rows  # noqa: E741  (the problem's own letter)
    """The images, a row each."""
    T: Rows
    """The sentences, a row each."""
    W_i: Rows
    """The images' map: a row for each number of an image, a column for each number of the shared space."""
    W_t: Rows
    """The sentences' map, with as many columns."""
    image_names: Names = ()
    """What the images are called; image 1, image 2 … if no names are given."""
    sentence_names: Names = ()
    """What the sentences are called."""
    focus: tuple[str, ...] = ()
    """The images whose arithmetic is shown; the first few if none is named."""

    @field_validator("focus", "image_names", "sentence_names", mode="before")
    @classmethod
    def _one_name(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value
