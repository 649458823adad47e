"""From the names a person gives to files and to the parts of them that are read."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lemma.data.corpora import CORPORA
from lemma.data.library import corpus_files
from lemma.data.progress import Progress
from lemma.data.reading import exists, open_text
from lemma.data.sections import Splits
from lemma.data.splitting import hold_out
from lemma.errors import DataError, unknown

Part = tuple[Sequence[Path], Splits]
"""Some files, and what is read of them."""


@dataclass(frozen=True)
class Source:
    """The files that were named, in the order in which their sums are joined, and what is read of them."""

    files: tuple[Path, ...]
    splits: Splits
    about: str


def training_source(names: Sequence[str], held_out: float, progress: Progress | None = None) -> Source:
    """The named text divided for training: a corpus as it says itself, one's own files by `held_out`.

    Corpora and files may be mixed; each split then begins with the corpora.
    """
    corpora, files = _sort(names)
    parts = [_divided(name, progress) for name in corpora]
    if files:
        parts.append((files, hold_out([open_text(path) for path in files], held_out)))
    return _join(parts, [*corpora, *map(str, files)])


def whole_source(names: Sequence[str], progress: Progress | None = None) -> Source:
    """The named text as one split called `text`: of a corpus its test part (else validation), of a file all."""
    corpora, files = _sort(names)
    parts: list[Part] = []
    said: list[str] = []
    for name in corpora:
        paths, splits = _divided(name, progress)
        split = "test" if "test" in splits else "validation"
        parts.append((paths, {"text": splits[split]}))
        said.append(f"{name} ({split})")
    if files:
        parts.append((files, {"text": [open_text(path) for path in files]}))
    return _join(parts, [*said, *map(str, files)])


def _divided(name: str, progress: Progress | None) -> Part:
    paths = corpus_files(CORPORA[name], progress)
    return paths, CORPORA[name].divide(paths)


def _sort(names: Sequence[str]) -> tuple[list[str], list[Path]]:
    """Tell corpora from files, and refuse what is neither or is named twice."""
    corpora = [name for name in names if name in CORPORA]
    files = [Path(name) for name in names if name not in CORPORA]
    for path in files:
        if path.name == str(path) and not path.suffix and not exists(path):
            raise DataError(unknown("text", str(path), CORPORA) + " Or give the path of a text file.")
    name, count = Counter([*corpora, *(str(path.resolve()) for path in files)]).most_common(1)[0]
    if count > 1:
        raise DataError(f"{name} is given twice, so that held-out text would be trained on too. Name it once.")
    return corpora, files


def _join(parts: Sequence[Part], names: Sequence[str]) -> Source:
    splits: Splits = {}
    for _, divided in parts:
        for split, sections in divided.items():
            splits.setdefault(split, []).extend(sections)
    about = ", ".join(names) if len(names) <= 3 else f"{names[0]} and {len(names) - 1} more"
    return Source(tuple(path for files, _ in parts for path in files), splits, about)
