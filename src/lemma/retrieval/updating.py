"""Bringing an index up to date: only pictures that are new or changed are read."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lemma.data.hashing import file_sum
from lemma.data.progress import Progress, counting
from lemma.errors import RunError
from lemma.retrieval.embedding import Embedder
from lemma.retrieval.entries import Entry
from lemma.retrieval.index import Head, Index, is_index
from lemma.retrieval.pictures import Pictures, read_entries
from lemma.retrieval.writing import append, keep, only_updater, refuse_foreign, renamed, start

BLOCK = 256
"""Pictures that are read, embedded and written at once: at most so much work is lost."""


@dataclass(frozen=True)
class Updated:
    """An index that is up to date, and what was done for it."""

    index: Index
    new: int
    removed: int
    note: str = ""
    """Why it was made anew, if it was."""


@dataclass
class Plan:
    """What stays of an index, and what is to be read."""

    kept: list[tuple[int, Entry]] = field(default_factory=list)
    """Rows that stay, each under the entry that it has now."""
    broken: list[Entry] = field(default_factory=list)
    """Broken pictures that have not changed since."""
    fresh: list[Entry] = field(default_factory=list)


def update_index(place: Path, embedder: Embedder, pictures: Pictures, progress: Progress | None = None) -> Updated:
    """Let an index hold the vectors of just these pictures, as they are now; one of another run is made anew."""
    refuse_foreign(place)
    try:
        place.mkdir(parents=True, exist_ok=True)
        with only_updater(place):
            return _update(place, embedder, pictures, progress)
    except OSError as error:
        raise RunError(f"{place}: the index cannot be written: {error}. Choose another place by --index.") from None


def _update(place: Path, embedder: Embedder, pictures: Pictures, progress: Progress | None) -> Updated:
    index, note = _opened(place, embedder, pictures)
    listed = pictures.listed()
    plan = _plan(index, listed, pictures)
    removed = len(index) - len(plan.kept)
    if _differs(index, plan):
        index = keep(index, plan.kept, plan.broken, pictures.name)
    elif index.head.pictures != pictures.name:
        index = renamed(index, pictures.name)
    before = len(index)
    _read_fresh(place, index.head, embedder, pictures, plan.fresh, progress)
    index = Index.open(place)
    return Updated(index, len(index) - before, removed, note)


def _opened(place: Path, embedder: Embedder, pictures: Pictures) -> tuple[Index, str]:
    """The index that stands there, or a new one where it is missing, damaged or another run's."""
    made_by, note = embedder.made_by(pictures.framed), ""
    if is_index(place):
        try:
            index = Index.open(place).read()
            if (index.head.run, index.head.width) == (made_by, embedder.width):
                return index, ""
            note = "the index was another run's, and was made anew"
        except RunError as error:
            note = f"the index was made anew: {error}"
    return start(place, made_by, embedder.width, pictures.name), note


def _plan(index: Index, listed: Sequence[Entry], pictures: Pictures) -> Plan:
    """Sort the pictures: unchanged ones stay where they are, moved and touched ones keep their vectors."""
    now, plan = {entry.name: entry for entry in listed}, Plan()
    gone: dict[tuple[int, str], tuple[int | None, Entry]] = {}
    for row, entry in [*enumerate(index.entries), *((None, entry) for entry in index.broken)]:
        there = now.get(entry.name)
        if there is None or not entry.same_file(there):
            gone[entry.size, entry.sum] = (row, entry)
        else:
            _stay(plan, row, entry)
            del now[entry.name]
    sizes = {size for size, _ in gone}
    for entry in now.values():
        found = gone.pop((entry.size, _sum(pictures, entry)), None) if entry.size in sizes else None
        if found is None:
            plan.fresh.append(entry)
        else:
            _stay(plan, found[0], found[1].found_as(entry))
    plan.kept.sort(key=lambda pair: pair[0])
    return plan


def _stay(plan: Plan, row: int | None, entry: Entry) -> None:
    if row is None:
        plan.broken.append(entry)
    else:
        plan.kept.append((row, entry))


def _sum(pictures: Pictures, entry: Entry) -> str:
    try:
        return file_sum(pictures.path(entry.name))
    except OSError:
        return ""


def _differs(index: Index, plan: Plan) -> bool:
    """Whether what stays is other than what stands."""
    return [entry for _, entry in plan.kept] != list(index.entries) or set(plan.broken) != set(index.broken)


def _read_fresh(
    place: Path,
    head: Head,
    embedder: Embedder,
    pictures: Pictures,
    fresh: Sequence[Entry],
    progress: Progress | None,
) -> None:
    if not fresh:
        return
    advance = counting(progress, "embedding pictures", len(fresh))
    for first in range(0, len(fresh), BLOCK):
        block = fresh[first : first + BLOCK]
        good, pixels, broken = read_entries(pictures, block, embedder.side)
        head = append(place, head, [*good, *broken], embedder.pictures(pixels))
        advance(len(block))
