"""What attention heads know of relations: whether the word attended to most is the governor, or the dependent.

For each head and relation, over all arcs between two words of that relation: the share in which the dependent's most
attended word is its governor, and the share in which the governor's is that dependent (Clark et al. 2019). Beside it
the best fixed offset: "the word k places on", with the k that fits the same sentences best.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from jaxtyping import Int64

from lemma.data import Sentence

NO_HEAD = "none"
Direction = Literal["to the governor", "to the dependent"]
Guesses = Sequence[Int64[np.ndarray, "heads words"]]
"""For each sentence, the word (counted from 1; 0 for none) that each head attends to most from each word."""


@dataclass(frozen=True)
class RelationFinding:
    """The head that finds a relation best, and what needs no attention at all."""

    relation: str
    direction: Direction
    count: int
    head: str
    """Its name, or `none` where no head ever finds the relation."""
    accuracy: float
    offset: int
    offset_accuracy: float
    untrained: float | None = None
    """The best head of a model of the same spec with random weights."""
    shuffled: float | None = None
    """The best head when each word's attention is dealt out anew among the words it may see."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {**self.__dict__}

    def __str__(self) -> str:
        beside = [f"offset {self.offset:+d} {self.offset_accuracy:5.1f}"]
        beside += [f"untrained {self.untrained:5.1f}"] if self.untrained is not None else []
        beside += [f"shuffled {self.shuffled:5.1f}"] if self.shuffled is not None else []
        name = f"{self.relation:<12} {self.direction:<17} {self.count:>6,}"
        return f"{name}  {self.head:<18} {self.accuracy:5.1f} %   {'   '.join(beside)}"


Accuracies = dict[tuple[str, Direction], np.ndarray]
"""For each relation and direction, the accuracy of each head in per cent."""


def head_accuracies(guesses: Guesses, gold: Sequence[Sentence]) -> tuple[Accuracies, Counter[str]]:
    """Return each head's accuracy for each relation in both directions, and how many arcs each relation has."""
    hits: dict[tuple[str, Direction], np.ndarray] = defaultdict(lambda: np.zeros(guesses[0].shape[0]))
    counts: Counter[str] = Counter()
    for sentence, most in zip(gold, guesses, strict=True):
        for governor, dependent, relation in sentence.arcs():
            if not governor:
                continue
            counts[relation] += 1
            hits[relation, "to the governor"] += most[:, dependent - 1] == governor
            hits[relation, "to the dependent"] += most[:, governor - 1] == dependent
    return {key: 100 * found / counts[key[0]] for key, found in hits.items()}, counts


def best_offsets(gold: Sequence[Sentence]) -> dict[tuple[str, Direction], tuple[int, float]]:
    """For each relation and direction the offset that is right most often, and how often in per cent."""
    steps: dict[str, Counter[int]] = defaultdict(Counter)
    for sentence in gold:
        for governor, dependent, relation in sentence.arcs():
            if governor:
                steps[relation][governor - dependent] += 1
    found: dict[tuple[str, Direction], tuple[int, float]] = {}
    for relation, offsets in steps.items():
        offset, count = min(offsets.items(), key=lambda item: (-item[1], abs(item[0]), item[0]))
        share = 100 * count / offsets.total()
        found[relation, "to the governor"] = (offset, share)
        found[relation, "to the dependent"] = (-offset, share)
    return found


def relation_findings(
    names: Sequence[str],
    gold: Sequence[Sentence],
    guesses: Guesses,
    others: Mapping[str, Guesses] | None = None,
) -> list[RelationFinding]:
    """For each relation and direction name the best head, beside the baselines; the most frequent relations first."""
    accuracies, counts = head_accuracies(guesses, gold)
    beside = {name: head_accuracies(other, gold)[0] for name, other in (others or {}).items()}
    offsets = best_offsets(gold)
    findings = []
    for key in sorted(accuracies, key=lambda key: (-counts[key[0]], key)):
        best = int(accuracies[key].argmax())
        head = names[best] if accuracies[key][best] > 0 else NO_HEAD
        known = (*key, counts[key[0]], head, float(accuracies[key][best]), *offsets[key])
        more = {name: float(table[key].max()) for name, table in beside.items()}
        findings.append(RelationFinding(*known, **more))
    return findings
