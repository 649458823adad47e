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
    """Minimum frequency of a word in the training text; rarer words become `<unk>`."""
    vocabulary: Annotated[int | None, Field(ge=3), Letter("V")] = None
    """Maximum size of the vocabulary, `<unk>` and `<eos>` included. Default: no limit."""


class BytePairs(Spec):
    """Byte-level byte-pair encoding (Sennrich et al. 2016): frequent sequences are tokens, any text can be encoded."""

    kind: Literal["byte-pairs"] = "byte-pairs"
    vocabulary: Annotated[int, Field(ge=258), Letter("V")] = 1024
    """Size of the vocabulary: 256 bytes, `<eos>` and the merges; smaller if the text yields fewer merges."""


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
    """Fraction of your own text to hold out as validation split: its end, cut at a line."""
    validation: Files = None
    """Text file or files of the validation split. Default: a held-out fraction."""
    test: Files = None
    """Text file or files of the test split. Default: that of the corpus, or none."""


class ImagesSpec(Spec):
    """Images, each with one or more captions."""

    images: str
    """Images by name (emoji, emoji-openmoji), or a folder of images with a table of captions in it."""
    captions: str | None = None
    """CSV, TSV or JSONL table of captions. Default: the only table in the folder."""
    image: str | None = None
    """Column of the file names. Default: `image`, or the first column."""
    caption: str | None = None
    """Column of the captions. Default: `caption`, or the second column."""
    tokenizer: TokenizerSpec = BytePairs()
    """Tokenizer of the captions."""
    held_out: float = Field(default=0.1, gt=0, lt=0.5)
    """Fraction of the images in the validation split, and in the test split."""
    validation: str | None = None
    """Table of captions whose images are the validation split. Default: a held-out fraction."""
    test: str | None = None
    """Table of captions whose images are the test split. Default: a held-out fraction."""


class TreebankSpec(Spec):
    """Dependency trees: where they come from, and the splits."""

    renamed: ClassVar[Mapping[str, str]] = {"dev": "validation"}
    treebank: str
    """Treebank by name, a CoNLL-U file, or a folder of CoNLL-U files."""
    validation: str | None = None
    """CoNLL-U file of the validation (dev) split. Default: the treebank's own, or held-out sentences."""
    test: str | None = None
    """CoNLL-U file of the test split. Default: the treebank's own, if any."""
    held_out: float = Field(default=0.1, gt=0, lt=1)
    """Fraction of your own sentences to hold out for validation, if there is no validation split."""


def _check_node_count(value: int | str) -> int | str:
    """Return a number of nodes as an integer, and a file name unchanged; numbers below 1 are a ValueError."""
    number = int(value) if isinstance(value, str) and value.isdecimal() else value
    if isinstance(number, int) and number < 1:
        raise ValueError(f"data: {value} nodes are too few. Give a number from 1 on, or a file with one node per line.")
    return number


Nodes = Annotated[int | str, AfterValidator(_check_node_count)]
"""Number of nodes, or a file with one node per line."""


class GraphSource(Spec):
    """A graph whose nodes are classified."""

    graph: str
    """Graph by name (cora, karate, blocks), folder with nodes and edges, table of edges, or node-link JSON."""
    nodes_file: str | None = None
    """Table of nodes (id, label, features) for a table of edges."""
    labelled: Nodes | None = None
    """Training nodes per class, or a file of training nodes. Default: 20 per class, fewer if the graph is small."""
    validation: Nodes = 500
    """Number of validation nodes, or a file with one node per line; fewer if the graph is small."""
    test: Nodes = 1000
    """Number of test nodes, or a file with one node per line; fewer if the graph is small."""
    nodes: int | None = Field(default=None, ge=2)
    """Number of nodes of the generated graph `blocks`."""
    edges: int | None = Field(default=None, ge=1)
    """Number of edges of the generated graph `blocks`."""


class GraphSpec(GraphSource):
    """A graph whose nodes are classified: where it comes from, and its splits."""

    split: int | None = Field(default=None, ge=0)
    """Random seed of the split. Default: the recipe's seed, kept if the run is resumed with another seed."""


class PairsSpec(Spec):
    """Pairs of texts, each a source and its target: where they come from, and the splits."""

    pairs: str
    """Pairs by name, or a TSV, CSV or JSONL file of sources and targets."""
    source: str | None = None
    """Column of the sources. Default: `source`, or the first column."""
    target: str | None = None
    """Column of the targets. Default: `target`, or the second column."""
    tokenizer: TokenizerSpec = BytePairs(vocabulary=4096)
    """Tokenizer of sources and targets."""
    held_out: float = Field(default=0.02, gt=0, lt=0.5)
    """Fraction of the sources in the validation split, and in the test split."""
    validation: str | None = None
    """Table of pairs of the validation split. Default: a held-out fraction."""
    test: str | None = None
    """Table of pairs of the test split. Default: a held-out fraction."""


class LabelledTexts(Spec):
    """Texts with labels."""

    labels: str
    """Labelled texts by name, or a CSV, TSV or JSONL file of texts and labels."""
    text: str | None = None
    """Column of the texts. Default: `text`, or the first of two columns."""
    label: str | None = None
    """Column of the labels. Default: `label`, or the second of two columns."""
    tokenizer: TokenizerSpec = BytePairs()
    """Tokenizer of the texts."""
    held_out: float = Field(default=0.1, gt=0, lt=0.5)
    """Fraction of the texts in the validation split, and in the test split."""
    validation: str | None = None
    """File of texts and labels of the validation split. Default: a held-out fraction."""
    test: str | None = None
    """File of texts and labels of the test split. Default: a held-out fraction."""


class LabelsSpec(LabelledTexts):
    """Texts with labels: where they come from, and the splits."""

    parser: str | None = None
    """Run of the parser that parses the texts, for a body that reads trees."""
    limit: int | None = Field(default=None, ge=2)
    """Maximum number of training examples, drawn with seed 0. Default: all."""


class PretrainedData(Spec):
    """Unknown training data of a pretrained model."""

    pretrained: str
    """Folder, file or name of the model."""
    tokenizer: TokenizerSpec = PretrainedTokenizer()
    """Tokenizer of the model."""


AnyDataSpec = PretrainedData | TreebankSpec | PairsSpec | LabelsSpec | ImagesSpec | GraphSpec | DataSpec
"""Running text is last, since labelled texts have a column called text."""
DATA_SPECS: dict[str, type[AnyDataSpec]] = {next(iter(spec.model_fields)): spec for spec in get_args(AnyDataSpec)}
"""Kinds of data by their first field, which names the source."""


def read_data(settings: Mapping[str, Any], source: str) -> AnyDataSpec:
    """Return the data spec of these settings; its class follows from the setting that names the data, such as `graph`.

    `source` begins error messages.
    """
    kind = next((kind for name, kind in DATA_SPECS.items() if name in settings), DataSpec)
    return kind.read(settings, source)
