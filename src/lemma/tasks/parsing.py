"""Parsing: treebanks, the loss of heads and relations, UAS and LAS, and what attention heads know of relations."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from jaxtyping import Float, Int, Int64
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from lemma.data.corpora import TREEBANKS
from lemma.data.splits import Splits
from lemma.data.treebanks import Lexicon, Sentence, Trees, prepare_treebank, read_trees
from lemma.errors import DataError, InputError, SpecError
from lemma.models.parser import (
    ParserModel,
    RelationScores,
    decode_tree,
    log_arc_probabilities,
    log_attention,
    score_sentences,
)
from lemma.report.progress import Observer, reading_progress
from lemma.report.statistics import NamedValues, protocol_values
from lemma.report.text import label_line, wrap_lines
from lemma.runs.load import Run
from lemma.spec.data import TreebankSpec
from lemma.spec.models import Parser
from lemma.spec.recipe import Recipe
from lemma.tasks.base import (
    DataArgs,
    ExampleBatches,
    LossTerms,
    Score,
    Task,
    TaskLoss,
    Worker,
    check_unchanged,
    split_protocol,
)

WINDOWS = "trees are of whole sentences; --context and --stride cut running text into windows, for perplexity"
ONE_TREE = "a parser has one tree per sentence; --layer and --head choose among a language model's heads"


class ParsingTask(Task):
    """A parser finds the head and the relation of every word of a sentence."""

    name, option, example, learns = "parsing", "treebank", "ewt", "a treebank"
    unit, has_perplexity = "nats/word", False
    data_spec = TreebankSpec
    names, settings, files = TREEBANKS, ("dev",), ("dev",)
    evaluation_settings = ("limit",)
    no_effect: ClassVar[Mapping[str, str]] = {
        "context": WINDOWS,
        "stride": WINDOWS,
        "layer": ONE_TREE,
        "head": ONE_TREE,
        "seed": "a parser's trees need no random weights; seed fixes those a language model is compared with",
    }
    splits_given_data = True
    no_penalties = "a parser's heads are shaped by their relations"

    def load(
        self,
        data: TreebankSpec,
        model: Parser,
        recipe: Recipe,
        observer: Observer,
        vocabulary: Any = None,
        labels: tuple[str, ...] = (),
    ) -> Splits[Trees]:
        """Read a treebank, and say what was skipped."""
        if not isinstance(model, Parser):
            raise SpecError(f"a model of the family {model.family} learns text, not trees. Use the family parser.")
        prepared = prepare_treebank(
            data,
            minimum_count=model.minimum_count,
            buckets=model.buckets,
            lexicon=vocabulary,
            progress=reading_progress(observer),
        )
        for message in (*(f"skipped in {one}" for one in prepared.notes), *prepared.overlaps):
            observer.log(message)
        if vocabulary is None:  # before training; a trained parser may be evaluated on any trees
            check_relations(prepared)
        return prepared

    def batches(self, model: Any, examples: Trees, recipe: Recipe, worker: Worker) -> "TreeBatches":
        """Sentences of similar length together."""
        return TreeBatches(examples, recipe, worker)

    def loss(self, model: ParserModel, recipe: Recipe, batches: Any = None) -> "ParsingLoss":
        """The cross-entropy of the arcs, and B1's loss of the heads' attention."""
        return ParsingLoss(model)

    def validate(self, model: ParserModel, data: Splits[Trees], recipe: Recipe) -> "ParsingScore":
        """Parse the validation sentences, and compare."""
        check_relations(data)
        return score_parser(model, data.tokenizer, data.item("validation").sentences)

    def evaluate(
        self, run: Run, given: DataArgs, split: str | None, settings: Mapping[str, Any], observer: Observer
    ) -> "ParsingScore":
        """Compare a parser's trees with those of a treebank, or of its own test or validation split."""
        limit = read_limit(settings)
        if given.name is None:
            assert isinstance(run.data, TreebankSpec) and isinstance(run.spec, Parser)
            data = self.load(run.data, run.spec, run.recipe, observer, run.lexicon)
            check_unchanged(run, data, run.data.treebank, "treebank", "trees")
            trees = data.select(split or ("test" if "test" in data.split_names else "validation"))
        elif split_files := {part: given.settings[part] for part in ("validation", "test") if part in given.settings}:
            assert isinstance(run.spec, Parser)
            spec = TreebankSpec(treebank=given.name, **split_files)
            data = self.load(spec, run.spec, run.recipe, observer, run.lexicon)
            trees = data.select(split or ("test" if "test" in split_files else "validation"))
        else:
            trees = read_trees(given.name, reading_progress(observer), split)
        gold = trees.item(trees.split_names[0]).sentences
        protocol = {"model": run.lexicon.description, **tree_protocol(trees)}
        return score_parser(run.require(ParserModel, "a parser"), run.lexicon, gold[:limit], protocol)


def check_relations(data: Splits[Trees]) -> None:
    """Refuse validation trees without a single relation that the parser learns: their loss is undefined."""
    relations = {relation for sentence in data.item("validation").sentences for relation in sentence.relations}
    learned = data.tokenizer.relations
    if relations.isdisjoint(learned):
        names = [", ".join(sorted(some)[:5]) + (", …" if len(some) > 5 else "") for some in (relations, learned)]
        raise DataError(
            f"no relation of the validation trees ({names[0]}) is one that the parser learns ({names[1]}), so they "
            "have no loss. Give validation trees with the relations of the training trees: --validation FILE."
        )


def read_limit(settings: Mapping[str, Any]) -> int | None:
    """The number of sentences to read, if it is given."""
    limit = settings.get("limit")
    if limit is not None and limit < 1:
        raise InputError(f"evaluate: limit = {limit}, but at least one sentence must be read.")
    return limit


def tree_protocol(trees: Splits[Trees]) -> dict[str, Any]:
    """The part of a protocol that tells the treebank."""
    told = {"treebank": trees.description, "data hash": trees.hash, "skipped": "; ".join(trees.notes) or None}
    return {**told, **split_protocol(trees, trees.split_names[0])}


class TreeBatches(ExampleBatches):
    """Batches of sentences with their trees."""

    def predicted_targets(self, targets: Any) -> Any:
        """The head of each word."""
        return targets[..., 0]


# Loss


TreeTargets = Int[Tensor, "batch words two"]
"""The head (a place, 0 the root) and the relation of each word; −1 where there is no word or nothing to learn."""
MAX_SCORES = 2**23  # 32 MB in float32, of which backward needs several


def arc_loss(scores: RelationScores, targets: TreeTargets) -> Float[Tensor, ""]:
    """Mean −log p(head word, relation | dependent) over the words, in nats: the parser's joint cross-entropy."""
    there, learned = targets[..., 0] >= 0, targets[..., 1] >= 0
    log = log_arc_probabilities(scores, there).flatten(1, 2)
    place = targets[..., 1] * scores.shape[2] + targets[..., 0]
    picked = log.gather(1, place.clamp(min=0)[:, None]).squeeze(1)
    return -torch.where(learned, picked, 0.0).sum() / learned.sum().clamp(min=1)


def attention_loss(
    scores: RelationScores, null: Float[Tensor, " relations"], targets: TreeTargets
) -> Float[Tensor, ""]:
    """Mean over the words of −Σ_r log α_r on what is right: B1's loss.

    From each head word, a relation's head should attend evenly to the dependents, or to the null place if it has none.
    """
    there = targets[..., 0] >= 0
    log = log_attention(scores, null, there)
    right = attention_targets(targets, scores.shape[1])
    governs = torch.cat([torch.ones_like(there[:, :1]), there], dim=1)
    loss = -torch.where(right > 0, right * log, 0.0).sum((1, 3))
    return (loss * governs).sum() / there.sum().clamp(min=1)


def attention_targets(
    targets: TreeTargets, relations: int
) -> Float[Tensor, "batch relations head_words null_and_dependents"]:
    """What each head should attend to: 1/n on each of a head word's n dependents, 1 on the null place if n = 0.

    For "I prefer the morning flight through Denver" the head `dobj` from `prefer` is 1 on `flight`, else 0.
    """
    batch, words, _ = targets.shape
    right = torch.zeros(batch, relations, words + 1, words + 1, device=targets.device)
    row, word = torch.nonzero((targets >= 0).all(-1), as_tuple=True)
    head, relation = targets[row, word].unbind(-1)
    right[row, relation, head, word + 1] = 1.0
    count = right.sum(-1)
    right[..., 0] = (count == 0).float()
    return right / count.clamp(min=1)[..., None]


class ParsingLoss(TaskLoss):
    """A parser and its objective in one module: the arcs' cross-entropy and B1's attention loss."""

    def __init__(self, model: ParserModel) -> None:
        super().__init__()
        self.model = model
        self.weight = model.spec.attention_loss
        self.terms = ("loss", "attention") if self.weight else ("loss",)

    def forward(
        self, rows: Int[Tensor, "rows places columns"], targets: Int[Tensor, "rows words two"], state: Any = None
    ) -> LossTerms:
        """Return the weighted sum of the arcs' and the attention's losses, and each of them."""
        encoded = self.model.encode(rows)
        step = max(1, MAX_SCORES // (self.model.spec.relations * encoded.shape[1] ** 2))
        if step >= len(encoded):
            loss, attended = self._terms(encoded, targets)
        else:  # the scores do not fit in memory: part by part, and again for backward
            means, shares = [], []
            for part in zip(encoded.split(step), targets.split(step), strict=True):
                means.append(torch.stack(checkpoint(self._terms, *part, use_reentrant=False)))  # pyright: ignore[reportArgumentType]
                shares.append((part[1] >= 0).sum((0, 1)).flip(0))  # words with a relation, words
            parts, words = torch.stack(means), torch.stack(shares)
            loss, attended = ((parts * words).sum(0) / words.sum(0).clamp(min=1)).unbind()
        if not self.weight:  # the null place is still touched: a team shares the gradients of all parameters
            return loss + 0.0 * self.model.heads.null.sum(), (loss,), None
        return loss + self.weight * attended, (loss, attended), None

    def _terms(
        self, encoded: Float[Tensor, "rows places width"], targets: TreeTargets
    ) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
        scores = self.model.heads(encoded).float()
        loss = arc_loss(scores, targets)
        return loss, attention_loss(scores, self.model.heads.null, targets) if self.weight else torch.zeros_like(loss)


# What attention heads know of relations (Clark et al. 2019): for each head and relation, over all arcs between two
# words, the share in which the dependent attends most to its head word, and the share in which the head word attends
# most to that dependent; next to the best fixed offset, "the word k places on", with the k that fits the same
# sentences best.


NO_HEAD = "none"
Direction = Literal["to the head word", "to the dependent"]
MostAttended = Sequence[Int64[np.ndarray, "heads words"]]
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
    """The best head when each word's attention is dealt out again among the words it may see."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {**self.__dict__}

    def __str__(self) -> str:
        baselines = [f"offset {self.offset:+d} {self.offset_accuracy:5.1f}"]
        baselines += [f"untrained {self.untrained:5.1f}"] if self.untrained is not None else []
        baselines += [f"shuffled {self.shuffled:5.1f}"] if self.shuffled is not None else []
        name = f"{self.relation:<12} {self.direction:<17} {self.count:>6,}"
        return f"{name}  {self.head:<18} {self.accuracy:5.1f} %   {'   '.join(baselines)}"


Accuracies = dict[tuple[str, Direction], np.ndarray]
"""For each relation and direction, the accuracy of each head in per cent."""


def head_accuracies(most_attended: MostAttended, gold: Sequence[Sentence]) -> tuple[Accuracies, Counter[str]]:
    """Return each head's accuracy for each relation in both directions, and how many arcs each relation has."""
    hits: dict[tuple[str, Direction], np.ndarray] = defaultdict(lambda: np.zeros(most_attended[0].shape[0]))
    counts: Counter[str] = Counter()
    for sentence, most in zip(gold, most_attended, strict=True):
        for head_word, dependent, relation in sentence.arcs():
            if not head_word:
                continue
            counts[relation] += 1
            hits[relation, "to the head word"] += most[:, dependent - 1] == head_word
            hits[relation, "to the dependent"] += most[:, head_word - 1] == dependent
    return {key: 100 * found / counts[key[0]] for key, found in hits.items()}, counts


def best_offsets(gold: Sequence[Sentence]) -> dict[tuple[str, Direction], tuple[int, float]]:
    """For each relation and direction the offset that is right most often, and how often in per cent."""
    steps: dict[str, Counter[int]] = defaultdict(Counter)
    for sentence in gold:
        for head_word, dependent, relation in sentence.arcs():
            if head_word:
                steps[relation][head_word - dependent] += 1
    found: dict[tuple[str, Direction], tuple[int, float]] = {}
    for relation, offsets in steps.items():
        offset, count = min(offsets.items(), key=lambda item: (-item[1], abs(item[0]), item[0]))
        share = 100 * count / offsets.total()
        found[relation, "to the head word"] = (offset, share)
        found[relation, "to the dependent"] = (-offset, share)
    return found


def relation_findings(
    names: Sequence[str],
    gold: Sequence[Sentence],
    most_attended: MostAttended,
    baselines_attended: Mapping[str, MostAttended] | None = None,
) -> list[RelationFinding]:
    """For each relation and direction name the best head, next to the baselines; the most frequent relations first."""
    accuracies, counts = head_accuracies(most_attended, gold)
    baselines = {name: head_accuracies(other, gold)[0] for name, other in (baselines_attended or {}).items()}
    offsets = best_offsets(gold)
    findings = []
    for key in sorted(accuracies, key=lambda key: (-counts[key[0]], key)):
        best = int(accuracies[key].argmax())
        head = names[best] if accuracies[key][best] > 0 else NO_HEAD
        known = (*key, counts[key[0]], head, float(accuracies[key][best]), *offsets[key])
        more = {name: float(table[key].max()) for name, table in baselines.items()}
        findings.append(RelationFinding(*known, **more))
    return findings


# Scores


NO_VALUE = "–"  # a share of nothing
BEST_HEADS = "the best head of each relation and direction, chosen on these sentences, as is the best offset:"


@dataclass(frozen=True)
class RelationScore:
    """How one relation fared: how many words have it, how many got it, and how many rightly (head and relation)."""

    relation: str
    count: int
    guessed: int
    correct: int
    attended: float | None = None
    """Of a parser: how often, in per cent, its head is on a right dependent, from words that have one (B1)."""

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
class ParsingScore(Score):
    """Attachment scores in per cent, by relation, next to trees that know nothing, and how they were measured."""

    title = "Trees"

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
    """Nats/word of the joint (head, relation); None where trees come from no probabilities."""
    attended: float | None = None
    """Of a parser: how often, in per cent, a head is on a right dependent, from words that have one (B1)."""
    findings: tuple[RelationFinding, ...] = ()
    """For each relation the attention head that finds it best; of unlabelled trees."""

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
        lines = [label_line(name, value, 20) for name, value in self._lines()]
        return wrap_lines("\n".join([*lines, *self._table()]))

    def _lines(self) -> NamedValues:
        lines = [("UAS", f"{self.uas:.2f} %  ({_percent(self.uas_without_punctuation)} without punctuation)")]
        if self.las is not None:
            lines.append(("LAS", f"{self.las:.2f} %  ({_percent(self.las_without_punctuation)} without punctuation)"))
        else:
            lines.append(("UUAS", f"{_percent(self.uuas)}  (arcs between words, in either direction)"))
        if self.attended is not None:
            lines.append(("heads", f"{self.attended:.2f} % on a right dependent, from words that have one"))
        lines += [(name, f"{value:.2f} % UAS") for name, value in self.baselines.items()]
        lines.append(("words", f"{self.words:,} in {self.sentences:,} sentence{'s' * (self.sentences != 1)}"))
        return lines + protocol_values(self.protocol)

    def _table(self) -> list[str]:
        if self.las is None:
            return [BEST_HEADS, *map(str, self.findings)] if self.findings else []
        head = f"{'relation':<14}{'count':>7}{'recall':>9}{'precision':>11}"
        head += f"{'head':>8}" if self.attended is not None else ""
        lines = [head]
        for score in self.relations:
            attended = f"{score.attended:>8.1f}" if score.attended is not None else ""
            recall, precision = (
                NO_VALUE if share is None else f"{share:.1f}" for share in (score.recall, score.precision)
            )
            lines.append(f"{score.relation:<14}{score.count:>7,}{recall:>9}{precision:>11}{attended}")
        return lines


def _percent(share: float | None) -> str:
    return NO_VALUE if share is None else f"{share:.2f} %"


UNLABELLED = "_"


def score_trees(
    gold: Sequence[Sentence], predicted: Sequence[Sentence], protocol: Mapping[str, Any] | None = None
) -> ParsingScore:
    """Compare trees word by word; guessed relations `_` mean that there are none to compare.

    >>> tree = Sentence(("I", "sleep"), (2, 0), ("nsubj", "root"))
    >>> score_trees([tree], [Sentence(("I", "sleep"), (2, 0), ("dobj", "root"))]).to_dict()["las"]
    50.0
    """
    if not gold:
        raise InputError("no trees to compare. Give a treebank that holds sentences.")
    if len(gold) != len(predicted):
        raise InputError(f"{len(gold)} gold trees cannot be compared with {len(predicted)} guessed ones.")
    for place, (right, tree) in enumerate(zip(gold, predicted, strict=True), start=1):
        if len(right.words) != len(tree.words):
            raise InputError(f"sentence {place} has {len(right.words)} words, its guessed tree {len(tree.words)}.")
    labelled = any(relation != UNLABELLED for sentence in predicted for relation in sentence.relations)
    wanted = [relation for sentence in gold for relation in sentence.relations]
    given = [relation for sentence in predicted for relation in sentence.relations]
    heads = ([head for sentence in some for head in sentence.heads] for some in (gold, predicted))
    attached = [right == found for right, found in zip(*heads, strict=True)]
    correct = [there and right == found for there, right, found in zip(attached, wanted, given, strict=True)]
    plain = [not mark for sentence in gold for mark in sentence.is_punctuation()]

    def share(hits: Sequence[bool]) -> float | None:
        """In per cent; None of no words."""
        return 100 * sum(hits) / len(hits) if hits else None

    counts, guesses = Counter(wanted), Counter(given)
    hits = Counter(compress(wanted, correct))
    ranked = sorted({*counts, *guesses}, key=lambda relation: (-counts[relation], relation))
    arcs = found = 0  # between words, and those that were found in either direction
    for right, tree in zip(gold, predicted, strict=True):
        drawn = {frozenset((head, place)) for place, head in enumerate(tree.heads, start=1) if head}
        between = [frozenset((head, place)) for place, head in enumerate(right.heads, start=1) if head]
        arcs, found = arcs + len(between), found + sum(arc in drawn for arc in between)
    return ParsingScore(
        sentences=len(gold),
        words=len(wanted),
        uas=share(attached) or 0.0,
        las=share(correct) if labelled else None,
        uas_without_punctuation=share(list(compress(attached, plain))),
        las_without_punctuation=share(list(compress(correct, plain))) if labelled else None,
        relations=tuple(RelationScore(name, counts[name], guesses[name], hits[name]) for name in ranked if labelled),
        baselines=chain_baselines(gold),
        protocol={"scored": "all words, punctuation too", **(protocol or {})},
        uuas=None if labelled or not arcs else 100 * found / arcs,
    )


def chain_baselines(gold: Sequence[Sentence]) -> dict[str, float]:
    """The UAS of trees that know nothing: every word hangs on the word before it, or on the word after it."""
    before = [tuple(range(len(s.words))) for s in gold]
    after = [(*range(2, len(s.words) + 1), 0) for s in gold]
    total = sum(len(sentence.words) for sentence in gold)

    def share(trees: Sequence[tuple[int, ...]]) -> float:
        right = sum(a == b for s, tree in zip(gold, trees, strict=True) for a, b in zip(s.heads, tree, strict=True))
        return 100 * right / total

    return {"on the word before": share(before), "on the word after": share(after)}


def score_parser(
    model: ParserModel, lexicon: Lexicon, gold: Sequence[Sentence], protocol: Mapping[str, Any] | None = None
) -> ParsingScore:
    """Parse a treebank's sentences and compare; with the parser's loss on the gold arcs, in nats/word.

    Of B1's attention: from each head that has dependents of a relation, whether it attends most to one of them.
    """
    if not gold:
        raise InputError("no trees to compare. Give a treebank that holds sentences.")
    guessed: dict[int, Sentence] = {}
    total, counted = 0.0, 0
    attended: dict[str, list[int]] = defaultdict(lambda: [0, 0])  # by relation: times on a right dependent, times asked
    for place, log, weights in score_sentences(model, lexicon, [sentence.words for sentence in gold]):
        sentence = gold[place]
        guessed[place] = decode_tree(log, sentence.words, lexicon).sentence
        relations = np.array([lexicon.relation_id(relation) for relation in sentence.relations])
        known = relations >= 0
        picked = log[relations[known], np.array(sentence.heads)[known], np.flatnonzero(known)]
        total, counted = total - float(picked.astype(np.float64).sum()), counted + int(known.sum())
        wanted: dict[tuple[int, str], set[int]] = defaultdict(set)
        for head, dependent, relation in sentence.arcs():
            wanted[head, relation].add(dependent)
        for (head, relation), dependents in wanted.items():
            number = lexicon.relation_id(relation)
            most = int(weights[number, head].argmax()) if number >= 0 else 0
            attended[relation][0] += most in dependents
            attended[relation][1] += 1
    unseen = sorted({name for sentence in gold for name in sentence.relations} - set(lexicon.relations))
    how = {"decoded": "maximum spanning tree with one root"}
    how |= {"unknown relations": ", ".join(unseen)} if unseen else {}
    score = score_trees(gold, [guessed[place] for place in range(len(gold))], {**how, **(protocol or {})})
    right, asked = (sum(pair[part] for pair in attended.values()) for part in (0, 1))
    shares = {relation: 100 * hits / times for relation, (hits, times) in attended.items()}
    return replace(
        score,
        loss=total / counted if counted else None,
        attended=100 * right / asked,
        relations=tuple(replace(one, attended=shares.get(one.relation)) for one in score.relations),
    )
