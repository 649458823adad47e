"""Which data a model is trained on, one spec per kind of data."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from lemma.spec.base import Letter, Spec
from lemma.spec.plugins import by_name


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


TokenizerSpec = Annotated[Characters | Words | BytePairs, Field(discriminator="kind"), by_name("tokenizer", KINDS)]


class DataSpec(Spec):
    """The text of a run: where it comes from, how it is cut, what is held out."""

    text: tuple[str, ...] = Field(min_length=1)
    """Corpora by name, or text files; files are read in this order."""
    tokenizer: TokenizerSpec = BytePairs()
    """How text becomes tokens: characters, words or byte-pairs."""
    held_out: float = Field(default=0.1, gt=0, lt=1)
    """The share of one's own text held out for validation: its end, cut at a line."""


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


class TreebankSpec(Spec):
    """The trees of a run: where they come from and what is held out."""

    treebank: str
    """A treebank by name, a CoNLL-U file, or a folder of them."""
    dev: str | None = None
    """A CoNLL-U file to validate on; if unset, the treebank's own, or else sentences held out."""
    held_out: float = Field(default=0.1, gt=0, lt=1)
    """The share of one's own sentences held out for validation where no others are given."""


class GraphSpec(Spec):
    """A graph whose nodes are to be classified: where it comes from, and which nodes are learned."""

    graph: str
    """A graph by name (cora, karate, blocks), a folder with nodes and edges, a table of edges, or a node-link JSON."""
    nodes_file: str | None = None
    """The table of nodes (id, label, features) that belongs to a table of edges."""
    labelled: int | None = Field(default=None, ge=1)
    """Nodes of each class that are learned from; 20 if unset, fewer where the graph is small."""
    validation: int = Field(default=500, ge=1)
    """Nodes to validate on; fewer where the graph is small."""
    test: int = Field(default=1000, ge=1)
    """Nodes to judge by at the end; fewer where the graph is small."""
    split: int | None = Field(default=None, ge=0)
    """The seed of the random split; the recipe's seed if unset, and then it stays when the run goes on with another."""
    nodes: int | None = Field(default=None, ge=2)
    """Of the generated graph `blocks`: how many nodes."""
    edges: int | None = Field(default=None, ge=1)
    """Of the generated graph `blocks`: how many edges."""


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
DATA_SPECS: dict[str, type[AnyDataSpec]] = {
    "treebank": TreebankSpec,
    "pairs": PairsSpec,
    "labels": LabelsSpec,
    "images": ImagesSpec,
    "graph": GraphSpec,
    "text": DataSpec,  # last, since labelled texts have a column of that name
}


def read_data(words: Mapping[str, Any], where: str) -> AnyDataSpec:
    """Read the words of any kind of data; the word that names them says which kind it is."""
    kind = next((kind for name, kind in DATA_SPECS.items() if name in words), DataSpec)
    return kind.read(words, where)
