"""From the name of a treebank, a CoNLL-U file or a folder of them to sentences with trees, divided for training."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from lemma.data.conllu import Sentence, read_conllu
from lemma.data.hashing import files_sum
from lemma.data.lexicon import Lexicon
from lemma.data.library import corpus_files
from lemma.data.progress import Progress
from lemma.data.reading import exists
from lemma.data.treebanks import TREEBANKS
from lemma.data.trees import Trees, encode_trees
from lemma.errors import DataError, unknown
from lemma.spec import TreebankSpec

SUFFIXES = {".conllu", ".conll"}
MARKS = {"train": "train", "dev": "validation", "valid": "validation", "test": "test"}
"""What a file's name says of its split."""

Sentences = tuple[Sentence, ...]


@dataclass(frozen=True)
class TreebankSource:
    """Sentences by split, the SHA-256 of their files, and what they are."""

    splits: Mapping[str, Sentences]
    hash: str
    about: str
    skipped: tuple[str, ...] = ()


@dataclass(frozen=True)
class TreebankData:
    """A treebank ready for training: the lexicon learned from its training part, and its splits."""

    tokenizer: Lexicon
    source: TreebankSource

    @property
    def hash(self) -> str:
        """The SHA-256 of the files."""
        return self.source.hash

    @property
    def about(self) -> str:
        """What it is, in words."""
        return self.source.about

    @property
    def splits(self) -> tuple[str, ...]:
        """The names of the splits."""
        return tuple(self.source.splits)

    def sentences(self, split: str) -> Sentences:
        """The sentences of a split."""
        if split not in self.source.splits:
            raise DataError(f"there is no split '{split}' in {self.about}. It has: {', '.join(self.splits)}.")
        return self.source.splits[split]

    def tokens(self, split: str) -> Trees:
        """The sentences of a split as numbers."""
        return encode_trees(self.sentences(split), self.tokenizer)

    def sizes(self) -> dict[str, int]:
        """What a model has to know of the treebank's size."""
        return {"vocabulary": self.tokenizer.vocabulary, "relations": len(self.tokenizer.relations)}


def prepare_treebank(
    spec: TreebankSpec,
    *,
    minimum_count: int,
    buckets: int,
    lexicon: Lexicon | None = None,
    progress: Progress | None = None,
) -> TreebankData:
    """Read a treebank for training, with a lexicon learned from its training sentences unless one is given."""
    source = training_trees(spec, progress)
    return TreebankData(lexicon or Lexicon.learn(source.splits["train"], minimum_count, buckets), source)


def training_trees(spec: TreebankSpec, progress: Progress | None = None) -> TreebankSource:
    """Read a treebank divided as it says itself, or else with evenly spaced sentences held out."""
    files = _files(spec.treebank, progress)
    if spec.dev is not None:
        files = {**files, "validation": [_conllu(Path(spec.dev))]}
    source = _read(files, spec.treebank)
    if "validation" in source.splits:
        return source
    train, held = hold_out_sentences(source.splits["train"], spec.held_out)
    return replace(source, splits={**source.splits, "train": train, "validation": held})


def read_trees(name: str, progress: Progress | None = None, split: str | None = None) -> TreebankSource:
    """Read trees to judge: of a treebank or folder its test part if it has one, of a file all; one split only."""
    files = _files(name, progress)
    chosen = split or next(part for part in ("test", "validation", "train") if part in files)
    if chosen not in files:
        raise DataError(unknown("split", chosen, files))
    several = len(files) > 1 or name in TREEBANKS
    return _read({chosen: files[chosen]}, f"{name} ({chosen})" if several else name)


def hold_out_sentences(sentences: Sentences, share: float) -> tuple[Sentences, Sentences]:
    """Divide sentences into those to learn and those held out, evenly spaced and the same every time.

    >>> train, held = hold_out_sentences(tuple("abcdefghij"), 0.2)
    >>> "".join(train), "".join(held)
    ('abcdfghi', 'ej')
    """
    if len(sentences) < 2:
        raise DataError("a treebank of one sentence leaves none to validate on. Give more, or --dev FILE.")
    share = min(max(share, 1 / len(sentences)), 1 - 1 / len(sentences))
    held = [int((place + 1) * share + 1e-9) > int(place * share + 1e-9) for place in range(len(sentences))]
    train = tuple(sentence for sentence, out in zip(sentences, held, strict=True) if not out)
    return train, tuple(sentence for sentence, out in zip(sentences, held, strict=True) if out)


def _read(files: Mapping[str, Sequence[Path]], name: str) -> TreebankSource:
    splits: dict[str, Sentences] = {}
    skipped: list[str] = []
    for split, paths in files.items():
        read = [read_conllu(path) for path in paths]
        splits[split] = tuple(sentence for treebank in read for sentence in treebank.sentences)
        skipped += [said for treebank in read for said in treebank.skipped]
    return TreebankSource(splits, files_sum(path for paths in files.values() for path in paths), name, tuple(skipped))


def _files(name: str, progress: Progress | None) -> dict[str, list[Path]]:
    """The files of a treebank by split; a folder without a file for training is all training."""
    if name in TREEBANKS:
        return _by_split(corpus_files(TREEBANKS[name], progress))
    path = Path(name)
    if exists(path) and path.is_dir():
        found = sorted(file for file in path.iterdir() if file.suffix in SUFFIXES)
        if not found:
            raise DataError(f"{path}: no CoNLL-U file ({', '.join(sorted(SUFFIXES))}) in this folder.")
        return _by_split(found)
    return {"train": [_conllu(path)]}


def _by_split(paths: Sequence[Path]) -> dict[str, list[Path]]:
    files: dict[str, list[Path]] = {"train": [], "validation": [], "test": []}
    for path in paths:
        mark = next((split for mark, split in MARKS.items() if mark in path.stem.lower()), "train")
        files[mark].append(path)
    if not files["train"]:
        return {"train": list(paths)}
    return {split: found for split, found in files.items() if found}


def _conllu(path: Path) -> Path:
    if not exists(path) and path.name == str(path) and not path.suffix:
        raise DataError(unknown("treebank", str(path), TREEBANKS) + " Or give the path of a CoNLL-U file.")
    if exists(path) and path.is_dir():
        raise DataError(f"{path}: this is a folder; a CoNLL-U file is expected here.")
    return path
