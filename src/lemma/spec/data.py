"""Specs of training data, one per kind."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import AfterValidator, BeforeValidator, Field

from lemma.spec.base import Letter, Spec, kind_validator


class Characters(Spec):
    """Every Unicode character of the training text is a token."""

    kind: Literal["characters"] = "characters"


class Words(Spec):
    """Words separated by white space; the end of a line is `<eos>`, a rare or unseen word `<unk>`."""

    kind: Literal["words"] = "words"
    minimum_count: int = Field(default=1, ge=1)
    """Words that are rarer than this in the training text become `<unk>`."""
    vocabulary: Annotated[int | None, Field(ge=3), Letter("V")] = None
    """Largest size of the vocabulary, `<unk>` and `<eos>` included; no limit if unset."""


class BytePairs(Spec):
    """Byte-level byte-pair encoding (Sennrich et al. 2016): frequent sequences are tokens, any text can be encoded."""

    kind: Literal["byte-pairs"] = "byte-pairs"
    vocabulary: Annotated[int, Field(ge=258), Letter("V")] = 1024
    """Size of the vocabulary: 256 bytes, `<eos>`, and the merges; fewer if the text does not yield as many."""


class PretrainedTokenizer(Spec):
    """The tokenizer of the pretrained model that a run was adapted from, as it is."""

    kind: Literal["pretrained"] = "pretrained"


TrainedTokenizer = Characters | Words | BytePairs
TOKENIZER_SPECS = {"characters": Characters, "words": Words, "byte-pairs": BytePairs}


TokenizerSpec = Annotated[
    Characters | Words | BytePairs | PretrainedTokenizer,
    Field(discriminator="kind"),
    kind_validator("tokenizer", {**TOKENIZER_SPECS, "pretrained": PretrainedTokenizer}),
]


Files = Annotated[tuple[str, ...] | None, BeforeValidator(lambda files: (files,) if isinstance(files, str) else files)]


class DataSpec(Spec):
    """Running text: where it comes from, its tokenizer, the splits."""

    text: tuple[str, ...] = Field(min_length=1)
    """Names of corpora, or text files, read in this order."""
    tokenizer: TokenizerSpec = BytePairs()
    """Tokenizer: characters, words or byte-pairs."""
    held_out: float = Field(default=0.1, gt=0, lt=1)
    """The share of your own text that is the validation split: its end, cut at a line."""
    validation: Files = None
    """One or more text files as validation split; a share is held out if unset."""
    test: Files = None
    """One or more text files as test split; no such split if unset, unless a corpus has its own."""


class ImagesSpec(Spec):
    """Images, each with one or more captions."""

    images: str
    """Images by name (emoji, emoji-openmoji), or a folder of images with a table of captions in it."""
    captions: str | None = None
    """The CSV, TSV or JSONL table of captions; the only table in the folder if unset."""
    image: str | None = None
    """The column of the file names; if unset, the one called image, or the first."""
    caption: str | None = None
    """The column of the captions; if unset, the one called caption, or the second."""
    tokenizer: TokenizerSpec = BytePairs()
    """Tokenizer of the captions."""
    held_out: float = Field(default=0.1, gt=0, lt=0.5)
    """The share of the images in the validation split, and in the test split."""
    validation: str | None = None
    """A table of captions whose images are the validation split; a share is held out if unset."""
    test: str | None = None
    """A table of captions whose images are the test split; a share is held out if unset."""


class TreebankSpec(Spec):
    """Dependency trees: where they come from, and the splits."""

    renamed: ClassVar[Mapping[str, str]] = {"dev": "validation"}
    treebank: str
    """A treebank by name, a CoNLL-U file, or a folder of them."""
    validation: str | None = None
    """A CoNLL-U file as validation split, also called dev; if unset, the treebank's own, or sentences held out."""
    test: str | None = None
    """A CoNLL-U file as test split; if unset, the treebank's own, if it has one."""
    held_out: float = Field(default=0.1, gt=0, lt=1)
    """The share of your own sentences in the validation split, where it is not given."""


def _check_node_count(value: int | str) -> int | str:
    """Return a number of nodes as an integer, and a file name unchanged; numbers below 1 are a ValueError."""
    number = int(value) if isinstance(value, str) and value.isdecimal() else value
    if isinstance(number, int) and number < 1:
        raise ValueError(f"data: {value} nodes are too few. Give a number from 1 on, or a file with one node per line.")
    return number


Nodes = Annotated[int | str, AfterValidator(_check_node_count)]
"""A number of nodes, or a file that names them, one node per line."""


class GraphSource(Spec):
    """A graph whose nodes are classified."""

    graph: str
    """A graph by name (cora, karate, blocks), a folder with nodes and edges, a table of edges, or a node-link JSON."""
    nodes_file: str | None = None
    """The table of nodes (id, label, features) that belongs to a table of edges."""
    labelled: Nodes | None = None
    """Training nodes per class, or a file of training nodes; 20 per class if unset, fewer where the graph is small."""
    validation: Nodes = 500
    """Nodes in the validation split, or a file with one node per line; fewer where the graph is small."""
    test: Nodes = 1000
    """Nodes in the test split, or a file with one node per line; fewer where the graph is small."""
    nodes: int | None = Field(default=None, ge=2)
    """Number of nodes of the generated graph `blocks`."""
    edges: int | None = Field(default=None, ge=1)
    """Number of edges of the generated graph `blocks`."""


class GraphSpec(GraphSource):
    """A graph whose nodes are classified: where it comes from, and its splits."""

    split: int | None = Field(default=None, ge=0)
    """Random seed of the split; the recipe's seed if unset, which stays when the run is resumed with another one."""


class PairsSpec(Spec):
    """Pairs of texts, each a source and its target: where they come from, and the splits."""

    pairs: str
    """Pairs by name, or a TSV, CSV or JSONL file of sources and targets."""
    source: str | None = None
    """The column of the sources; if unset, the one called source, or the first."""
    target: str | None = None
    """The column of the targets; if unset, the one called target, or the second."""
    tokenizer: TokenizerSpec = BytePairs(vocabulary=4096)
    """Tokenizer of both sides."""
    held_out: float = Field(default=0.02, gt=0, lt=0.5)
    """The share of the sources in the validation split, and in the test split."""
    validation: str | None = None
    """A table of pairs as validation split; a share is held out if unset."""
    test: str | None = None
    """A table of pairs as test split; a share is held out if unset."""


class LabelledTexts(Spec):
    """Texts with labels."""

    labels: str
    """Labelled texts by name, or a CSV, TSV or JSONL file of texts and labels."""
    text: str | None = None
    """The column of the texts; if unset, the one called text, or the first of two."""
    label: str | None = None
    """The column of the labels; if unset, the one called label, or the second of two."""
    tokenizer: TokenizerSpec = BytePairs()
    """Tokenizer of the texts."""
    held_out: float = Field(default=0.1, gt=0, lt=0.5)
    """The share of the texts in the validation split, and in the test split."""
    validation: str | None = None
    """A file of texts and labels as validation split; a share is held out if unset."""
    test: str | None = None
    """A file of texts and labels as test split; a share is held out if unset."""


class LabelsSpec(LabelledTexts):
    """Texts with labels: where they come from, and the splits."""

    parser: str | None = None
    """The run of the parser that parses the texts, for a body that reads trees."""
    limit: int | None = Field(default=None, ge=2)
    """Maximum number of training examples, drawn with seed 0; all of them if unset."""


class PretrainedData(Spec):
    """Unknown training data of a pretrained model."""

    pretrained: str
    """The folder, file or name of the model."""
    tokenizer: TokenizerSpec = PretrainedTokenizer()
    """Its own tokenizer."""


AnyDataSpec = PretrainedData | TreebankSpec | PairsSpec | LabelsSpec | ImagesSpec | GraphSpec | DataSpec
"""Running text is last, since labelled texts have a column called text."""
DATA_SPECS: dict[str, type[AnyDataSpec]] = {next(iter(spec.model_fields)): spec for spec in get_args(AnyDataSpec)}
"""The kinds of data by their first field, which names the source."""


def read_data(settings: Mapping[str, Any], source: str) -> AnyDataSpec:
    """Return the data spec of these settings; its class follows from the setting that names the data, such as `graph`.

    `source` begins error messages.
    """
    kind = next((kind for name, kind in DATA_SPECS.items() if name in settings), DataSpec)
    return kind.read(settings, source)
