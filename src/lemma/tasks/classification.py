"""Classification of texts: labelled texts, the loss of their classes, accuracy and F1, and the classes of new texts."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import nn

from lemma.data.batches import batch_by_length
from lemma.data.labels import LabelledExamples, attach_heads, has_trees, prepare_labels
from lemma.data.splits import Splits
from lemma.data.store import encode_texts, fit_rows
from lemma.errors import InputError, RunError, SpecError
from lemma.models.base import measuring, tokens_per_batch
from lemma.models.classifier import ClassifierModel
from lemma.optional import import_optional
from lemma.report.progress import Observer, SilentObserver
from lemma.report.result import Block, Result, Table, Text, to_plain
from lemma.report.statistics import Estimate, NamedValues, format_named_values, protocol_values
from lemma.report.text import wrap_lines
from lemma.runs.load import Run
from lemma.spec.data import LabelsSpec
from lemma.spec.models import BodySpec, Classifier, Transformer, Tree, max_text_tokens
from lemma.spec.recipe import Recipe
from lemma.tasks.base import (
    ExampleBatches,
    Headline,
    LoadContext,
    Score,
    SmoothedLoss,
    Task,
    Worker,
    data_protocol,
)
from lemma.tasks.parse_texts import parser_trees, tree_source_for
from lemma.tasks.registry import CLASSIFICATION, TREE_CLASSIFICATION, DataArgs


class ClassificationTask(Task):
    """Classification of texts."""

    info = CLASSIFICATION

    def _read(self, data: LabelsSpec, context: LoadContext) -> Splits[LabelledExamples]:
        """Return the splits of labelled texts, with dependency trees for a tree backbone.

        Without labels in the context, the classes are those of the texts.
        """
        body = context.model.body
        if isinstance(body, Tree) and not context.is_evaluation:
            if data.tokenizer.kind != "words":
                raise SpecError(
                    f"tokenizer = {data.tokenizer.kind}: the tokens of a tree are its words. Choose tokenizer=words, "
                    "or leave it to the preset: lemma train tree …"
                )
            if data.parser is not None and has_trees(data.labels):
                raise SpecError(
                    f"{data.labels} holds trees already: nothing is left for the parser. Leave --parser out."
                )
        return prepare_labels(
            data,
            length=max_tokens(body, context.recipe),
            special_tokens=isinstance(body, Transformer),
            tokenizer=context.vocabulary,
            labels=context.labels or None,
            trees=tree_source_for(body, data, context.observer, context.run_path),
            evaluation=context.is_evaluation,
            progress=context.progress,
        )

    def _load_other(self, run: Run, args: DataArgs, split: str | None, observer: Observer) -> Splits[LabelledExamples]:
        """Return the labelled texts in `args`; a tree model's own parser makes their trees unless `args` name one."""
        parser = run.data.parser if isinstance(run.data, LabelsSpec) else None
        settings = {"parser": parser, **args.settings, "limit": None}
        return super()._load_other(run, replace(args, settings=settings), split, observer)

    def _data_name(self, data: LabelsSpec) -> str:
        """Return the file of labelled texts in a data spec and the parser of their trees, for messages."""
        return data.labels + (f" with the trees of {data.parser}" if data.parser else "")

    def batches(self, model: Any, examples: LabelledExamples, recipe: Recipe, worker: Worker) -> ExampleBatches:
        """Return batches of labelled texts of similar length."""
        return ExampleBatches(examples, recipe, worker)

    def loss(self, model: ClassifierModel, recipe: Recipe, batches: Any = None) -> SmoothedLoss:
        """Return the model with the cross-entropy of each text's class."""
        return SmoothedLoss(model, recipe.label_smoothing, lambda model, texts, classes: (model(texts), classes[:, 0]))

    def validate(self, model: ClassifierModel, data: Splits[LabelledExamples], recipe: Recipe) -> "ClassificationScore":
        """Return the score on the validation texts, without bootstrap intervals."""
        examples = data.item("validation")
        return score_classes(examples.classes, classify(model, examples), data.labels, samples=0)

    def score(
        self, run: Run, data: Splits[LabelledExamples], split: str, settings: Mapping[str, Any], observer: Observer
    ) -> "ClassificationScore":
        """Return a run's score on the labelled texts of a split, with bootstrap intervals."""
        examples, model = data.item(split), run.require(ClassifierModel, "a classifier")
        return score_classes(examples.classes, classify(model, examples), data.labels, data_protocol(data, split))


class TreeClassificationTask(ClassificationTask):
    """Classification with a tree body, which reads the trees of a parser."""

    info = TREE_CLASSIFICATION


def max_tokens(body: BodySpec, recipe: Recipe) -> int:
    """Return how many tokens of a text a classifier reads at most: its backbone's limit, or the recipe's if smaller."""
    return min(max_text_tokens(body), recipe.sequence_length or max_text_tokens(body))


# Scores

MAX_TABLE_CLASSES = 8  # with more classes, the most frequent confusions are listed instead of the whole matrix
MAX_CONFUSIONS = 10
LABEL_WIDTH = 24


@dataclass(frozen=True)
class ClassScore:
    """Score of one class: precision, recall and F1 from 0 to 1, and numbers of texts."""

    label: str
    precision: float
    recall: float
    f1: float
    support: int  # texts of this class
    guessed: int  # texts that were assigned to it


@dataclass(frozen=True)
class ClassificationScore(Score):
    """Accuracy, and precision, recall and F1 averaged over the classes, from 0 to 1."""

    title = "Classification"

    texts: int
    accuracy: Estimate
    precision: Estimate
    recall: Estimate
    f1: Estimate
    classes: tuple[ClassScore, ...]
    confusion: tuple[tuple[int, ...], ...]  # number of texts by class (rows) and by assigned class (columns)
    loss: float  # mean of −log p(class), in nats
    protocol: Mapping[str, Any]
    unit: str = "text"  # the item that is classified: "text", or "node" of a graph

    @property
    def majority(self) -> tuple[str, float]:
        """The most frequent class, and the accuracy (0 to 1) of always predicting it."""
        majority = max(self.classes, key=lambda score: score.support)
        return majority.label, majority.support / self.texts

    @property
    def figures(self) -> dict[str, float]:
        """Accuracy and mean F1 by name, from 0 to 1."""
        return {"accuracy": self.accuracy.value, "f1": self.f1.value}

    @property
    def headline(self) -> Headline:
        """The accuracy, with that of always predicting the most frequent class as its baseline."""
        return Headline("accuracy", self.accuracy.value, self.accuracy.interval, baseline=self.majority[1])

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON values: mean metrics with intervals, scores by class, confusion matrix, protocol."""
        means = {"accuracy": self.accuracy, "precision": self.precision, "recall": self.recall, "f1": self.f1}
        label, accuracy = self.majority
        values = {name: estimate.value for name, estimate in means.items()}
        values |= {"intervals": {name: estimate.interval for name, estimate in means.items() if estimate.interval}}
        values |= {"loss": self.loss, f"{self.unit}s": self.texts, "classes": self.classes, "confusion": self.confusion}
        return to_plain({**values, "majority": {"label": label, "accuracy": accuracy}, "protocol": self.protocol})

    def __str__(self) -> str:
        return wrap_lines("\n".join([format_named_values(self._lines()), "", *self._table()]))

    def _lines(self) -> NamedValues:
        """Return (name, value) pairs for the summary: accuracy, means over the classes, loss, protocol."""
        label, accuracy = self.majority
        return [
            ("accuracy", self.accuracy.format_interval(100, " %")),
            ("precision", f"{self.precision.format_interval(100, ' %')}, mean of the classes"),
            ("recall", f"{self.recall.format_interval(100, ' %')}, mean of the classes"),
            ("F1", f"{self.f1.format_interval(100, ' %')}, mean of the classes"),
            ("majority", f"{100 * accuracy:.2f} % by always saying '{_shorten(label)}'"),
            ("loss", f"{self.loss:.4f} nats/{self.unit}"),
            (f"{self.unit}s", f"{self.texts:,}"),
            *protocol_values(self.protocol),
        ]

    def _table(self) -> list[str]:
        """Return the lines of the table of scores by class, with the confusions below."""
        names = [_shorten(score.label) for score in self.classes]
        width = max(5, *map(len, names)) + 1
        head = f"{'class':<{width}}{'precision':>10}{'recall':>9}{'F1':>9}{self.unit + 's':>9}{'said':>9}"
        lines = [
            f"{name:<{width}}{100 * score.precision:>8.2f} %{100 * score.recall:>7.2f} %{100 * score.f1:>7.2f} %"
            f"{score.support:>9,}{score.guessed:>9,}"
            for name, score in zip(names, self.classes, strict=True)
        ]
        lines = [head, *lines, ""]
        if len(names) > MAX_TABLE_CLASSES:
            return [*lines, "most frequent confusions:", *self._confusion_list(names)]
        return [*lines, f"rows: the class of a {self.unit}; columns: what it was said to be", *self._confusion_matrix()]

    def _confusion_list(self, names: list[str]) -> list[str]:
        """Return lines with the most frequent wrong pairs (true class → predicted class) and their counts."""
        cells = ((n, i, j) for i, row in enumerate(self.confusion) for j, n in enumerate(row) if i != j and n)
        largest = sorted(cells, key=lambda cell: (-cell[0], cell[1:]))[:MAX_CONFUSIONS]
        return [f"{count:>7,}  {names[i]} → {names[j]}" for count, i, j in largest]

    def _confusion_matrix(self) -> list[str]:
        """Return the lines of the confusion matrix: rows are true classes, columns predicted ones."""
        names = [score.label for score in self.classes]
        name_width = min(max(5, *map(len, names)), LABEL_WIDTH) + 1
        digits = len(f"{max(map(max, self.confusion)):,}")
        width = max(digits, min(max(map(len, names)), (78 - name_width) // len(names) - 1))
        name_width = min(name_width, 79 - (width + 1) * len(names))
        lines = [" " * name_width + "".join(f" {name[:width]:>{width}}" for name in names)]
        for name, row in zip(names, self.confusion, strict=True):
            lines.append(f"{name[: name_width - 1]:<{name_width}}" + "".join(f" {count:>{width},}" for count in row))
        return lines


def _shorten(label: str) -> str:
    """Return a label cut to the maximum width of a label in the table."""
    return label if len(label) <= LABEL_WIDTH else f"{label[: LABEL_WIDTH - 1]}…"


FigureSamples = Float[np.ndarray, "figures samples"]
BOOTSTRAP_ELEMENTS = 1 << 23  # numbers drawn at once: 64 MB


def classify(model: nn.Module, examples: LabelledExamples) -> Float[np.ndarray, "texts classes"]:
    """Return the probability of each class for each text, by a classifier (`model`)."""
    probabilities: list[np.ndarray] = []
    order: list[np.ndarray] = []
    with measuring(model) as device:
        for indices in batch_by_length(examples.lengths, tokens_per_batch(device)):
            tokens, _ = examples.batch(indices)
            logits = model(torch.from_numpy(tokens).to(device))
            probabilities.append(logits.double().softmax(-1).cpu().numpy())
            order.append(indices)
    return np.concatenate(probabilities)[np.argsort(np.concatenate(order), kind="stable")]


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
    """Return the score of the most probable classes against the true class indices `gold`, with bootstrap intervals.

    Macro averages are over the classes that occur or were predicted.
    """
    gold, table = np.asarray(gold, dtype=np.int64), np.asarray(probabilities, dtype=np.float64)
    if not len(gold):
        raise InputError("no texts to score. Give a file that holds some.")
    if table.shape != (len(gold), len(labels)):
        raise InputError(
            f"{len(gold)} texts and {len(labels)} labels need probabilities of shape {(len(gold), len(labels))}, "
            f"got {table.shape}."
        )
    if gold.min() < 0 or gold.max() >= len(labels):
        number = int(gold.min() if gold.min() < 0 else gold.max())
        raise InputError(f"the class {number} is not one of 0 to {len(labels) - 1}, the numbers of the labels.")
    predicted, numbers = table.argmax(1), range(len(labels))
    metrics = import_optional("sklearn.metrics", "scikit-learn", "scoring classes")
    means = metrics.precision_recall_fscore_support(gold, predicted, average="macro", zero_division=0)[:3]
    by_class = metrics.precision_recall_fscore_support(gold, predicted, labels=numbers, zero_division=0)
    confusion = metrics.confusion_matrix(gold, predicted, labels=numbers)
    figures = [metrics.accuracy_score(gold, predicted), *means]
    accuracy, precision, recall, f1 = map(Estimate.from_resamples, figures, bootstrap_metrics(confusion, samples, seed))
    intervals = {"intervals": f"bootstrap over {unit}s, {samples:,} samples, seed {seed}"} if samples else {}
    with np.errstate(divide="ignore"):
        loss = float(-np.log(table[np.arange(len(gold)), gold]).mean())
    return ClassificationScore(
        texts=len(gold),
        accuracy=accuracy,
        precision=precision,
        recall=recall,
        f1=f1,
        classes=tuple(map(ClassScore, labels, *(values.tolist() for values in (*by_class, confusion.sum(0))))),
        confusion=tuple(map(tuple, confusion.tolist())),
        loss=loss,
        protocol={**(protocol or {}), **intervals},
        unit=unit,
    )


def bootstrap_metrics(confusion: Int64[np.ndarray, "classes classes"], samples: int, seed: int) -> FigureSamples:
    """Return accuracy and macro precision, recall and F1 (rows) of `samples` bootstrap samples of the texts.

    The metrics depend only on how often each (class, prediction) is drawn, which is one multinomial draw per sample.
    """
    random = np.random.default_rng(seed)
    rows, columns = np.nonzero(confusion)
    counts = confusion[rows, columns]
    step = max(1, BOOTSTRAP_ELEMENTS // confusion.size)
    blocks = [np.zeros((4, 0))]
    for start in range(0, samples, step):
        draws = np.zeros((min(step, samples - start), *confusion.shape), dtype=np.int64)
        draws[:, rows, columns] = random.multinomial(counts.sum(), counts / counts.sum(), size=len(draws))
        blocks.append(macro_metrics(draws))
    return np.concatenate(blocks, axis=1)


def macro_metrics(confusions: Int64[np.ndarray, "samples classes classes"]) -> FigureSamples:
    """Return accuracy and macro precision, recall and F1 (rows) of each confusion matrix.

    Means are over the classes that occur or are predicted; 0/0 is 0, as in scikit-learn with zero_division=0.
    """
    support, guessed = confusions.sum(2), confusions.sum(1)
    correct, occurs = confusions.diagonal(axis1=1, axis2=2), (support + guessed) > 0

    def mean_ratio(numerator: np.ndarray, denominator: np.ndarray) -> Float[np.ndarray, " samples"]:
        ratios = np.divide(numerator, denominator, out=np.zeros(numerator.shape), where=denominator > 0)
        return ratios.sum(1) / occurs.sum(1)

    ratios = [(correct, guessed), (correct, support), (2 * correct, support + guessed)]
    return np.stack([correct.sum(1) / support.sum(1), *(mean_ratio(*pair) for pair in ratios)])


# The classes of texts without labels


@dataclass(frozen=True)
class Classification(Result):
    """A text's most likely class, and the probability of each class."""

    title = "Class of a text"

    source: str
    label: str
    probabilities: dict[str, float]
    note: str = ""

    @property
    def probability(self) -> float:
        """Probability of the most likely class."""
        return self.probabilities[self.label]

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON values: text, class, its probability, those of all classes, and a remark."""
        chances = {"chance": self.probability, "chances": self.probabilities}
        return {"source": self.source, "label": self.label, **chances, "remark": self.note}

    def blocks(self) -> Iterator[Block]:
        """Yield one line with the most likely class and its probability."""
        yield Text(f"{self.label}  {self.probability:.3f}" + (f"  ({self.note})" if self.note else ""))

    def details(self) -> Iterator[Block]:
        """Yield the blocks of the detailed output: the text, and a table of all classes with their probabilities."""
        yield Text(self.source)
        ranked = sorted(self.probabilities.items(), key=lambda item: -item[1])
        yield Table(("class", "probability"), [(label, f"{probability:.3f}") for label, probability in ranked])


def classify_texts(run: Run, texts: Sequence[str]) -> list[Classification]:
    """Return the predicted class of each text with all probabilities; a text that is too long is cut and marked."""
    assert isinstance(run.spec, Classifier)
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            raise InputError(f"source {index} is {text!r} ({type(text).__name__}), not a text. Put it in quotes.")
        if not text.strip():
            raise InputError(f"source {index} is empty: there is nothing to classify.")
    if not texts:
        return []
    body, tokenizer = run.spec.body, run.tokenizer
    special_tokens, length = isinstance(body, Transformer), max_tokens(body, run.recipe)
    capacity = length - sum(map(len, tokenizer.boundary_tokens(special_tokens)))
    inputs, heads = list(texts), ()
    if isinstance(body, Tree):  # it reads the words of trees, and their heads
        if not isinstance(run.data, LabelsSpec) or run.data.parser is None:
            raise RunError(
                f"{run.path} learned trees that were given, and has no parser to draw those of a text. Evaluate on "
                f"trees: lemma evaluate {quote(str(run.path))} --labels FILE.conllu"
            )
        parsed = parser_trees(Path(run.data.parser), SilentObserver()).parse(texts)
        inputs, heads = [words.text for words in parsed], [words.heads for words in parsed]
    rows, _ = encode_texts(tokenizer, inputs, lambda size: None)
    examples = LabelledExamples(fit_rows(rows, tokenizer, length, special_tokens), np.zeros(len(texts), dtype=np.int64))
    model = run.require(ClassifierModel, "a classifier")
    probabilities = classify(model, attach_heads(examples, heads) if heads else examples)
    results: list[Classification] = []
    for text, source, length, row in zip(texts, inputs, rows.lengths.tolist(), probabilities, strict=True):
        unknown = tokenizer.encode_lossy(source)[1]
        characters = "character" if unknown == 1 else "characters"
        notes = [
            f"{unknown} {characters} left out: the tokenizer does not know them" if unknown else "",
            f"only the first {capacity} of {length} tokens were read" if length > capacity else "",
        ]
        by_label = dict(zip(run.labels, map(float, row), strict=True))
        results.append(Classification(text, run.labels[int(row.argmax())], by_label, "; ".join(filter(None, notes))))
    return results
