"""What a trained classifier says of texts that nobody has labelled."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np

from lemma.data.labels import Heads, Labelled, with_heads
from lemma.data.store import encode_texts
from lemma.errors import InputError, RunError
from lemma.runs.load import Run
from lemma.spec.data import LabelsSpec
from lemma.spec.models import Classifier, Transformer, Tree, longest
from lemma.studies.parse_texts import parser_drawer
from lemma.tasks.classification import classify
from lemma.training.progress import Silent


@dataclass(frozen=True)
class Named:
    """A text, the likeliest class, and the probability of each."""

    source: str
    label: str
    chances: dict[str, float]
    remark: str = ""

    @property
    def chance(self) -> float:
        """The probability of the class it is given."""
        return self.chances[self.label]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        plain = {"source": self.source, "label": self.label, "chance": self.chance, "chances": self.chances}
        return {**plain, "remark": self.remark}

    def __str__(self) -> str:
        return f"{self.label}  {self.chance:.3f}" + (f"  ({self.remark})" if self.remark else "")

    def _repr_html_(self) -> str:
        rows = sorted(self.chances.items(), key=lambda item: -item[1])
        cells = "".join(f"<tr><th>{escape(label)}</th><td>{chance:.3f}</td></tr>" for label, chance in rows)
        return f"<p>{escape(self.source)}</p><table>{cells}</table>"


def name_texts(run: Run, texts: Sequence[str]) -> list[Named]:
    """Let a classifier name the class of each text; what is longer than it reads is cut, and the result says so."""
    assert isinstance(run.spec, Classifier)
    for place, text in enumerate(texts):
        _refuse_no_text(place, text)
    if not texts:
        return []
    body, tokenizer = run.spec.body, run.tokenizer
    marked = isinstance(body, Transformer)
    spoken, governors = _spoken(run, texts)
    rows, _ = encode_texts(tokenizer, spoken, lambda size: None)
    room = longest(body) - 2 * marked
    before, after = ([tokenizer.vocabulary], [tokenizer.vocabulary + 1]) if marked else ([], [])
    kept = rows.truncate(room) if marked else rows.truncate(room).fill_empty(tokenizer.eos or 0)
    examples = Labelled(kept.surround(before, after), np.zeros(len(texts), dtype=np.int64))
    chances = classify(run.classifier, with_heads(examples, governors) if governors else examples)
    left_out = [tokenizer.encode_known(text)[1] for text in spoken]
    told = [_remark(int(length), room, missing) for length, missing in zip(rows.lengths, left_out, strict=True)]
    return [_named(run.labels, *one) for one in zip(texts, chances, told, strict=True)]


def _spoken(run: Run, texts: Sequence[str]) -> tuple[list[str], Heads]:
    """The texts as they are read; for a tree body the words of their trees, and these words' governors."""
    assert isinstance(run.spec, Classifier) and isinstance(run.data, LabelsSpec)
    if not isinstance(run.spec.body, Tree):
        return list(texts), ()
    if run.data.parser is None:
        raise RunError(
            f"{run.path} learned trees that were given, and has no parser to draw those of a text. Judge trees: "
            f"lemma evaluate {quote(str(run.path))} --labels FILE.conllu"
        )
    drawn = parser_drawer(Path(run.data.parser), Silent()).parse(texts)
    return [one.text for one in drawn], [one.heads for one in drawn]


def _refuse_no_text(place: int, text: object) -> None:
    if not isinstance(text, str):
        raise InputError(f"source {place} is {text!r} ({type(text).__name__}), and no text. Put it in quotes.")
    if not text.strip():
        raise InputError(f"source {place} is empty: there is nothing to name a class of.")


def _remark(length: int, room: int, left_out: int) -> str:
    characters = "character" if left_out == 1 else "characters"
    remarks = [
        f"{left_out} {characters} left out: the tokenizer does not know them" if left_out else "",
        f"only the first {room} of {length} tokens were read" if length > room else "",
    ]
    return "; ".join(filter(None, remarks))


def _named(labels: Sequence[str], text: str, chances: np.ndarray, remark: str) -> Named:
    by_label = {label: float(chance) for label, chance in zip(labels, chances, strict=True)}
    return Named(text, labels[int(chances.argmax())], by_label, remark)
