"""What attention heads know of relations: whether the word attended to most is the governor, or the dependent.

For each head and relation, over all arcs between two words of that relation: the share in which the dependent's most
attended word is its governor, and the share in which the governor's is that dependent (Clark et al. 2019). Beside it
the best fixed offset: "the word k places on", with the k that fits the same sentences best.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import Any, Literal

import numpy as np
from jaxtyping import Int64

from lemma.data.conllu import Sentence
from lemma.data.treebanks import Lexicon
from lemma.errors import InputError
from lemma.models.parser import LogArcs, LogPictures, ParserModel, decode, readings
from lemma.report.text import fit, label

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


# The result of comparing trees: attachment scores, by relation, beside what knows nothing, with their protocol.


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


# How good trees are: the share of words with the right governor (UAS), and with the right relation too (LAS).
#
# All words count, punctuation too; figures without it stand beside. Functions of plain values: gold and guessed
# trees.


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


# The trees of a trained parser, compared with those of a treebank.


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
