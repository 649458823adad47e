"""What a person writes in a file to have a small case worked out; of attention: vectors, three matrices, and how."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, field_validator

from lemma.errors import SpecError
from lemma.looking.worked.mistakes import misplaced, mistakes
from lemma.spec.base import Spec

Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Vector = Annotated[tuple[Number, ...], Field(min_length=1, max_length=100)]
Rows = Annotated[tuple[Vector, ...], Field(min_length=1, max_length=100)]
Vectors = Annotated[dict[str, Vector], Field(min_length=1, max_length=100)]
MOST_WORDS = 100
"""A longer sentence is no small case: its tables could not be read."""


class Case(Spec):
    """What every case has in common."""

    title: str = ""
    """What the case shows."""

    @classmethod
    def read(cls, words: Mapping[str, Any], where: str) -> Self:
        """Check a case as a person wrote it; what does not fit is said in the words of the file."""
        found = misplaced(words, where, cls.known_words())
        if found:
            raise SpecError(found)
        try:
            return cls.model_validate(words)
        except ValidationError as error:
            raise SpecError(mistakes(error, words, where, cls.known_words())) from None


class Attending(Case):
    """What attention and cross-attention have in common."""

    focus: tuple[str, ...] = ()
    """The words, or named vectors, whose row of arithmetic is shown."""
    scaled: bool = True
    """Whether q·k is divided by the square root of the key's length."""
    apply: Literal["W x", "x W"] = "W x"
    """How a matrix is written: with a row for each output, or with a row for each input."""
    W_Q: Rows
    """The query map."""
    W_K: Rows
    """The key map."""
    W_V: Rows
    """The value map."""

    @field_validator("focus", mode="before")
    @classmethod
    def _one_focus(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value


class AttentionCase(Attending):
    """Sentences whose words look at each other."""

    sentences: Annotated[tuple[str, ...], Field(min_length=1, max_length=20)]
    """Each a text whose words stand between white space."""
    passes: Annotated[int, Field(strict=True, ge=1, le=50)] = 1
    """How often attention is applied; the outputs of one pass are the encodings of the next."""
    mask: Literal["none", "causal"] = "none"
    """Whether later words are hidden."""
    vectors: dict[str, Vector] = Field(default_factory=dict)
    """The encoding of each word."""
    other_words: Vector | None = None
    """The encoding of every word that is not listed."""

    @field_validator("sentences", mode="before")
    @classmethod
    def _one_sentence(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value


class CrossCase(Attending):
    """Named vectors that look at other named vectors."""

    queries: Vectors
    """The vectors that look."""
    source: Vectors
    """The vectors that are looked at."""
