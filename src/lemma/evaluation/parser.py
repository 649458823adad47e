"""The trees of a trained parser, compared with those of a treebank."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from lemma.data import Lexicon, Sentence
from lemma.errors import InputError
from lemma.evaluation.parsing import ParsingScore, score_trees
from lemma.models import ParserModel
from lemma.models.trees import LogArcs, LogPictures, decode, readings


def score_parser(
    model: ParserModel, lexicon: Lexicon, gold: Sequence[Sentence], protocol: Mapping[str, Any] | None = None
) -> ParsingScore:
    """Parse a treebank's sentences and compare; beside that the parser's loss on the gold arcs, in nats a word."""
    if not gold:
        raise InputError("no trees to compare. Give a treebank that holds sentences.")
    guessed: list[Sentence | None] = [None] * len(gold)
    total, counted = 0.0, 0
    attended: Attended = defaultdict(lambda: [0, 0])
    for place, log, pictures in readings(model, lexicon, [sentence.words for sentence in gold]):
        _count_attended(attended, pictures, gold[place], lexicon)
        guessed[place] = decode(log, gold[place].words, lexicon).sentence
        lost, words = _loss(log, gold[place], lexicon)
        total, counted = total + lost, counted + words
    trees = [tree for tree in guessed if tree is not None]
    how = {"decoded": "maximum spanning tree with one root", **_unseen(gold, lexicon), **(protocol or {})}
    score = replace(score_trees(gold, trees, how), loss=total / counted if counted else None)
    return _with_attended(score, attended)


Attended = dict[str, list[int]]
"""For each relation, how often its head attends most to a right dependent, and of how many times."""


def _count_attended(attended: Attended, pictures: LogPictures, gold: Sentence, lexicon: Lexicon) -> None:
    """Count B1's pictures: from each governor that has dependents of a relation, whether its head is on one of them."""
    wanted: dict[tuple[int, str], set[int]] = defaultdict(set)
    for governor, dependent, relation in gold.arcs():
        wanted[governor, relation].add(dependent)
    for (governor, relation), dependents in wanted.items():
        number = lexicon.number(relation)
        most = int(pictures[number, governor].argmax()) if number >= 0 else 0
        attended[relation][0] += most in dependents
        attended[relation][1] += 1


def _with_attended(score: ParsingScore, attended: Attended) -> ParsingScore:
    shares = {relation: 100 * right / asked for relation, (right, asked) in attended.items()}
    right, asked = (sum(pair[part] for pair in attended.values()) for part in (0, 1))
    relations = tuple(replace(one, attended=shares.get(one.relation)) for one in score.relations)
    return replace(score, attended=100 * right / asked, relations=relations)


def _loss(log: LogArcs, gold: Sentence, lexicon: Lexicon) -> tuple[float, int]:
    """The sum of −log p over the words whose relation the parser knows, and how many those are."""
    relations = np.array([lexicon.number(relation) for relation in gold.relations])
    known = relations >= 0
    picked = log[relations[known], np.array(gold.heads)[known], np.flatnonzero(known)]
    return float(-picked.astype(np.float64).sum()), int(known.sum())


def _unseen(gold: Sequence[Sentence], lexicon: Lexicon) -> dict[str, Any]:
    unseen = sorted({name for sentence in gold for name in sentence.relations} - set(lexicon.relations))
    return {"unknown relations": ", ".join(unseen)} if unseen else {}
