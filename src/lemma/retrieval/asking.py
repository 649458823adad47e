"""What a person may ask of a search, checked: which words go together, and what is missing."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lemma.data import PICTURES, Progress
from lemma.data.images.decoding import pillow
from lemma.data.images.listing import list_pictures
from lemma.errors import InputError, SpecError
from lemma.retrieval.embedding import Embedder
from lemma.retrieval.queries import picture_query, text_queries
from lemma.retrieval.result import SearchResult
from lemma.retrieval.searching import search_shelf, search_texts
from lemma.retrieval.shelf import open_shelf
from lemma.retrieval.texts import checked_texts, read_texts
from lemma.runs import Run

AS_IN = "As in: lemma search RUN --images FOLDER --query 'a red heart'"


@dataclass(frozen=True)
class Wanted:
    """What is looked for, and among what."""

    images: str | Path | None = None
    query: str | Sequence[str] | None = None
    image: str | Path | None = None
    texts: str | Path | Sequence[str] | None = None
    text_column: str | None = None
    k: int = 10
    index: str | Path | None = None
    faiss: bool | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.k, int) or isinstance(self.k, bool) or self.k < 1:
            raise SpecError(f"k = {self.k!r}: how many results, a whole number from 1 on.")
        if (self.query is None) == (self.image is None):
            given = "neither" if self.query is None else "both"
            raise InputError(f"query or image: one of them is looked for, got {given}. {AS_IN}")
        pictures = self.images is not None or self.index is not None
        if self.query is not None and self.texts is not None:
            raise InputError("query and texts: texts are ranked for a picture. Give an image in the query's place.")
        if pictures == (self.texts is not None):
            given = "both" if pictures else "neither"
            raise InputError(f"images (or index) or texts: one of them is searched, got {given}. {AS_IN}")
        if self.text_column is not None and self.texts is None:
            raise InputError("text_column names a column of texts, but no texts are given.")


def search_run(run: Run, wanted: Wanted, progress: Progress | None = None) -> SearchResult:
    """Find the pictures, or the texts, that are nearest to what is wanted."""
    embedder = Embedder(run)
    queries = checked_texts([wanted.query] if isinstance(wanted.query, str) else list(wanted.query or []))
    if wanted.query is not None and not queries:
        raise InputError(f"query: there is none. {AS_IN}")
    assert embedder.towers  # another kind of run is refused before anything is read
    pillow()
    image = None if wanted.image is None else _file(Path(wanted.image))
    with run.folded():
        if wanted.texts is not None:
            assert image is not None
            return search_texts(embedder, image, *_texts(wanted, progress), wanted.k)
        return _search_pictures(embedder, wanted, queries, image, progress)


def _search_pictures(
    embedder: Embedder, wanted: Wanted, queries: Sequence[str], image: Path | None, progress: Progress | None
) -> SearchResult:
    sought = [] if image else text_queries(embedder, queries)
    shelf = open_shelf(embedder, wanted.images, Path(wanted.index) if wanted.index else None, progress)
    if image:
        sought = [picture_query(embedder, image, " framed" in shelf.index.head.run)]
    return search_shelf(embedder, shelf, sought, wanted.k, wanted.faiss)


def _texts(wanted: Wanted, progress: Progress | None) -> tuple[list[str], str]:
    """The texts and where they are from: given as they are, a set's captions, or a file's."""
    if not isinstance(wanted.texts, (str, Path)):
        return checked_texts(list(wanted.texts or []), "text"), "the texts given"
    if str(wanted.texts) in PICTURES:
        listing = list_pictures(str(wanted.texts), progress=progress)
        return [caption for picture in listing.pictures for caption in picture.captions], str(wanted.texts)
    return read_texts(Path(wanted.texts), wanted.text_column), str(wanted.texts)


def _file(path: Path) -> Path:
    if not path.exists():
        raise InputError(f"{path}: there is no such picture. Check the name and the folder it is looked for in.")
    if path.is_dir():
        raise InputError(f"{path} is a folder. Give a picture to look for; a folder is searched by images.")
    return path
