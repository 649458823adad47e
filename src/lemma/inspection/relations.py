"""Which attention head finds which relation (Clark et al. 2019).

For each head and relation, over all arcs between two words: how often the dependent attends most to its head word, and
how often the head word attends most to that dependent; next to the best fixed offset, "the word k positions further".
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Int64

from lemma.data.treebanks import Sentence
from lemma.tasks.parsing import Direction, RelationFinding

NO_HEAD = "none"
MostAttended = Sequence[Int64[np.ndarray, "heads words"]]
"""For each sentence, the word (counted from 1; 0 for none) that each head attends to most from each word."""
Accuracies = dict[tuple[str, Direction], np.ndarray]
"""For each relation and direction, the accuracy of each head in per cent."""


def relation_findings(
    names: Sequence[str],
    gold: Sequence[Sentence],
    most_attended: MostAttended,
    baselines_attended: Mapping[str, MostAttended] | None = None,
) -> list[RelationFinding]:
    """Find the best head of each relation and direction, next to the baselines; the most frequent relations first."""
    accuracies, counts = head_accuracies(most_attended, gold)
    baselines = {name: head_accuracies(other, gold)[0] for name, other in (baselines_attended or {}).items()}
    offsets = best_offsets(gold)
    findings = []
    for key in sorted(accuracies, key=lambda key: (-counts[key[0]], key)):
        best = int(accuracies[key].argmax())
        head = names[best] if accuracies[key][best] > 0 else NO_HEAD
        best_baselines = {name: float(table[key].max()) for name, table in baselines.items()}
        accuracy = float(accuracies[key][best])
        findings.append(RelationFinding(*key, counts[key[0]], head, accuracy, *offsets[key], **best_baselines))
    return findings


def head_accuracies(most_attended: MostAttended, gold: Sequence[Sentence]) -> tuple[Accuracies, Counter[str]]:
    """Return each head's accuracy for each relation in both directions, and the number of arcs of each relation."""
    hits: dict[tuple[str, Direction], np.ndarray] = defaultdict(lambda: np.zeros(most_attended[0].shape[0]))
    counts: Counter[str] = Counter()
    for sentence, attended in zip(gold, most_attended, strict=True):
        for head_word, dependent, relation in sentence.arcs():
            if not head_word:
                continue
            counts[relation] += 1
            hits[relation, "to the head word"] += attended[:, dependent - 1] == head_word
            hits[relation, "to the dependent"] += attended[:, head_word - 1] == dependent
    return {key: 100 * count / counts[key[0]] for key, count in hits.items()}, counts


def best_offsets(gold: Sequence[Sentence]) -> dict[tuple[str, Direction], tuple[int, float]]:
    """Return for each relation and direction the offset that is right most often, and how often in per cent."""
    offset_counts: dict[str, Counter[int]] = defaultdict(Counter)
    for sentence in gold:
        for head_word, dependent, relation in sentence.arcs():
            if head_word:
                offset_counts[relation][head_word - dependent] += 1
    best: dict[tuple[str, Direction], tuple[int, float]] = {}
    for relation, counts in offset_counts.items():
        offset, count = min(counts.items(), key=lambda item: (-item[1], abs(item[0]), item[0]))
        percent = 100 * count / counts.total()
        best[relation, "to the head word"] = (offset, percent)
        best[relation, "to the dependent"] = (-offset, percent)
    return best
