"""Trees with labels in a CoNLL-U file: each sentence has its label in a comment, `# label = positive`."""

from pathlib import Path

from lemma.data.conllu import numbered_sentences
from lemma.data.tables import Table
from lemma.errors import DataError

SUFFIXES = (".conllu", ".conll")


def holds_trees(name: str) -> bool:
    """Whether labelled texts of that name come with trees of their own."""
    return Path(name).suffix.lower() in SUFFIXES


def read_labelled_conllu(path: Path) -> Table:
    """The sentences of a file as texts, their words between blanks, with their labels."""
    lines: list[int] = []
    cells: dict[str, list[str]] = {"text": [], "label": []}
    for line, sentence in numbered_sentences(path):
        if not sentence.label:
            raise DataError(f"{path}, line {line}: the sentence has no label. Give it one in a comment: # label = NAME")
        lines.append(line)
        cells["text"].append(sentence.text)
        cells["label"].append(sentence.label)
    return Table(path, lines, cells, None, f"{path.name}: trees with the label of each from its comment")
