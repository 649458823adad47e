"""Treebanks by name: what they are, where they come from, how they become CoNLL-U."""

from collections.abc import Sequence
from pathlib import Path

from lemma.data.corpora import Corpus
from lemma.data.ewt import convert_graphs
from lemma.data.reading import open_text
from lemma.data.sections import Splits


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
