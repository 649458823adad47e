"""Images with captions: where they come from and what is held out."""

from pydantic import Field

from lemma.spec.base import Spec
from lemma.spec.data import BytePairs, TokenizerSpec


class ImagesSpec(Spec):
    """Pictures, each with one caption or several."""

    images: str
    """Pictures by name (emoji, emoji-openmoji), or a folder of pictures with a table of captions in it."""
    captions: str | None = None
    """The CSV, TSV or JSONL table of captions; if unset, the only table in the folder."""
    image: str | None = None
    """The column of the pictures' file names; if unset, one called so, or the first."""
    caption: str | None = None
    """The column of the captions; if unset, one called so, or the second."""
    tokenizer: TokenizerSpec = BytePairs()
    """How captions become tokens."""
    held_out: float = Field(default=0.1, gt=0, lt=0.5)
    """The share of the pictures held out for validation, and as many again for the test."""
