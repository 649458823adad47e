"""Dependency parsing: treebanks, the loss of heads and relations, UAS and LAS."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils.checkpoint import checkpoint

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
from lemma.report.progress import Observer
from lemma.report.result import to_plain
from lemma.report.statistics import NamedValues, protocol_values
from lemma.report.text import label_line, wrap_lines
from lemma.runs.load import Run
from lemma.spec.data import TreebankSpec
from lemma.spec.models import Parser
from lemma.spec.recipe import Recipe
from lemma.tasks.base import (
    NO_VALUE,
    ExampleBatches,
    LoadContext,
    LossTerms,
    Score,
    Task,
    TaskLoss,
    Worker,
    split_protocol,
)
from lemma.tasks.registry import PARSING, DataArgs


class ParsingTask(Task):
    """Prediction of the head word and the relation of every word of a sentence."""

    info = PARSING
    trained_on = "trees"
    note_prefix = "skipped in "

    def _read(self, data: TreebankSpec, context: LoadContext) -> Splits[Trees]:
        """Return the splits of a treebank; before training, check that validation trees have known relations."""
        model = context.model
        if not isinstance(model, Parser):
            raise SpecError(f"a model of the family {model.family} learns text, not trees. Use the family parser.")
        trees = prepare_treebank(
            data,
            minimum_count=model.minimum_count,
            buckets=model.buckets,
            lexicon=context.vocabulary,
            progress=context.progress,
        )
        if context.vocabulary is None:
            check_relations(trees)
        return trees

    def _check_settings(self, settings: Mapping[str, Any]) -> None:
        """Raise InputError if the setting `limit` is below 1."""
        read_limit(settings)

    def _load_other(self, run: Run, args: DataArgs, split: str | None, observer: Observer) -> Splits[Trees]:
        """Return the trees in `args` to evaluate on, as one split: of files named as splits, else of a treebank."""
        context = LoadContext.of_run(run, observer, run.path, split)
        files = {name: args.settings[name] for name in ("validation", "test") if name in args.settings}
        if not files:
            return read_trees(args.name, context.progress, split)
        trees = self.load(TreebankSpec(treebank=args.name, **files), context)
        return trees.select(split or ("test" if "test" in files else "validation"))

    def batches(self, model: Any, examples: Trees, recipe: Recipe, worker: Worker) -> ExampleBatches:
        """Return batches of sentences of similar length."""
        return ExampleBatches(examples, recipe, worker, lambda targets: targets[..., 0])  # the heads, −1 at padding

    def loss(self, model: ParserModel, recipe: Recipe, batches: Any = None) -> "ParsingLoss":
        """Return the parser with the loss of its arcs, and with the attention loss if its weight is not 0."""
        return ParsingLoss(model)

    def validate(self, model: ParserModel, data: Splits[Trees], recipe: Recipe) -> "ParsingScore":
        """Return the attachment scores on the validation trees."""
        check_relations(data)
        return score_parser(model, data.tokenizer, data.item("validation").sentences)

    def score(
        self, run: Run, data: Splits[Trees], split: str, settings: Mapping[str, Any], observer: Observer
    ) -> "ParsingScore":
        """Return the attachment scores of a parser on a split; the setting `limit` is the number of sentences."""
        trees = data.select(split) if len(data.split_names) > 1 else data
        gold = trees.item(split).sentences[: read_limit(settings)]
        protocol = {"model": run.lexicon.description, **tree_protocol(trees)}
        return score_parser(run.require(ParserModel, "a parser"), run.lexicon, gold, protocol)


def check_relations(data: Splits[Trees]) -> None:
    """Raise DataError if no relation of the validation trees is one that the parser learns: their loss is undefined."""
    relations = {relation for sentence in data.item("validation").sentences for relation in sentence.relations}
    learned = data.tokenizer.relations
    if relations.isdisjoint(learned):
        lists = [", ".join(sorted(names)[:5]) + (", …" if len(names) > 5 else "") for names in (relations, learned)]
        raise DataError(
            f"no relation of the validation trees ({lists[0]}) is one that the parser learns ({lists[1]}), so they "
            "have no loss. Give validation trees with the relations of the training trees: --validation FILE."
        )


def read_limit(settings: Mapping[str, Any]) -> int | None:
    """Return the setting `limit`, the number of sentences to evaluate; None for all; raise InputError below 1."""
    limit = settings.get("limit")
    if limit is not None and limit < 1:
        raise InputError(f"evaluate: limit = {limit}, but at least one sentence must be read.")
    return limit


def tree_protocol(trees: Splits[Trees]) -> dict[str, Any]:
    """Return the protocol entries (name → value) about the trees that a score was measured on."""
    entries = {"treebank": trees.description, "data hash": trees.hash, "skipped": "; ".join(trees.notes) or None}
    return {**entries, **split_protocol(trees, trees.split_names[0])}


# Loss

TreeTargets = Int[Tensor, "batch words two"]
"""Head position (0 is the root) and relation of each word; −1 where there is no word, or nothing to learn."""
MAX_SCORES = 2**23  # 32 MB in float32, of which backward needs several


def arc_loss(scores: RelationScores, targets: TreeTargets) -> Float[Tensor, ""]:
    """Return the mean −log p(head word, relation | dependent) over the words, in nats."""
    mask, has_relation = targets[..., 0] >= 0, targets[..., 1] >= 0
    log_probs = log_arc_probabilities(scores, mask).flatten(1, 2)
    index = targets[..., 1] * scores.shape[2] + targets[..., 0]
    gold = log_probs.gather(1, index.clamp(min=0)[:, None]).squeeze(1)
    return -torch.where(has_relation, gold, 0.0).sum() / has_relation.sum().clamp(min=1)


def attention_loss(
    scores: RelationScores, null: Float[Tensor, " relations"], targets: TreeTargets
) -> Float[Tensor, ""]:
    """Return the mean over the words of −Σ_r log α_r on the right positions, the attention loss of problem B1.

    From each head word, the attention head of relation r should attend evenly to the dependents, or to the null
    position if there are none; `null` are the logits of that position.
    """
    mask = targets[..., 0] >= 0
    log_weights = log_attention(scores, null, mask)
    gold = attention_targets(targets, scores.shape[1])
    is_head_word = torch.cat([torch.ones_like(mask[:, :1]), mask], dim=1)  # the root, too
    loss = -torch.where(gold > 0, gold * log_weights, 0.0).sum((1, 3))
    return (loss * is_head_word).sum() / mask.sum().clamp(min=1)


def attention_targets(
    targets: TreeTargets, relations: int
) -> Float[Tensor, "batch relations head_words null_and_dependents"]:
    """Return the right attention: 1/n on each of a head word's n dependents, 1 on the null position if n = 0.

    For "I prefer the morning flight through Denver", `dobj` attends from `prefer` with 1 to `flight`, else with 0.
    """
    batch, words, _ = targets.shape
    weights = torch.zeros(batch, relations, words + 1, words + 1, device=targets.device)
    row, word = torch.nonzero((targets >= 0).all(-1), as_tuple=True)
    head, relation = targets[row, word].unbind(-1)
    weights[row, relation, head, word + 1] = 1.0
    count = weights.sum(-1)
    weights[..., 0] = (count == 0).float()
    return weights / count.clamp(min=1)[..., None]


class ParsingLoss(TaskLoss):
    """A parser with its objective: the cross-entropy of the arcs, plus the weighted attention loss of problem B1."""

    def __init__(self, model: ParserModel) -> None:
        super().__init__()
        self.model = model
        self.weight = model.spec.attention_loss
        self.terms = ("loss", "attention") if self.weight else ("loss",)

    def forward(
        self, rows: Int[Tensor, "rows positions columns"], targets: Int[Tensor, "rows words two"], state: Any = None
    ) -> LossTerms:
        """Return the loss of a batch as `LossTerms`: objective, arc loss and attention loss, no state."""
        encoded = self.model.encode(rows)
        step = max(1, MAX_SCORES // (self.model.spec.relations * encoded.shape[1] ** 2))
        if step >= len(encoded):
            loss, attention = self._compute_terms(encoded, targets)
        else:  # the scores do not fit in memory: they are computed in parts, and again for backward
            means, counts = [], []
            for part in zip(encoded.split(step), targets.split(step), strict=True):
                means.append(torch.stack(checkpoint(self._compute_terms, *part, use_reentrant=False)))  # pyright: ignore[reportArgumentType]
                counts.append((part[1] >= 0).sum((0, 1)).flip(0))  # words with a relation, words
            terms, words = torch.stack(means), torch.stack(counts)
            loss, attention = ((terms * words).sum(0) / words.sum(0).clamp(min=1)).unbind()
        if not self.weight:  # DDP needs a gradient for every parameter, also for the null position
            return loss + 0.0 * self.model.heads.null.sum(), (loss,), None
        return loss + self.weight * attention, (loss, attention), None

    def _compute_terms(
        self, encoded: Float[Tensor, "rows positions width"], targets: TreeTargets
    ) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
        """Return (arc loss, attention loss) of encoded sentences; the attention loss is 0 if its weight is 0."""
        scores = self.model.heads(encoded).float()
        loss = arc_loss(scores, targets)
        return loss, attention_loss(scores, self.model.heads.null, targets) if self.weight else torch.zeros_like(loss)


# Scores

UNLABELLED = "_"  # the relation of words in trees without relations
BEST_HEADS = "the best head of each relation and direction, chosen on these sentences, as is the best offset:"
Direction = Literal["to the head word", "to the dependent"]


@dataclass(frozen=True)
class RelationFinding:
    """The attention head that finds a relation best, next to baselines; accuracies in per cent (Clark et al. 2019)."""

    relation: str
    direction: Direction
    count: int
    head: str  # name of the head, or `none` where no head ever finds the relation
    accuracy: float
    offset: int  # the fixed distance to the other word that is right most often
    offset_accuracy: float
    untrained: float | None = None  # accuracy of the best head of a model of the same spec with random weights
    shuffled: float | None = None  # accuracy with the attention of each word permuted

    def __str__(self) -> str:
        baselines = [f"offset {self.offset:+d} {self.offset_accuracy:5.1f}"]
        baselines += [f"untrained {self.untrained:5.1f}"] if self.untrained is not None else []
        baselines += [f"shuffled {self.shuffled:5.1f}"] if self.shuffled is not None else []
        name = f"{self.relation:<12} {self.direction:<17} {self.count:>6,}"
        return f"{name}  {self.head:<18} {self.accuracy:5.1f} %   {'   '.join(baselines)}"


@dataclass(frozen=True)
class RelationScore:
    """Score of one dependency relation, in per cent."""

    relation: str
    count: int  # words that have the relation
    guessed: int  # words that were assigned the relation
    correct: int  # words with the right head and relation
    attended: float | None = None  # how often a parser's attention is on a right dependent (B1)

    @property
    def recall(self) -> float | None:
        """Per cent of words with this gold relation whose head and relation are predicted; None without any."""
        return 100 * self.correct / self.count if self.count else None

    @property
    def precision(self) -> float | None:
        """Per cent of the words predicted to have this relation that are correct; None without such words."""
        return 100 * self.correct / self.guessed if self.guessed else None

    def to_dict(self) -> dict[str, Any]:
        """Return the fields by name, with recall and precision."""
        values = {"relation": self.relation, "count": self.count, "guessed": self.guessed, "correct": self.correct}
        values |= {"recall": self.recall, "precision": self.precision}
        return values | ({"attended": self.attended} if self.attended is not None else {})


@dataclass(frozen=True)
class ParsingScore(Score):
    """Attachment scores (UAS, LAS) in per cent, in total and by relation, next to baselines."""

    title = "Trees"

    sentences: int
    words: int
    uas: float
    las: float | None  # None where trees have no relations
    uas_without_punctuation: float | None  # None where all words are punctuation
    las_without_punctuation: float | None
    relations: tuple[RelationScore, ...]
    baselines: Mapping[str, float]
    protocol: Mapping[str, Any]
    uuas: float | None = None  # per cent of arcs found in either direction, for trees without relations
    loss: float | None = None  # nats/word of the joint (head, relation); None for trees without probabilities
    attended: float | None = None  # how often a parser's attention is on a right dependent (B1)
    findings: tuple[RelationFinding, ...] = ()  # the best attention head of each relation

    @property
    def figures(self) -> dict[str, float]:
        """UAS and, for labelled trees, LAS by name, in per cent."""
        return {"uas": self.uas} | ({"las": self.las} if self.las is not None else {})

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON values: attachment scores, scores by relation, baselines, protocol."""
        values: dict[str, Any] = {"uas": self.uas, "las": self.las}
        values |= {"uuas": self.uuas} if self.las is None else {}
        values["without_punctuation"] = {name: getattr(self, f"{name}_without_punctuation") for name in ("uas", "las")}
        values |= {"sentences": self.sentences, "words": self.words, "loss": self.loss}
        values |= {"attended": self.attended} if self.attended is not None else {}
        values |= {"relations": self.relations, "baselines": self.baselines}
        values |= {"heads": self.findings} if self.findings else {}
        return to_plain({**values, "protocol": self.protocol})

    def __str__(self) -> str:
        lines = [label_line(name, value, 20) for name, value in self._lines()]
        return wrap_lines("\n".join([*lines, *self._table()]))

    def _lines(self) -> NamedValues:
        """Return (name, value) pairs for the summary: attachment scores, baselines, protocol."""
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
        """Return the lines of the table of scores by relation or, for unlabelled trees, of the best attention heads."""
        if self.las is None:
            return [BEST_HEADS, *map(str, self.findings)] if self.findings else []
        head = f"{'relation':<14}{'count':>7}{'recall':>9}{'precision':>11}"
        head += f"{'head':>8}" if self.attended is not None else ""
        lines = [head]
        for score in self.relations:
            attended = f"{score.attended:>8.1f}" if score.attended is not None else ""
            recall, precision = (
                NO_VALUE if value is None else f"{value:.1f}" for value in (score.recall, score.precision)
            )
            lines.append(f"{score.relation:<14}{score.count:>7,}{recall:>9}{precision:>11}{attended}")
        return lines


def _percent(value: float | None) -> str:
    """Return a percentage as text with two decimals; a dash for None."""
    return NO_VALUE if value is None else f"{value:.2f} %"


def score_trees(
    gold: Sequence[Sentence], predicted: Sequence[Sentence], protocol: Mapping[str, Any] | None = None
) -> ParsingScore:
    """Return attachment scores of predicted against gold trees; predicted relations `_` mean unlabelled trees.

    >>> tree = Sentence(("I", "sleep"), (2, 0), ("nsubj", "root"))
    >>> score_trees([tree], [Sentence(("I", "sleep"), (2, 0), ("dobj", "root"))]).to_dict()["las"]
    50.0
    """
    if not gold:
        raise InputError("no trees to compare. Give a treebank that holds sentences.")
    if len(gold) != len(predicted):
        raise InputError(f"{len(gold)} gold trees cannot be compared with {len(predicted)} predicted ones.")
    for number, (right, tree) in enumerate(zip(gold, predicted, strict=True), start=1):
        if len(right.words) != len(tree.words):
            raise InputError(f"sentence {number} has {len(right.words)} words, its predicted tree {len(tree.words)}.")
    gold_heads, heads = ([head for sentence in trees for head in sentence.heads] for trees in (gold, predicted))
    gold_relations, relations = ([name for tree in trees for name in tree.relations] for trees in (gold, predicted))
    has_relations = any(relation != UNLABELLED for relation in relations)
    attached = [head == right for head, right in zip(heads, gold_heads, strict=True)]
    pairs = zip(attached, relations, gold_relations, strict=True)
    correct = [is_attached and relation == right for is_attached, relation, right in pairs]
    is_word = [not is_mark for sentence in gold for is_mark in sentence.punctuation_mask()]

    def percent(hits: Sequence[bool]) -> float | None:
        return 100 * sum(hits) / len(hits) if hits else None

    counts, predictions = Counter(gold_relations), Counter(relations)
    hits = Counter(compress(gold_relations, correct))
    ranked = sorted({*counts, *predictions}, key=lambda relation: (-counts[relation], relation))
    return ParsingScore(
        sentences=len(gold),
        words=len(gold_relations),
        uas=percent(attached) or 0.0,
        las=percent(correct) if has_relations else None,
        uas_without_punctuation=percent(list(compress(attached, is_word))),
        las_without_punctuation=percent(list(compress(correct, is_word))) if has_relations else None,
        relations=tuple(
            RelationScore(name, counts[name], predictions[name], hits[name]) for name in ranked if has_relations
        ),
        baselines=chain_baselines(gold),
        protocol={"scored": "all words, punctuation too", **(protocol or {})},
        uuas=None if has_relations else percent(_undirected_hits(gold, predicted)),
    )


def _undirected_hits(gold: Sequence[Sentence], predicted: Sequence[Sentence]) -> list[bool]:
    """Return for each gold arc between two words whether it was predicted in either direction."""

    def arcs(tree: Sentence) -> list[frozenset[int]]:
        return [frozenset((head, word)) for word, head in enumerate(tree.heads, start=1) if head]

    hits: list[bool] = []
    for right, tree in zip(gold, predicted, strict=True):
        predicted_arcs = set(arcs(tree))
        hits += [arc in predicted_arcs for arc in arcs(right)]
    return hits


def chain_baselines(gold: Sequence[Sentence]) -> dict[str, float]:
    """Return the UAS in per cent, by name, of attaching each word to the word before it, and to the word after."""
    words = [(index, len(tree.heads), head) for tree in gold for index, head in enumerate(tree.heads)]
    before = sum(head == index for index, _, head in words)
    after = sum(head == (index + 2) % (length + 1) for index, length, head in words)  # the last word is the root
    return {"on the word before": 100 * before / len(words), "on the word after": 100 * after / len(words)}


def score_parser(
    model: ParserModel, lexicon: Lexicon, gold: Sequence[Sentence], protocol: Mapping[str, Any] | None = None
) -> ParsingScore:
    """Return the score of a parser's trees on gold sentences, with its loss on the gold arcs in nats/word.

    For B1: from each head word with dependents of a relation, whether that relation's head attends most to one of them.
    """
    if not gold:
        raise InputError("no trees to compare. Give a treebank that holds sentences.")
    predicted: dict[int, Sentence] = {}
    total, num_arcs = 0.0, 0
    hits: Counter[str] = Counter()  # by relation: head words whose attention is on a right dependent
    asked: Counter[str] = Counter()  # by relation: head words that have a dependent
    for index, log_arcs, weights in score_sentences(model, lexicon, [sentence.words for sentence in gold]):
        sentence = gold[index]
        predicted[index] = decode_tree(log_arcs, sentence.words, lexicon).sentence
        relations = np.array([lexicon.relation_id(relation) for relation in sentence.relations])
        is_known = relations >= 0
        gold_arcs = log_arcs[relations[is_known], np.array(sentence.heads)[is_known], np.flatnonzero(is_known)]
        total -= float(gold_arcs.astype(np.float64).sum())
        num_arcs += int(is_known.sum())
        dependents: dict[tuple[int, str], set[int]] = defaultdict(set)
        for head, dependent, relation in sentence.arcs():
            dependents[head, relation].add(dependent)
        for (head, relation), words in dependents.items():
            relation_id = lexicon.relation_id(relation)
            attended = int(weights[relation_id, head].argmax()) if relation_id >= 0 else 0
            hits[relation] += attended in words
            asked[relation] += 1
    unknown = sorted({name for sentence in gold for name in sentence.relations} - set(lexicon.relations))
    entries = {"decoded": "maximum spanning tree with one root"}
    entries |= {"unknown relations": ", ".join(unknown)} if unknown else {}
    score = score_trees(gold, [predicted[index] for index in range(len(gold))], {**entries, **(protocol or {})})
    attended = {relation: 100 * hits[relation] / asked[relation] for relation in asked}
    return replace(
        score,
        loss=total / num_arcs if num_arcs else None,
        attended=100 * hits.total() / asked.total(),
        relations=tuple(replace(item, attended=attended.get(item.relation)) for item in score.relations),
    )
