"""Which text a model learns, and how it is cut into tokens."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from lemma.errors import unknown
from lemma.spec.base import Letter, Spec


class Characters(Spec):
    """Every Unicode character of the training text is a token."""

    kind: Literal["characters"] = "characters"


class Words(Spec):
    """Words between white space; a line's end is `<eos>`, a rare or unseen word `<unk>`."""

    kind: Literal["words"] = "words"
    minimum_count: int = Field(default=1, ge=1)
    """Words seen less often in the training text become `<unk>`."""
    vocabulary: Annotated[int | None, Field(ge=3), Letter("V")] = None
    """The largest size of the vocabulary, `<unk>` and `<eos>` included; no limit if unset."""


class BytePairs(Spec):
    """Byte-level byte-pair encoding: frequent sequences become tokens, and any string survives."""

    kind: Literal["byte-pairs"] = "byte-pairs"
    vocabulary: Annotated[int, Field(ge=258), Letter("V")] = 1024
    """Size of the vocabulary: 256 bytes, `<eos>`, and as many merges as the text yields."""


KINDS = {"characters": Characters, "words": Words, "byte-pairs": BytePairs}


def _from_name(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    if value not in KINDS:
        raise ValueError(unknown("tokenizer", value, KINDS))
    return {"kind": value}


TokenizerSpec = Annotated[Characters | Words | BytePairs, Field(discriminator="kind"), BeforeValidator(_from_name)]


class DataSpec(Spec):
    """The text of a run: where it comes from, how it is cut, what is held out."""

    text: tuple[str, ...] = Field(min_length=1)
    """Corpora by name, or text files; files are read in this order."""
    tokenizer: TokenizerSpec = BytePairs()
    """How text becomes tokens: characters, words or byte-pairs."""
    held_out: float = Field(default=0.1, gt=0, lt=1)
    """The share of one's own text held out for validation: its end, cut at a line."""
