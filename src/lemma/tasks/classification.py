"""Classification of texts: labelled texts, the loss of their classes, accuracy and F1, and the classes of new texts."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import nn

from lemma.data.corpora import LABELLED_CORPORA
from lemma.data.labels import LabelledExamples, attach_heads, has_trees, prepare_labels
from lemma.data.splits import Splits
from lemma.data.store import encode_texts, fit_rows
from lemma.errors import InputError, RunError, SpecError
from lemma.optional import import_optional
from lemma.models.base import batch_by_length, measuring, tokens_per_batch
from lemma.models.classifier import ClassifierModel
from lemma.report.progress import Observer, SilentObserver, reading_progress
from lemma.report.result import Block, Result, Table, Text
from lemma.report.statistics import Estimate, NamedValues, format_named_values, protocol_values
from lemma.report.text import wrap_lines
from lemma.runs.load import Run
from lemma.spec.data import LabelsSpec
from lemma.spec.models import BodySpec, Classifier, Transformer, Tree, max_text_tokens
from lemma.spec.recipe import Recipe
from lemma.tasks.base import (
    DataArgs,
    ExampleBatches,
    Headline,
    Score,
    SmoothedLoss,
    Task,
    Worker,
    check_unchanged,
    choose_split,
    data_protocol,
    report_skipped,
)
from lemma.tasks.parse_texts import parser_trees, tree_source_for


class ClassificationTask(Task):
    """A classifier says which class each text belongs to."""

    name, option, example, learns = "classification", "labels", "tweets", "labelled texts"
    unit, has_perplexity = "nats/text", False
    data_spec = LabelsSpec
    names, settings, files = LABELLED_CORPORA, ("text_column", "label_column", "limit", "parser"), ("parser",)
    answers = "class"
    no_penalties = "a classifier learns labels"

    def load(
        self,
        data: LabelsSpec,
        model: Classifier,
        recipe: Recipe,
        observer: Observer,
        vocabulary: Any = None,
        labels: tuple[str, ...] = (),
    ) -> Splits[LabelledExamples]:
        """Read labelled texts as the classifier's body reads them."""
        return report_skipped(load_labels(data, model.body, vocabulary, labels, observer, recipe), observer)

    def batches(self, model: Any, examples: LabelledExamples, recipe: Recipe, worker: Worker) -> ExampleBatches:
        """Texts of similar length together."""
        return ExampleBatches(examples, recipe, worker)

    def loss(self, model: ClassifierModel, recipe: Recipe, batches: Any = None) -> SmoothedLoss:
        """The cross-entropy of the classes, with label smoothing."""
        return SmoothedLoss(model, recipe.label_smoothing, lambda model, texts, classes: (model(texts), classes[:, 0]))

    def validate(self, model: ClassifierModel, data: Splits[LabelledExamples], recipe: Recipe) -> "ClassificationScore":
        """Classify the validation texts, without intervals."""
        return score_split(model, data, "validation", samples=0)

    def evaluate(
        self, run: Run, given: DataArgs, split: str | None, settings: Mapping[str, Any], observer: Observer
    ) -> "ClassificationScore":
        """Classify the test texts of a run, or those of another file, and compare with their labels."""
        assert isinstance(run.spec, Classifier)
        if given.name is not None:
            told: dict[str, Any] = {name: given.settings.get(name) for name in ("text", "label", "validation", "test")}
            parser = given.settings.get("parser")
            if isinstance(run.data, LabelsSpec):  # of a pretrained one nothing is known
                parser, told = parser or run.data.parser, {**told, "held_out": run.data.held_out}
            other = LabelsSpec(labels=given.name, **told)
            data = prepare_labels(
                other,
                length=max_tokens(run.spec.body, run.recipe),
                special_tokens=isinstance(run.spec.body, Transformer),
                tokenizer=run.tokenizer,
                labels=run.labels,
                trees=tree_source_for(run.spec.body, other, parser, observer, run.path),
                evaluation=True,
                progress=reading_progress(observer),
            )
            report_skipped(data, observer)
        else:
            assert isinstance(run.data, LabelsSpec)
            data = self.load(run.data, run.spec, run.recipe, observer, run.tokenizer, run.labels)
            drawn = f" with the trees of {run.data.parser}" if run.data.parser else ""
            check_unchanged(run, data, f"{run.data.labels}{drawn}", "labels")
        part = choose_split(data, split)
        return score_split(run.require(ClassifierModel, "a classifier"), data, part, data_protocol(data, part))


class TreeClassificationTask(ClassificationTask):
    """A tree body is trained as part of a classifier, with the trees of a parser."""

    example = "tweets --parser runs/parser"


def max_tokens(body: BodySpec, recipe: Recipe) -> int:
    """The most tokens of a text that a classifier reads: what its body can read, or less where a recipe says so."""
    return min(max_text_tokens(body), recipe.sequence_length or max_text_tokens(body))


def load_labels(
    data: LabelsSpec,
    body: BodySpec,
    tokenizer: Any,
    labels: tuple[str, ...],
    observer: Observer,
    recipe: Recipe | None = None,
) -> Splits[LabelledExamples]:
    """Labelled texts as a body reads them; those that a tree body cannot learn are refused before anything is read."""
    if isinstance(body, Tree) and data.tokenizer.kind != "words":
        raise SpecError(
            f"tokenizer = {data.tokenizer.kind}: the tokens of a tree are its words. Say tokenizer=words, or leave it "
            "to the preset: lemma train tree …"
        )
    if isinstance(body, Tree) and data.parser is not None and has_trees(data.labels):
        raise SpecError(f"{data.labels} holds trees already: nothing is left for the parser. Leave --parser out.")
    return prepare_labels(
        data,
        length=max_tokens(body, recipe or Recipe()),
        special_tokens=isinstance(body, Transformer),
        tokenizer=tokenizer,
        labels=labels or None,
        trees=tree_source_for(body, data, data.parser, observer),
        progress=reading_progress(observer),
    )


def score_split(
    model: ClassifierModel,
    data: Splits[LabelledExamples],
    split: str,
    protocol: Mapping[str, Any] | None = None,
    samples: int = 1000,
) -> "ClassificationScore":
    """Classify the texts of a split, and compare with their labels."""
    examples = data.item(split)
    return score_classes(examples.classes, classify(model, examples), data.labels, protocol, samples=samples)


# Scores


MAX_TABLE_CLASSES, MAX_CONFUSIONS = 8, 10
"""Of a table of more classes, not all confusions are shown but the most frequent ones."""
LABEL_WIDTH = 24


@dataclass(frozen=True)
class ClassScore:
    """How one class fared: shares from 0 to 1, the texts that are of it and those that were said to be."""

    label: str
    precision: float
    recall: float
    f1: float
    support: int
    guessed: int


@dataclass(frozen=True)
class ClassificationScore(Score):
    """Accuracy, and precision, recall and F1 averaged over the classes; shares from 0 to 1."""

    title = "Classification"

    texts: int
    accuracy: Estimate
    precision: Estimate
    recall: Estimate
    f1: Estimate
    classes: tuple[ClassScore, ...]
    confusion: tuple[tuple[int, ...], ...]
    """Row: the class of a text; column: what it was said to be."""
    loss: float
    """The mean of −log p(class), in nats."""
    protocol: Mapping[str, Any]
    unit: str = "text"
    """What is classified: a text, or a node of a graph."""

    @property
    def majority(self) -> tuple[str, float]:
        """The most frequent class of these texts, and the accuracy of always saying it."""
        majority = max(self.classes, key=lambda score: score.support)
        return majority.label, majority.support / self.texts

    @property
    def figures(self) -> dict[str, float]:
        """The figures that a training run writes down at each validation."""
        return {"accuracy": self.accuracy.value, "f1": self.f1.value}

    @property
    def headline(self) -> Headline:
        """The accuracy, next to that of always naming the most frequent class."""
        return Headline("accuracy", self.accuracy.value, self.accuracy.interval, baseline=self.majority[1])

    def to_dict(self) -> dict[str, Any]:
        """Return plain values that are good JSON: None for what is infinite or NaN."""
        means = {"accuracy": self.accuracy, "precision": self.precision, "recall": self.recall, "f1": self.f1}
        label, share = self.majority
        return {
            **{name: estimate.value for name, estimate in means.items()},
            "intervals": {name: estimate.interval for name, estimate in means.items() if estimate.interval},
            "loss": self.loss if math.isfinite(self.loss) else None,
            f"{self.unit}s": self.texts,
            "classes": [asdict(score) for score in self.classes],
            "confusion": [list(row) for row in self.confusion],
            "majority": {"label": label, "accuracy": share},
            "protocol": dict(self.protocol),
        }

    def __str__(self) -> str:
        return wrap_lines("\n".join([format_named_values(self._lines()), "", *self._table()]))

    def _lines(self) -> NamedValues:
        label, share = self.majority
        return [
            ("accuracy", self.accuracy.format_interval(100, " %")),
            ("precision", f"{self.precision.format_interval(100, ' %')}, mean of the classes"),
            ("recall", f"{self.recall.format_interval(100, ' %')}, mean of the classes"),
            ("F1", f"{self.f1.format_interval(100, ' %')}, mean of the classes"),
            ("majority", f"{100 * share:.2f} % by always saying '{_short(label)}'"),
            ("loss", f"{self.loss:.4f} nats/{self.unit}"),
            (f"{self.unit}s", f"{self.texts:,}"),
            *protocol_values(self.protocol),
        ]

    def _table(self) -> list[str]:
        names = [_short(score.label) for score in self.classes]
        width = max(5, *map(len, names)) + 1
        head = f"{'class':<{width}}{'precision':>10}{'recall':>9}{'F1':>9}{self.unit + 's':>9}{'said':>9}"
        lines = [
            f"{name:<{width}}{100 * score.precision:>8.2f} %{100 * score.recall:>7.2f} %{100 * score.f1:>7.2f} %"
            f"{score.support:>9,}{score.guessed:>9,}"
            for name, score in zip(names, self.classes, strict=True)
        ]
        lines = [head, *lines, ""]
        if len(names) > MAX_TABLE_CLASSES:
            cells = ((n, i, j) for i, row in enumerate(self.confusion) for j, n in enumerate(row) if i != j and n)
            most = sorted(cells, key=lambda cell: (-cell[0], cell[1:]))[:MAX_CONFUSIONS]
            shown = [f"{count:>7,}  {names[i]} → {names[j]}" for count, i, j in most]
            return [*lines, "most frequent confusions:", *shown]
        names = [score.label for score in self.classes]
        left = min(max(5, *map(len, names)), LABEL_WIDTH) + 1
        number = len(f"{max(map(max, self.confusion)):,}")
        width = max(number, min(max(map(len, names)), (78 - left) // len(names) - 1))
        left = min(left, 79 - (width + 1) * len(names))
        head = "".join(f" {name[:width]:>{width}}" for name in names)
        rows = zip(names, self.confusion, strict=True)
        body = [f"{name[: left - 1]:<{left}}" + "".join(f" {n:>{width},}" for n in row) for name, row in rows]
        said = f"rows: the class of a {self.unit}; columns: what it was said to be"
        return [*lines, said, " " * left + head, *body]


def _short(label: str) -> str:
    return label if len(label) <= LABEL_WIDTH else f"{label[: LABEL_WIDTH - 1]}…"


Counts = Int64[np.ndarray, "samples classes"]
BOOTSTRAP_ELEMENTS = 1 << 23
"""Numbers drawn at once: 64 MB."""


def classify(
    model: nn.Module, examples: LabelledExamples, batch: int | None = None
) -> Float[np.ndarray, "texts classes"]:
    """The probability of each class for each text, by a model of tokens to logits; `batch` texts at once, if set."""
    found: list[np.ndarray] = []
    order: list[np.ndarray] = []
    with measuring(model) as device:
        for group in batch_by_length(examples.lengths, tokens_per_batch(device)):
            for start in range(0, len(group), batch or len(group)):
                some = group[start : start + (batch or len(group))]
                tokens, _ = examples.batch(some)
                logits = model(torch.from_numpy(tokens).to(device))
                found.append(logits.double().softmax(-1).cpu().numpy())
                order.append(some)
    return np.concatenate(found)[np.argsort(np.concatenate(order), kind="stable")]


def score_classes(
    gold: Sequence[int] | Int64[np.ndarray, " texts"],
    probabilities: Float[np.ndarray, "texts classes"],
    labels: Sequence[str],
    protocol: Mapping[str, Any] | None = None,
    *,
    samples: int = 1000,
    seed: int = 0,
    unit: str = "text",
) -> ClassificationScore:
    """Compare the most likely class of each text with its own.

    The means over classes are over those that are there or were guessed, each counting the same ("macro").
    """
    right, table = np.asarray(gold, dtype=np.int64), np.asarray(probabilities, dtype=np.float64)
    if not len(right):
        raise InputError("no texts to score. Give a file that holds some.")
    if table.shape != (len(right), len(labels)):
        raise InputError(
            f"{len(right)} texts and {len(labels)} labels need chances of shape {(len(right), len(labels))}, "
            f"got {table.shape}."
        )
    if right.min() < 0 or right.max() >= len(labels):
        wrong = int(right.min() if right.min() < 0 else right.max())
        raise InputError(f"the class {wrong} is not one of 0 to {len(labels) - 1}, the numbers of the labels.")
    guessed, numbers = table.argmax(1), list(range(len(labels)))
    metrics = import_optional("sklearn.metrics", "scikit-learn", "scoring classes")
    means = metrics.precision_recall_fscore_support(right, guessed, average="macro", zero_division=0)[:3]
    figures = [metrics.accuracy_score(right, guessed), *means]
    drawn = bootstrap_metrics(right, guessed, len(labels), samples, seed)
    accuracy, precision, recall, f1 = (Estimate.from_resamples(*both) for both in zip(figures, drawn, strict=True))
    by_class = metrics.precision_recall_fscore_support(right, guessed, labels=numbers, zero_division=0)
    times = np.bincount(guessed, minlength=len(labels))
    intervals = {"intervals": f"bootstrap over {unit}s, {samples:,} samples, seed {seed}"} if samples else {}
    with np.errstate(divide="ignore"):
        loss = float(-np.log(table[np.arange(len(right)), right]).mean())
    return ClassificationScore(
        texts=len(right),
        accuracy=accuracy,
        precision=precision,
        recall=recall,
        f1=f1,
        classes=tuple(
            ClassScore(label, float(precision), float(recall), float(f1), int(support), int(times[number]))
            for number, (label, precision, recall, f1, support) in enumerate(zip(labels, *by_class, strict=True))
        ),
        confusion=tuple(tuple(map(int, row)) for row in metrics.confusion_matrix(right, guessed, labels=numbers)),
        loss=loss,
        protocol={**(protocol or {}), **intervals},
        unit=unit,
    )


def bootstrap_metrics(
    gold: Int64[np.ndarray, " texts"], predicted: Int64[np.ndarray, " texts"], num_classes: int, samples: int, seed: int
) -> Float[np.ndarray, "figures samples"]:
    """Accuracy, and macro precision, recall and F1, of texts drawn with replacement, as often as asked.

    These figures need only how often each (class, guess) is drawn, and that is a multinomial draw over the pairs seen:
    a thousand samples of ten thousand texts take a fraction of a second.
    """
    random = np.random.default_rng(seed)
    pairs, counts = np.unique(np.stack([gold, predicted]), axis=1, return_counts=True)
    step = max(1, BOOTSTRAP_ELEMENTS // (len(counts) + 3 * num_classes))
    parts = [
        _figures(random.multinomial(len(gold), counts / len(gold), size=min(step, samples - start)), pairs, num_classes)
        for start in range(0, samples, step)
    ]
    return np.concatenate(parts, axis=1) if parts else np.zeros((4, 0))


def _figures(
    drawn: Int64[np.ndarray, "samples pairs"], pairs: Int64[np.ndarray, "two pairs"], classes: int
) -> Float[np.ndarray, "figures samples"]:
    there, guessed, right = (np.zeros((len(drawn), classes), dtype=np.int64) for _ in range(3))
    for column, (gold, guess) in zip(drawn.T, pairs.T, strict=True):
        there[:, gold] += column
        guessed[:, guess] += column
        if gold == guess:
            right[:, gold] += column
    seen = (there + guessed) > 0
    shares = [_share(right, guessed), _share(right, there), _share(2 * right, there + guessed)]
    means = [share.sum(1) / seen.sum(1) for share in shares]
    return np.stack([right.sum(1) / there.sum(1), *means])


def _share(part: Counts, whole: Counts) -> Float[np.ndarray, "samples classes"]:
    """0 of nothing, as scikit-learn has it with zero_division=0."""
    return np.divide(part, whole, out=np.zeros(part.shape), where=whole > 0)


# The classes of texts without labels


@dataclass(frozen=True)
class Classification(Result):
    """A text, its most likely class, and the probability of each."""

    title = "Class of a text"

    source: str
    label: str
    probabilities: dict[str, float]
    note: str = ""

    @property
    def probability(self) -> float:
        """The probability of the class it is given."""
        return self.probabilities[self.label]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        plain = {"source": self.source, "label": self.label, "chance": self.probability, "chances": self.probabilities}
        return {**plain, "remark": self.note}

    def blocks(self) -> Iterator[Block]:
        """The class and its probability."""
        yield Text(f"{self.label}  {self.probability:.3f}" + (f"  ({self.note})" if self.note else ""))

    def details(self) -> Iterator[Block]:
        """The text, and the probability of each class."""
        yield Text(self.source)
        chances = sorted(self.probabilities.items(), key=lambda item: -item[1])
        yield Table(("class", "probability"), [(label, f"{chance:.3f}") for label, chance in chances])


def classify_texts(run: Run, texts: Sequence[str]) -> list[Classification]:
    """Let a classifier name the class of each text; what is longer than it reads is cut, and the result says so."""
    assert isinstance(run.spec, Classifier)
    for place, text in enumerate(texts):
        if not isinstance(text, str):
            raise InputError(f"source {place} is {text!r} ({type(text).__name__}), not a text. Put it in quotes.")
        if not text.strip():
            raise InputError(f"source {place} is empty: there is nothing to classify.")
    if not texts:
        return []
    body, tokenizer = run.spec.body, run.tokenizer
    special_tokens, length = isinstance(body, Transformer), max_tokens(body, run.recipe)
    room = length - sum(map(len, tokenizer.boundary_tokens(special_tokens)))
    spoken, heads = list(texts), ()
    if isinstance(body, Tree):  # it reads the words of trees, and their heads
        if not isinstance(run.data, LabelsSpec) or run.data.parser is None:
            raise RunError(
                f"{run.path} learned trees that were given, and has no parser to draw those of a text. Evaluate on "
                f"trees: lemma evaluate {quote(str(run.path))} --labels FILE.conllu"
            )
        parsed = parser_trees(Path(run.data.parser), SilentObserver()).parse(texts)
        spoken, heads = [one.text for one in parsed], [one.heads for one in parsed]
    rows, _ = encode_texts(tokenizer, spoken, lambda size: None)
    kept = fit_rows(rows, tokenizer, length, special_tokens)
    examples = LabelledExamples(kept, np.zeros(len(texts), dtype=np.int64))
    model = run.require(ClassifierModel, "a classifier")
    chances = classify(model, attach_heads(examples, heads) if heads else examples)
    found: list[Classification] = []
    for text, words, length, shares in zip(texts, spoken, rows.lengths.tolist(), chances, strict=True):
        unknown = tokenizer.encode_lossy(words)[1]
        characters = "character" if unknown == 1 else "characters"
        remarks = [
            f"{unknown} {characters} left out: the tokenizer does not know them" if unknown else "",
            f"only the first {room} of {length} tokens were read" if length > room else "",
        ]
        by_label = {label: float(chance) for label, chance in zip(run.labels, shares, strict=True)}
        found.append(Classification(text, run.labels[int(shares.argmax())], by_label, "; ".join(filter(None, remarks))))
    return found
