"""What every spec is: frozen, closed to unknown words, readable from TOML and from `key=value`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic.fields import FieldInfo

from lemma.errors import SpecError, unknown


@dataclass(frozen=True)
class Letter:
    """The textbook's letter for a field: a second name for it, and its symbol in formulas."""

    name: str


class Spec(BaseModel):
    """A frozen description. The sentence under each field is its help text everywhere."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)

    @classmethod
    def letters(cls) -> dict[str, str]:
        """Map each textbook letter to the field it stands for.

        >>> from lemma.spec import FeedForward
        >>> FeedForward.letters()["d_h"]
        'hidden'
        """
        return {letter: name for name, field in cls.model_fields.items() if (letter := letter_of(field))}

    @classmethod
    def known_words(cls) -> list[str]:
        """Every word that may be set: field names, each with its letter beside it."""
        return [word for name, field in cls.model_fields.items() for word in (name, letter_of(field)) if word]

    @model_validator(mode="before")
    @classmethod
    def _read_letters(cls, data: Any) -> Any:
        if not isinstance(data, Mapping):
            return data
        letters, named = cls.letters(), {}
        for word, value in data.items():
            name = letters.get(word, word)
            if name in named:
                raise ValueError(f"{name} is given twice, once as '{word}'")
            named[name] = value
        return named

    @classmethod
    def read(cls, words: Mapping[str, Any], where: str) -> Self:
        """Validate `words`; a mistake becomes a SpecError that starts with `where`."""
        try:
            return cls.model_validate(words)
        except ValidationError as error:
            raise SpecError(explain(error, where, cls.known_words())) from None

    def replace(self, **words: Any) -> Self:
        """Return a copy with some words changed, validated like a new one."""
        letters = type(self).letters()
        named = {letters.get(word, word): value for word, value in words.items()}
        return type(self).read({**self.to_dict(), **named}, where=getattr(self, "family", type(self).__name__.lower()))

    def sized(self, sizes: Mapping[str, int]) -> Self:
        """Return a copy of the sizes that the data have: vocabulary, relations, classes."""
        return self.replace(**sizes)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, ready for TOML or JSON; what is unset (None) is left out."""
        return self.model_dump(mode="json", exclude_none=True)


def letter_of(field: FieldInfo) -> str | None:
    """Return the field's textbook letter, if it has one."""
    return next((mark.name for mark in field.metadata if isinstance(mark, Letter)), None)


def explain(error: ValidationError, where: str, known: list[str]) -> str:
    """Turn pydantic's report into one line a mistake: where, what was got, what was expected."""
    return "\n".join(_explain_one(mistake, where, known) for mistake in error.errors())


def _explain_one(mistake: Any, where: str, known: list[str]) -> str:
    path = ".".join([where, *(str(step) for step in mistake["loc"])]).strip(".")
    if mistake["type"] == "extra_forbidden":
        return unknown(f"{where}: the word", str(mistake["loc"][-1]), known)
    if mistake["type"] == "value_error":
        return str(mistake["ctx"]["error"])
    return f"{path} = {mistake['input']!r}: {mistake['msg'][0].lower()}{mistake['msg'][1:]}."
