"""What a person gives to learn from or to be judged by: one kind of data, with its columns."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lemma.data.corpora import CORPORA, GRAPHS, IMAGES, LABELLED, PAIRED, TREEBANKS
from lemma.errors import SpecError
from lemma.spec.choose import Choice
from lemma.spec.data import AnyDataSpec

Names = str | Path | Sequence[str | Path]
KINDS = ("text", "treebank", "pairs", "labels", "images", "graph")


@dataclass(frozen=True)
class Asked:
    """The data that were named; of the kinds one at most."""

    text: Names | None = None
    treebank: str | Path | None = None
    dev: str | Path | None = None
    pairs: str | Path | None = None
    labels: str | Path | None = None
    images: str | Path | None = None
    graph: str | Path | None = None
    captions: str | Path | None = None
    """The table of captions that belongs to images."""
    nodes: str | Path | None = None
    """The table of nodes that belongs to a graph's table of edges."""
    parser: str | Path | None = None
    """The run of the parser that draws the trees of labelled texts."""
    image_column: str | None = None
    caption_column: str | None = None
    source_column: str | None = None
    target_column: str | None = None
    text_column: str | None = None
    label_column: str | None = None
    limit: int | None = None
    """Of labelled texts, how many to learn from."""

    def __post_init__(self) -> None:
        given = [kind for kind in KINDS if getattr(self, kind) is not None]
        if len(given) > 1:
            raise SpecError(
                f"{' and '.join(given)} are given. One kind of data at a time: text, a treebank, pairs, "
                "labels, images or a graph."
            )
        for column, kind in COLUMNS.items():
            if getattr(self, column) is not None and getattr(self, kind) is None:
                raise SpecError(f"{column} = {getattr(self, column)!r} belongs to {kind}, which are not given.")

    @property
    def kind(self) -> str | None:
        """Which kind of data is given, if any is."""
        return next((kind for kind in KINDS if getattr(self, kind) is not None), None)

    def texts(self) -> list[str]:
        """The texts by name, files from the root, so that a run finds them from anywhere."""
        assert self.text is not None
        names = [self.text] if isinstance(self.text, (str, Path)) else list(self.text)
        return [rooted(name, CORPORA) for name in names]

    def trees(self) -> tuple[str | None, str | None]:
        """The treebank, and the file to validate on."""
        treebank, dev = (None if name is None else rooted(name, TREEBANKS) for name in (self.treebank, self.dev))
        return treebank, dev

    def columns(self, kind: str) -> dict[str, str]:
        """The columns that were named for this kind of data."""
        named = {column: getattr(self, column) for column, owner in COLUMNS.items() if owner == kind}
        return {_word(column, name): _found(column, name) for column, name in named.items() if name is not None}

    def spec(self, chosen: Choice) -> AnyDataSpec:
        """The data spec that goes with a choice of model."""
        match self.kind:
            case "text":
                return chosen.data(self.texts())
            case "treebank":
                treebank, dev = self.trees()
                return chosen.trees(str(treebank), dev)
            case "pairs":
                return chosen.pairs(rooted(self.pairs, PAIRED), **self.columns("pairs"))
            case "labels":
                return chosen.labels(rooted(self.labels, LABELLED), **self.columns("labels"))
            case "images":
                return chosen.images(rooted(self.images, IMAGES), **self.columns("images"))
            case "graph":
                return chosen.graph(rooted(self.graph, GRAPHS), **self.columns("graph"))
        raise SpecError(
            "nothing to learn from is given: text, a treebank for a parser, pairs of texts, labels, images or a graph."
        )


COLUMNS = {
    "source_column": "pairs",
    "target_column": "pairs",
    "text_column": "labels",
    "label_column": "labels",
    "limit": "labels",
    "parser": "labels",
    "captions": "images",
    "image_column": "images",
    "caption_column": "images",
    "nodes": "graph",
}
FILES = ("parser", "captions", "nodes")


def _word(column: str, name: Any) -> str:
    """What the data spec calls it; nodes are a table, or else how many a generated graph has."""
    return "nodes_file" if column == "nodes" and not isinstance(name, int) else column.removesuffix("_column")


def _found(column: str, name: Any) -> Any:
    """A file from the root, so that a run finds it from anywhere."""
    return rooted(name, ()) if column in FILES and not isinstance(name, int) else name


def rooted(name: str | Path | None, known: Collection[str]) -> str:
    """A known name as it is, a file from the root."""
    said = str(name)
    return str(Path(said).resolve()) if said not in known and Path(said).exists() else said
