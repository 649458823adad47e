"""Data that come as examples of their own: pairs of texts, and texts with labels."""

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from lemma.spec.base import Spec
from lemma.spec.data import BytePairs, DataSpec, TokenizerSpec
from lemma.spec.graph import GraphSpec
from lemma.spec.images import ImagesSpec
from lemma.spec.parser import TreebankSpec


class PairsSpec(Spec):
    """Pairs of texts, each a source and its target: where they come from and what is held out."""

    pairs: str
    """Pairs by name, or a TSV, CSV or JSONL file of sources and targets."""
    source: str | None = None
    """The column of the sources; if unset, one called so, or the first."""
    target: str | None = None
    """The column of the targets; if unset, one called so, or the second."""
    tokenizer: TokenizerSpec = BytePairs(vocabulary=4096)
    """How texts become tokens; one tokenizer for both sides."""
    held_out: float = Field(default=0.02, gt=0, lt=0.5)
    """The share of the sources held out for validation, and as many again for the test."""


class LabelsSpec(Spec):
    """Texts with labels: where they come from and what is held out."""

    labels: str
    """Labelled texts by name, or a CSV, TSV or JSONL file of texts and labels."""
    text: str | None = None
    """The column of the texts; if unset, one called so, or the first of two."""
    label: str | None = None
    """The column of the labels; if unset, one called so, or the second of two."""
    tokenizer: TokenizerSpec = BytePairs()
    """How texts become tokens."""
    held_out: float = Field(default=0.1, gt=0, lt=0.5)
    """The share of the texts held out for validation, and as many again for the test."""
    parser: str | None = None
    """The run of the parser that draws the texts' trees, for a body that reads trees."""
    limit: int | None = Field(default=None, ge=2)
    """Learn from so many labelled texts only, drawn by the seed 0; all of them if unset."""


AnyDataSpec = DataSpec | TreebankSpec | PairsSpec | LabelsSpec | ImagesSpec | GraphSpec
KINDS: dict[str, type[AnyDataSpec]] = {
    "treebank": TreebankSpec,
    "pairs": PairsSpec,
    "labels": LabelsSpec,
    "images": ImagesSpec,
    "graph": GraphSpec,
    "text": DataSpec,  # last, since labelled texts have a column of that name
}


def read_data(words: Mapping[str, Any], where: str) -> AnyDataSpec:
    """Read the words of any kind of data; the word that names them says which kind it is."""
    kind = next((kind for name, kind in KINDS.items() if name in words), DataSpec)
    return kind.read(words, where)
