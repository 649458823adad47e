"""The result of comparing trees: attachment scores, by relation, beside what knows nothing, with their protocol."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from typing import Any

from lemma.evaluation.heads import RelationFinding
from lemma.typeset import fit, label

NONE = "–"  # a share of nothing
BEST_HEADS = "the best head of each relation and direction, chosen on these sentences, as is the best offset:"


@dataclass(frozen=True)
class RelationScore:
    """How one relation fared: how many words have it, how many got it, and how many rightly (governor and relation)."""

    relation: str
    count: int
    guessed: int
    correct: int
    attended: float | None = None
    """Of a parser: how often, in per cent, its head is on a right dependent, from governors that have one (B1)."""

    @property
    def recall(self) -> float | None:
        """The share of the relation's words that were found; None where no word has it."""
        return 100 * self.correct / self.count if self.count else None

    @property
    def precision(self) -> float | None:
        """The share of what was called so that is so; None where nothing was."""
        return 100 * self.correct / self.guessed if self.guessed else None

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        counts = {"count": self.count, "guessed": self.guessed, "correct": self.correct}
        shares = {"recall": self.recall, "precision": self.precision}
        attended = {"attended": self.attended} if self.attended is not None else {}
        return {"relation": self.relation, **counts, **shares, **attended}


@dataclass(frozen=True)
class ParsingScore:
    """Attachment scores in per cent, by relation, beside trees that know nothing, and how they were measured."""

    sentences: int
    words: int
    uas: float
    las: float | None
    """None where trees have no labels."""
    uas_without_punctuation: float | None
    """None where all words are punctuation."""
    las_without_punctuation: float | None
    relations: tuple[RelationScore, ...]
    baselines: Mapping[str, float]
    protocol: Mapping[str, Any]
    uuas: float | None = None
    """Undirected: the share of the arcs between words that are there in either direction; of unlabelled trees, and
    None of sentences of one word, which have no such arcs."""
    loss: float | None = None
    """Nats a word of the joint (governor, relation); None where trees come from no probabilities."""
    attended: float | None = None
    """Of a parser: how often, in per cent, a head is on a right dependent, from governors that have one (B1)."""
    findings: tuple[RelationFinding, ...] = ()
    """For each relation the attention head that finds it best; of unlabelled trees."""

    @property
    def perplexity(self) -> float:
        """exp(loss): among so many (governor, relation) the parser hesitates."""
        return math.exp(min(self.loss, 700)) if self.loss is not None else math.nan

    @property
    def figures(self) -> dict[str, float]:
        """The figures that a training run writes down at each validation."""
        return {"uas": self.uas} | ({"las": self.las} if self.las is not None else {})

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        plain = {"uas": self.uas, "las": self.las} | ({"uuas": self.uuas} if self.las is None else {})
        without = {name: getattr(self, f"{name}_without_punctuation") for name in ("uas", "las")}
        return {
            **plain,
            "without_punctuation": without,
            "sentences": self.sentences,
            "words": self.words,
            "loss": self.loss,
            **({"attended": self.attended} if self.attended is not None else {}),
            "relations": [score.to_dict() for score in self.relations],
            "baselines": dict(self.baselines),
            **({"heads": [finding.to_dict() for finding in self.findings]} if self.findings else {}),
            "protocol": dict(self.protocol),
        }

    def __str__(self) -> str:
        lines = [label(name, value, 20) for name, value in self._lines()]
        return fit("\n".join([*lines, *self._table()]))

    def _repr_html_(self) -> str:
        rows = (f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in self._lines())
        return f"<table>{''.join(rows)}</table><pre>{escape(chr(10).join(self._table()))}</pre>"

    def _lines(self) -> list[tuple[str, str]]:
        lines = [("UAS", f"{self.uas:.2f} %  ({_percent(self.uas_without_punctuation)} without punctuation)")]
        if self.las is not None:
            lines.append(("LAS", f"{self.las:.2f} %  ({_percent(self.las_without_punctuation)} without punctuation)"))
        else:
            lines.append(("UUAS", f"{_percent(self.uuas)}  (arcs between words, in either direction)"))
        if self.attended is not None:
            lines.append(("heads", f"{self.attended:.2f} % on a right dependent, from governors that have one"))
        lines += [(name, f"{value:.2f} % UAS") for name, value in self.baselines.items()]
        lines.append(("words", f"{self.words:,} in {self.sentences:,} sentence{'s' * (self.sentences != 1)}"))
        return lines + [(name, str(value)) for name, value in self.protocol.items() if value not in (None, (), [])]

    def _table(self) -> list[str]:
        if self.las is None:
            return [BEST_HEADS, *map(str, self.findings)] if self.findings else []
        head = f"{'relation':<14}{'count':>7}{'recall':>9}{'precision':>11}"
        head += f"{'head':>8}" if self.attended is not None else ""
        return [head, *map(_line, self.relations)]


def _line(score: RelationScore) -> str:
    attended = f"{score.attended:>8.1f}" if score.attended is not None else ""
    recall, precision = (NONE if share is None else f"{share:.1f}" for share in (score.recall, score.precision))
    return f"{score.relation:<14}{score.count:>7,}{recall:>9}{precision:>11}{attended}"


def _percent(share: float | None) -> str:
    return NONE if share is None else f"{share:.2f} %"
