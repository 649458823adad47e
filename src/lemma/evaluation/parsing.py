"""How good trees are: the share of words with the right governor (UAS), and with the right relation too (LAS).

All words count, punctuation too; figures without it stand beside. Functions of plain values: gold and guessed trees.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lemma.data import Sentence
from lemma.errors import InputError
from lemma.evaluation.parsing_score import ParsingScore, RelationScore

UNLABELLED = "_"


def score_trees(
    gold: Sequence[Sentence], guessed: Sequence[Sentence], protocol: Mapping[str, Any] | None = None
) -> ParsingScore:
    """Compare trees word by word; guessed relations `_` mean that there are none to compare.

    >>> tree = Sentence(("I", "sleep"), (2, 0), ("nsubj", "root"))
    >>> score_trees([tree], [Sentence(("I", "sleep"), (2, 0), ("dobj", "root"))]).to_dict()["las"]
    50.0
    """
    _refuse_others(gold, guessed)
    labelled = any(relation != UNLABELLED for sentence in guessed for relation in sentence.relations)
    words = [word for pair in zip(gold, guessed, strict=True) for word in _compared(*pair)]
    plain = [word for word in words if not word.punctuation]
    return ParsingScore(
        sentences=len(gold),
        words=len(words),
        uas=_share(words, "attached") or 0.0,
        las=_share(words, "labelled") if labelled else None,
        uas_without_punctuation=_share(plain, "attached"),
        las_without_punctuation=_share(plain, "labelled") if labelled else None,
        relations=tuple(_by_relation(words)) if labelled else (),
        baselines=chains(gold),
        protocol={"scored": "all words, punctuation too", **(protocol or {})},
        uuas=None if labelled else _undirected(gold, guessed),
    )


def chains(gold: Sequence[Sentence]) -> dict[str, float]:
    """The UAS of trees that know nothing: every word hangs on the word before it, or on the word after it."""
    before = [tuple(range(len(s.words))) for s in gold]
    after = [(*range(2, len(s.words) + 1), 0) for s in gold]
    total = sum(len(sentence.words) for sentence in gold)

    def share(trees: Sequence[tuple[int, ...]]) -> float:
        right = sum(a == b for s, tree in zip(gold, trees, strict=True) for a, b in zip(s.heads, tree, strict=True))
        return 100 * right / total

    return {"on the word before": share(before), "on the word after": share(after)}


def with_baselines(score: ParsingScore, more: Mapping[str, float]) -> ParsingScore:
    """Set more baselines beside a score."""
    return replace(score, baselines={**score.baselines, **more})


@dataclass(frozen=True)
class _Word:
    relation: str
    guess: str
    attached: bool
    labelled: bool
    punctuation: bool


def _compared(gold: Sentence, guessed: Sentence) -> list[_Word]:
    marks = gold.punctuation()
    return [
        _Word(
            gold.relations[i],
            guessed.relations[i],
            gold.heads[i] == guessed.heads[i],
            gold.heads[i] == guessed.heads[i] and gold.relations[i] == guessed.relations[i],
            marks[i],
        )
        for i in range(len(gold.words))
    ]


def _share(words: Sequence[_Word], what: str) -> float | None:
    """In per cent; None of no words."""
    return 100 * sum(getattr(word, what) for word in words) / len(words) if words else None


def _by_relation(words: Sequence[_Word]) -> list[RelationScore]:
    count = Counter(word.relation for word in words)
    guessed = Counter(word.guess for word in words)
    correct = Counter(word.relation for word in words if word.labelled)
    ranked = sorted({*count, *guessed}, key=lambda relation: (-count[relation], relation))
    return [RelationScore(relation, count[relation], guessed[relation], correct[relation]) for relation in ranked]


def _undirected(gold: Sequence[Sentence], guessed: Sequence[Sentence]) -> float | None:
    """The share of the arcs between words that were found in either direction; None if there are no such arcs."""
    arcs = found = 0
    for right, tree in zip(gold, guessed, strict=True):
        drawn = {frozenset((head, place)) for place, head in enumerate(tree.heads, start=1) if head}
        wanted = [frozenset((head, place)) for place, head in enumerate(right.heads, start=1) if head]
        arcs, found = arcs + len(wanted), found + sum(arc in drawn for arc in wanted)
    return 100 * found / arcs if arcs else None


def _refuse_others(gold: Sequence[Sentence], guessed: Sequence[Sentence]) -> None:
    if not gold:
        raise InputError("no trees to compare. Give a treebank that holds sentences.")
    if len(gold) != len(guessed):
        raise InputError(f"{len(gold)} gold trees cannot be compared with {len(guessed)} guessed ones.")
    for place, (right, tree) in enumerate(zip(gold, guessed, strict=True), start=1):
        if len(right.words) != len(tree.words):
            raise InputError(f"sentence {place} has {len(right.words)} words, its guessed tree {len(tree.words)}.")
