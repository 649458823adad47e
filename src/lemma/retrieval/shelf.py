"""An index opened for a search: brought up to date with its pictures, or as it stands."""

from dataclasses import dataclass
from pathlib import Path

from lemma.data import Progress, data_home
from lemma.data.hashing import text_sum
from lemma.errors import DataError, RunError
from lemma.retrieval.embedding import Embedder
from lemma.retrieval.index import Index
from lemma.retrieval.pictures import Pictures, open_pictures
from lemma.retrieval.result import Counts
from lemma.retrieval.updating import update_index


@dataclass(frozen=True)
class Shelf:
    """An index with the pictures that it is of, if they are still there, and what was done for it."""

    index: Index
    pictures: Pictures | None
    counts: Counts
    notes: tuple[str, ...] = ()


def open_shelf(
    embedder: Embedder, images: str | Path | None, place: Path | None, progress: Progress | None = None
) -> Shelf:
    """Bring the index of some pictures up to date; without any, take the one in `place` as it stands."""
    if images is None:
        assert place is not None
        return _standing(embedder, place)
    pictures = open_pictures(images, progress)
    done = update_index(place or usual_place(embedder, pictures), embedder, pictures, progress)
    broken = tuple((entry.name, entry.broken) for entry in done.index.broken)
    if not len(done.index):
        why = f": {broken[0][0]}: {broken[0][1]}" if broken else ""
        raise DataError(f"{pictures.name}: there is no picture to search in it ({len(broken)} broken{why}).")
    counts = Counts(len(done.index), done.new, done.removed, broken)
    return Shelf(done.index, pictures, counts, (done.note,) if done.note else ())


def usual_place(embedder: Embedder, pictures: Pictures) -> Path:
    """Where an index is kept unless another place is named: in the data home, by run and folder."""
    return data_home() / "indexes" / text_sum(f"{embedder.made_by(pictures.framed)} {pictures.name}")[:32]


def _standing(embedder: Embedder, place: Path) -> Shelf:
    index = Index.open(place)
    if index.head.run.partition(" ")[0] != embedder.hash:
        raise RunError(
            f"{place} holds vectors of another run than {embedder.run.path}. Search it with the run that made it; or "
            f"make it anew: lemma search {embedder.run.path} --index {place} --images {index.head.pictures}"
        )
    if not len(index):
        raise DataError(f"{place}: the index holds no picture. To fill it: --images FOLDER.")
    broken = tuple((entry.name, entry.broken) for entry in index.broken)
    return Shelf(index, _still_there(index), Counts(len(index), broken=broken))


def _still_there(index: Index) -> Pictures | None:
    """The pictures of an index, if they can be opened; it can be searched without them."""
    try:
        return open_pictures(index.head.pictures)
    except (DataError, OSError):
        return None
