"""Exercises on metrics: BLEU, ROUGE, edit distance, F1, κ, rankings, perplexity and information."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
from pydantic import BeforeValidator, Field, ValidationInfo, model_validator

from lemma.checking.check_values import AnswerKey, Target, ValueClaim, ValueReport, select_part
from lemma.checking.exercises import class_metrics, information_metrics, text_metrics
from lemma.checking.exercises.notation import make_alternatives
from lemma.checking.exercises.statements import (
    MAX_NUMBERS,
    MAX_TEXT_CHARS,
    ConventionExercise,
    Matrix,
    Sentences,
    Vector,
    Words,
    check_information_units,
    read_vector,
    to_text,
)
from lemma.checking.exercises.text_metrics import EditCosts, split_words
from lemma.checking.expected_values import ExpectedValue
from lemma.errors import InputError

METRICS = Literal[
    "bleu",
    "rouge",
    "rouge-1",
    "rouge-2",
    "rouge-l",
    "chrf",
    "edit-distance",
    "wer",
    "cer",
    "precision",
    "recall",
    "f1",
    "accuracy",
    "classification",
    "kappa",
    "precision-at-k",
    "recall-at-k",
    "average-precision",
    "map",
    "mrr",
    "ndcg",
    "ranking",
    "perplexity",
    "entropy",
    "cross-entropy",
    "kl",
    "jensen-shannon",
    "mutual-information",
    "pmi",
    "pass-at-k",
]
SYNONYMS = {
    "rougel": "rouge-l",
    "rouge1": "rouge-1",
    "rouge2": "rouge-2",
    "levenshtein": "edit-distance",
    "edit": "edit-distance",
    "editdistance": "edit-distance",
    "word-error-rate": "wer",
    "f-score": "f1",
    "f": "f1",
    "cohen": "kappa",
    "cohens-kappa": "kappa",
    "cohen-kappa": "kappa",
    "p@k": "precision-at-k",
    "precision@k": "precision-at-k",
    "recall@k": "recall-at-k",
    "ap": "average-precision",
    "mean-average-precision": "map",
    "mean-reciprocal-rank": "mrr",
    "dcg": "ndcg",
    "ppl": "perplexity",
    "pp": "perplexity",
    "kl-divergence": "kl",
    "js": "jensen-shannon",
    "jsd": "jensen-shannon",
    "mi": "mutual-information",
    "pass@k": "pass-at-k",
    "passk": "pass-at-k",
    "ppmi": "pmi",
}
ROUGE = ("rouge", "rouge-1", "rouge-2", "rouge-l")
EDITS = ("edit-distance", "wer", "cer")
CLASSES = ("precision", "recall", "f1", "accuracy", "classification")
RANKINGS = ("precision-at-k", "recall-at-k", "average-precision", "map", "mrr", "ndcg", "ranking")
DIVERGENCES = ("entropy", "cross-entropy", "kl", "jensen-shannon")
LOGARITHMS = ("perplexity", "mutual-information", "pmi", *DIVERGENCES)
MAX_TOKENS, MAX_EDIT_TOKENS, MAX_CLASSES = 2000, 120, 12


def read_metric(value: Any) -> str:
    """Return the name of a metric in its usual spelling."""
    name = re.sub(r"[\s_]+", "-", str(value).strip().casefold())
    return SYNONYMS.get(name, name)


def read_references(value: Any, info: ValidationInfo) -> tuple[tuple[str, ...], ...]:
    """Return references as alternatives for each sentence: " / " is between sentences, " | " between alternatives."""
    if isinstance(value, list | tuple):
        groups = [item if isinstance(item, list | tuple) else re.split(r"\s\|\s", to_text(item)) for item in value]
    else:
        sentences = re.split(r"\s/\s|\n", to_text(value))
        groups = [re.split(r"\s\|\s", sentence) for sentence in sentences]
    if sum(len(to_text(text)) for group in groups for text in group) > MAX_TEXT_CHARS:
        raise ValueError(f"{info.field_name}: at most {MAX_TEXT_CHARS:,} characters are read.")
    texts = [tuple(" ".join(to_text(text).split()) for text in group) for group in groups]
    return tuple(group for group in texts if any(group))


def read_rankings(value: Any, info: ValidationInfo) -> tuple[tuple[float, ...], ...]:
    """Return rankings as rows of relevances, such as "1 0 1; 0 1", "R N R; N R" or [[1, 0, 1], [0, 1]]."""
    if isinstance(value, str):
        if re.fullmatch(r"[\s,;/\[\]rnyRNY]+", value):
            value = re.sub(r"[nN]", " 0 ", re.sub(r"[ryRY]", " 1 ", value))
        elif re.fullmatch(r"[\s,;/\[\]+−-]+", value):
            value = re.sub(r"[−-]", " 0 ", value.replace("+", " 1 "))
        rows = [row.strip() for row in re.split(r"[;/]|\]\s*,\s*\[", value.strip()) if row.strip()]
        value = [re.sub(r"[\[\]]", " ", row).replace(",", " ") for row in rows]
    elif not isinstance(value, list | tuple):
        value = [value]
    if value and not any(isinstance(row, list | tuple | str) for row in value):
        value = [value]
    return tuple(read_vector(row, info) for row in value)


Count = Annotated[float, Field(ge=0, le=1e9)]
Cost = Annotated[float, Field(ge=0, le=1000)]


class MetricExercise(ConventionExercise):
    """Metrics computed by hand."""

    kind: ClassVar[str] = "metric"
    first_field: ClassVar[str] = "metric"
    renamed: ClassVar[Mapping[str, str]] = {
        "hypothesis": "candidate",
        "source": "candidate",
        "prediction": "candidate",
        "system": "candidate",
        "references": "reference",
        "refs": "reference",
        "ref": "reference",
        "target": "reference",
        "probs": "probabilities",
        "ranking": "relevance",
        "true": "gold",
        "y_true": "gold",
        "y_pred": "predicted",
        "annotator1": "gold",
        "annotator2": "predicted",
        "rater1": "gold",
        "rater2": "predicted",
        "sub_cost": "substitute_cost",
        "substitution_cost": "substitute_cost",
        "ins_cost": "insert_cost",
        "del_cost": "delete_cost",
        "base": "log_base",
    }

    metric: Annotated[METRICS, BeforeValidator(read_metric)] = "bleu"
    """Metric that is asked for."""
    candidate: Sentences = ()
    """Text of the system (the source, for edit distance); several sentences with " / " between them."""
    reference: Annotated[tuple[tuple[str, ...], ...], BeforeValidator(read_references)] = ()
    """Right text; alternatives with " | " between them, sentences with " / "."""
    max_n: Annotated[int, Field(ge=0, le=9)] = 0
    """Longest n-grams; 0 for 4 (BLEU) or 6 (chrF)."""
    smoothing: Literal["none", "add-1", "add-1-all", "floor", "exp"] = "none"
    """Smoothing of BLEU: add-1 for n > 1, add-1-all for all n; floor and exp as in sacreBLEU."""
    length_rule: Literal["closest", "shortest", "longest", "average"] = "closest"
    """Length of several references for the brevity penalty."""
    case: Literal["", "kept", "ignored"] = ""
    """Upper and lower case: by default kept for BLEU, ignored for ROUGE."""
    tokens: Literal["", "words", "punctuation", "no punctuation", "characters"] = ""
    """Split at blanks (words), with punctuation apart, without punctuation, or into characters."""
    insert_cost: Cost = 1.0
    """Cost of an insertion."""
    delete_cost: Cost = 1.0
    """Cost of a deletion."""
    substitute_cost: Cost = 1.0
    """Cost of a substitution."""
    tp: Count | None = None
    """True positives."""
    fp: Count | None = None
    """False positives."""
    fn: Count | None = None
    """False negatives."""
    tn: Count | None = None
    """True negatives."""
    gold: Words = ()
    """Right labels, or those of the first annotator, in order."""
    predicted: Words = ()
    """Predicted labels, or those of the second annotator."""
    matrix: Matrix = ()
    """Confusion matrix of counts, instead of labels."""
    rows: Literal["gold", "predicted"] = "gold"
    """Meaning of the rows of the matrix."""
    classes: Words = ()
    """Names of the classes, in the order of the matrix."""
    positive: str = ""
    """Positive class."""
    beta: Annotated[float, Field(ge=0, le=100)] = 0.0
    """β of the F score; 0 for 1, or 2 for chrF."""
    macro: Literal["", "mean", "harmonic"] = ""
    """Macro F1: mean of the F1 of all classes, or harmonic mean of macro precision and recall."""
    relevance: Annotated[tuple[tuple[float, ...], ...], BeforeValidator(read_rankings)] = ()
    """Relevance of the documents by rank, as in "1 0 1"; several queries as in "1 0 1; 0 1 0"."""
    relevant: Vector = ()
    """Number of relevant documents of each query; by default those that are ranked."""
    k: Annotated[int, Field(ge=0, le=10_000)] = 0
    """Cut-off of a ranking, or number of samples of pass@k."""
    gain: Literal["", "linear", "exponential"] = ""
    """Gain of nDCG: the relevance, or 2^relevance − 1."""
    probabilities: Vector = ()
    """Probabilities of the tokens of a text, for its perplexity."""
    log_base: Literal["", "2", "e", "10"] = ""
    """Base of logarithms: by default any, and the report says which."""
    p: Vector = ()
    """Distribution p: the true one."""
    q: Vector = ()
    """Distribution q: that of the model."""
    joint: Matrix = ()
    """Joint probabilities or counts of X (rows) and Y (columns)."""
    count_xy: Count | None = None
    """Count of the pair, for PMI."""
    count_x: Count | None = None
    """Count of the first word."""
    count_y: Count | None = None
    """Count of the second word."""
    total: Count | None = None
    """Number of all pairs."""
    samples: Annotated[int, Field(ge=1, le=100_000)] | None = None
    """Number n of samples, for pass@k."""
    correct: Annotated[int, Field(ge=0, le=100_000)] | None = None
    """Number c of right samples."""

    @classmethod
    def setting_names(cls) -> list[str]:
        """Return the names of the fields, and other names of them."""
        return [*super().setting_names(), *cls.renamed]

    @model_validator(mode="before")
    @classmethod
    def _read_base(cls, data: Any) -> Any:
        """Return the settings with the base of logarithms as text."""
        if isinstance(data, dict):
            data = dict(data)
            for name in ("log_base", "base"):
                if name in data:
                    value = data[name]
                    text = str(value).strip().casefold().removesuffix(".0")
                    words = {"natural": "e", "ln": "e", "nats": "e", "2.718": "e", "bits": "2", "log2": "2"}
                    data[name] = words.get(text, text)
            if "positive" in data:
                data["positive"] = to_text(data["positive"])
        return data

    @model_validator(mode="after")
    def _check_fields(self) -> Self:
        """Raise an error if the fields of the metric are missing or do not fit each other."""
        missing = self._find_missing()
        if missing:
            raise ValueError(f"metric {self.metric}: {missing}")
        return self

    def _find_missing(self) -> str:
        """Return what is missing for the metric, with an example; "" if nothing is."""
        metric = self.metric
        if metric in ("bleu", "chrf", *ROUGE, *EDITS):
            empty = metric in EDITS  # an empty candidate has a distance
            if (not self.candidate and not empty) or not self.reference:
                return "candidate and reference are needed, as in candidate='the cat' reference='the cat sat'"
            if len(self.candidate) > 1 and len(self.candidate) != len(self.reference):
                return f"{len(self.candidate)} candidates have {len(self.reference)} references; separate them by ' / '"
            tokens = [self.split(text) for group in (self.candidate, *self.reference) for text in _as_group(group)]
            limit = MAX_EDIT_TOKENS if metric in (*EDITS, *ROUGE) else MAX_TOKENS
            longest = max((len(text) for text in tokens), default=0)
            if longest > limit:
                return f"a text has at most {limit:,} words or characters, not {longest:,}"
            if not all(tokens) and metric not in EDITS:
                return "a text has no words"
            if metric in ROUGE or metric in EDITS or metric == "chrf":
                return "one candidate is compared, without ' / '" if len(self.candidate) > 1 else ""
            return ""
        if metric in CLASSES or metric == "kappa":
            return self._find_missing_classes()
        if metric in RANKINGS:
            if not self.relevance or not all(self.relevance):
                return "relevance is needed, as in relevance='1 0 1 0'"
            if self.relevant and len(self.relevant) != len(self.relevance):
                return f"relevant needs a number for each of the {len(self.relevance)} queries"
            if sum(map(len, self.relevance)) > MAX_NUMBERS or len(self.relevance) > 30:
                return f"at most 30 queries with {MAX_NUMBERS} documents are read"
            if any(not 0 <= number <= 30 for row in self.relevance for number in row):
                return "a relevance is a number from 0 to 30"
            counts = self.relevant or tuple(sum(number > 0 for number in row) for row in self.relevance)
            pairs = zip(counts, self.relevance, strict=True)
            if any(count < sum(number > 0 for number in row) for count, row in pairs):
                return "relevant is smaller than the number of relevant documents that are ranked"
            return ""
        if metric == "perplexity":
            if not self.probabilities:
                return "probabilities are needed, as in probabilities='0.2 0.5 0.1'"
            return "" if all(0 < p <= 1 for p in self.probabilities) else "a probability is above 0 and at most 1"
        if metric in DIVERGENCES:
            if not self.p or (metric != "entropy" and len(self.q) != len(self.p)):
                return "p and q of equal length are needed, as in p='0.5 0.5' q='0.9 0.1'"
            if self.q and len(self.q) != len(self.p):
                return "p and q have equally many probabilities"
            for name, values in (("p", self.p), ("q", self.q)):
                if values:
                    information_metrics.normalize_distribution(values, name)
            if metric in ("kl", "cross-entropy") and any(a > 0 and b <= 0 for a, b in zip(self.p, self.q, strict=True)):
                return "q is 0 where p is not, so the value is infinite"
            return ""
        if metric == "mutual-information":
            table = np.array(self.joint)
            return "" if table.size and table.min() >= 0 and table.sum() > 0 else "joint is needed, with no negative"
        if metric == "pmi":
            counts = (self.count_xy, self.count_x, self.count_y, self.total)
            if any(count is None for count in counts) or not (self.count_x and self.count_y and self.total):
                return "counts are needed, as in count_xy=8 count_x=20 count_y=40 total=1000"
            return "" if (self.count_xy or 0) <= min(self.count_x, self.count_y) else "count_xy is too large"
        if self.samples is None or self.correct is None or not 1 <= self.k <= self.samples:
            return "samples, correct and k are needed, as in samples=10 correct=3 k=5"
        return "" if self.correct <= self.samples else "correct is larger than samples"

    def _find_missing_classes(self) -> str:
        """Return what is missing for metrics of classes."""
        counts = [self.tp, self.fp, self.fn]
        has_counts = any(count is not None for count in (*counts, self.tn))
        if has_counts and (self.gold or self.matrix):
            return "labels and counts are both there; to answer with a count, write it in capitals, as in 'TP = 3'"
        if self.metric == "kappa":
            if has_counts:
                return "a matrix or labels are needed, as in matrix='20 5; 10 15' or gold='a b a' predicted='a b b'"
        elif has_counts:
            if any(count is None for count in counts):
                return "tp, fp and fn are needed, and tn for accuracy, as in tp=8 fp=2 fn=4 tn=86"
            needs_tn = self.metric == "accuracy" and self.tn is None
            return "tn is needed, too" if needs_tn else ""
        if self.matrix:
            table = np.array(self.matrix)
            if table.ndim != 2 or table.shape[0] != table.shape[1] or len(table) < 2:
                return "matrix must have as many rows as columns, at least 2"
            if table.min() < 0 or table.sum() <= 0:
                return "matrix holds counts, which are not negative"
            if self.classes and len(self.classes) != len(table):
                return f"classes has {len(self.classes)} names for {len(table)} rows"
        elif not self.gold or len(self.gold) != len(self.predicted):
            if self.gold or self.predicted:
                return f"gold has {len(self.gold)} labels, predicted {len(self.predicted)}"
            return "give tp, fp, fn and tn, or gold='a b a' predicted='a b b', or matrix='20 5; 10 15'"
        if len(self.class_names()) > MAX_CLASSES:
            return f"at most {MAX_CLASSES} classes are read"
        if self.positive and self.positive not in self.class_names():
            return f"positive = '{self.positive}' is none of the classes {', '.join(self.class_names())}"
        return ""

    # Parts of the statement

    def ignores_case(self) -> bool:
        """Return whether upper and lower case are the same."""
        return self.case == "ignored" or (not self.case and self.metric in ROUGE)

    def split(self, text: str) -> tuple[str, ...]:
        """Return the words or characters of a text."""
        rule = self.tokens
        if not rule and self.metric in EDITS:
            pairs = (*self.candidate, *(other for group in self.reference for other in group))
            is_words = self.metric == "wer" or (self.metric != "cer" and any(" " in other for other in pairs))
            rule = "words" if is_words else "characters"
        if rule == "characters" or self.metric == "chrf":
            return tuple(text.casefold() if self.ignores_case() else text)
        if not rule and self.metric in ROUGE:
            rule = "no punctuation"
        return split_words(text, self.ignores_case(), rule or "words")

    def class_names(self) -> tuple[str, ...]:
        """Return the names of the classes."""
        if self.classes:
            return self.classes
        if self.matrix:
            return tuple(f"{number}" for number in range(1, len(self.matrix) + 1))
        return tuple(dict.fromkeys((*self.gold, *self.predicted)))

    def confusion(self) -> Any:
        """Return the confusion matrix: rows are gold classes."""
        if self.matrix:
            table = np.array(self.matrix, dtype=np.float64)
            return table.T if self.rows == "predicted" else table
        names = tuple(dict.fromkeys((*self.class_names(), *self.gold, *self.predicted)))
        return class_metrics.build_confusion(self.gold, self.predicted, names)

    # Values

    def expected_values(self) -> Sequence[ExpectedValue]:
        """Return the parts of the metric and the metric itself."""
        return self._expect()

    def _expect(self, alignment: int = 0) -> list[ExpectedValue]:
        """Return the values of the metric; `alignment` chooses one of the cheapest alignments of an edit distance."""
        metric, base = self.metric, self.log_base or ("e" if self.metric == "perplexity" else "2")
        if metric == "bleu":
            return text_metrics.expect_bleu(self._bleu())
        if metric in ROUGE:
            variant = {"rouge-1": "1", "rouge-2": "2", "rouge-l": "L"}.get(metric, "")
            references = [self.split(text) for group in self.reference for text in group]
            return text_metrics.expect_rouge(self.split(self.candidate[0]), references, self.beta or 1.0, variant)
        if metric == "chrf":
            texts = [text.casefold() if self.ignores_case() else text for group in self.reference for text in group]
            candidate = self.candidate[0].casefold() if self.ignores_case() else self.candidate[0]
            return text_metrics.expect_chrf(candidate, texts, self.max_n or 6, self.beta or 2.0)
        if metric in EDITS:
            source, target, costs = self._edit_pair()
            counts = self._alignments()
            unit = "characters" if metric == "cer" or len("".join(source)) == len(source) else "words"
            unit = "words" if metric == "wer" else unit
            edits = counts[alignment]
            if metric in ("wer", "cer"):  # a deletion is a word of the reference that the candidate leaves out
                edits = (edits[0], edits[2], edits[1])
            return text_metrics.expect_edits(source, target, costs, edits, unit)
        if metric == "kappa":
            return class_metrics.expect_kappa(self.confusion())
        if metric in CLASSES:
            if self.tp is not None:
                return class_metrics.expect_binary(self.tp, self.fp or 0, self.fn or 0, self.tn, self.beta or 1.0)
            names = self.class_names()
            if not self.matrix:
                names = tuple(dict.fromkeys((*names, *self.gold, *self.predicted)))
            positive = self.positive or class_metrics.guess_positive(names)
            return class_metrics.expect_classes(
                self.confusion(), names, positive, self.beta or 1.0, self.macro == "harmonic"
            )
        if metric in RANKINGS:
            return class_metrics.expect_ranking(self.relevance, self.relevant, self.k, self.gain or "linear")
        if metric == "perplexity":
            return information_metrics.expect_perplexity(np.array(self.probabilities), base)
        if metric in DIVERGENCES:
            q = np.array(self.q) if self.q else None
            return information_metrics.expect_divergence(np.array(self.p), q, base)
        if metric == "mutual-information":
            return information_metrics.expect_information(np.array(self.joint), base)
        if metric == "pmi":
            counts = (self.count_xy or 0.0, self.count_x or 1.0, self.count_y or 1.0, self.total or 1.0)
            return information_metrics.expect_pmi(*counts, base)
        return class_metrics.expect_pass(self.samples or 1, self.correct or 0, self.k)

    def _bleu(self) -> text_metrics.BleuStatement:
        """Return the sentences and conventions of BLEU."""
        groups = self.reference
        if len(self.candidate) == 1:
            groups = (tuple(text for group in groups for text in group),)
        pairs = tuple(
            (self.split(text), tuple(self.split(other) for other in group))
            for text, group in zip(self.candidate, groups, strict=True)
        )
        return text_metrics.BleuStatement(pairs, self.max_n or 4, self.smoothing, self.length_rule)

    def _edit_pair(self) -> tuple[tuple[str, ...], tuple[str, ...], EditCosts]:
        """Return source and target as words or characters, and the costs of edits."""
        source = self.split(self.candidate[0]) if self.candidate else ()
        costs = EditCosts(self.insert_cost, self.delete_cost, self.substitute_cost)
        return source, self.split(self.reference[0][0]), costs

    def _alignments(self) -> list[tuple[int, int, int]]:
        """Return the numbers of edits of the cheapest alignments."""
        source, target, costs = self._edit_pair()
        return text_metrics.count_edits(source, target, costs, text_metrics.edit_table(source, target, costs))

    def find_value(self, name: str) -> ExpectedValue | None:
        """Return a value by a further name, such as D(2, 3), PP(W), ROUGE-1 or macroaveraged recall."""
        values = {value.name: value for value in self.expected_values()}
        normalized = re.sub(r"[\s_-]+", "", name).casefold()
        cell = re.fullmatch(r"d(?:ist|istance|p)?[(\[](\d{1,3}),(\d{1,3})[)\]]", normalized)
        if cell and self.metric in EDITS and "table" in values:
            table = values["table"]
            row, column = int(cell[1]), int(cell[2])
            if row >= table.shape[0] or column >= table.shape[1]:
                last = " and ".join(str(size - 1) for size in table.shape)
                raise InputError(f"{name}: rows and columns count from 0, up to {last}.")
            return replace(select_part(table, Target("table", (str(row + 1), str(column + 1)))), name=name)
        if re.fullmatch(r"d\([^()]*\)", normalized) and self.metric in EDITS:
            return replace(values["distance"], name=name)
        pair = re.fullmatch(r"(p?pmi)\((\d{1,3}),(\d{1,3})\)", normalized)
        if pair and self.metric == "mutual-information" and pair[1].upper() in values:
            table = values[pair[1].upper()]
            return replace(select_part(table, Target(table.name, (pair[2], pair[3]))), name=name)
        if re.fullmatch(r"(pp|ppl|perplexity)\([^()]*\)", normalized) and "perplexity" in values:
            return replace(values["perplexity"], name=name)
        if (rouge := re.fullmatch(r"rouge([12l])", normalized)) and self.metric in ROUGE:
            return self._expect_rouge_score(name, "L" if rouge[1] == "l" else rouge[1], values)
        average = re.fullmatch(r"(macro|micro)(?:averaged?|avg)?(precision|recall|f1|f|fscore)", normalized)
        if average and self.metric in CLASSES:
            average_name = f"{average[1]}_{average[2] if average[2] in ('precision', 'recall') else 'F1'}"
            average_value = next(
                (value for value in values.values() if average_name in (value.name, *value.aliases)), None
            )
            return replace(average_value, name=name) if average_value else None
        return None

    def _expect_rouge_score(self, name: str, kind: str, values: Mapping[str, ExpectedValue]) -> ExpectedValue:
        """Return the score of a ROUGE variant: its F1, or the recall that it was first defined as."""
        score, recall = values[f"rouge{kind}_f1"], values[f"rouge{kind}_recall"]
        other = make_alternatives(float(score.values), [("the recall", float(recall.values))])
        scales = {**other, **{100 * factor: f"{text}, in per cent" for factor, text in other.items()}}
        mistakes = {text: wrong for text, wrong in score.mistakes.items() if not np.isclose(wrong, recall.values)}
        return replace(score, name=name, scales={**score.scales, **scales}, mistakes=mistakes)

    def rewrite_line(self, line: str) -> str:
        """Return a line about the distance D, which is the name of the table too, under the distance's name."""
        name, sign, value = line.partition("=")
        if self.metric in EDITS and sign and name.strip() == "D" and not re.search(r"[\[;,]", value):
            return f"{'distance' if self.metric == 'edit-distance' else 'deletions'} ={value}"
        if self.metric in EDITS and (cell := re.match(r"\s*[Dd](?:ist|p)?\[\s*(\d+)\s*,\s*(\d+)\s*\]\s*=", line)):
            return f"D({cell[1]},{cell[2]}) = {line[cell.end() :]}"
        return line

    def check(self, answers: Sequence[str], show_solution: bool = False) -> ValueReport:
        """Check lines `NAME = VALUE`; a unit such as bits or nats says the base of the logarithms."""
        return check_information_units(self, answers, partial(ConventionExercise.check, show_solution=show_solution))

    def answer_keys(self, claims: Sequence[ValueClaim]) -> Iterable[AnswerKey]:
        """Yield the right answers: one for each cheapest alignment of an edit distance."""
        count = len(self._alignments()) if self.metric in EDITS else 1
        for index in range(count):
            yield self.make_key(self._expect(index))

    def main_names(self) -> tuple[str, ...]:
        """Return the metric that is asked for."""
        names = {
            "wer": "WER",
            "cer": "CER",
            "edit-distance": "distance",
            "precision": "precision",
            "recall": "recall",
            "f1": "F1",
            "accuracy": "accuracy",
            "map": "MAP",
            "mrr": "MRR",
            "entropy": "H(p)",
            "cross-entropy": "H(p,q)",
            "kl": "KL",
            "jensen-shannon": "JS(p,q)",
            "average-precision": "MAP",
            "ndcg": "mean_nDCG",
            "precision-at-k": f"mean_P@{self.k or 'k'}",
            "recall-at-k": f"mean_recall@{self.k or 'k'}",
        }
        values = self.expected_values()
        if self.metric in names and any(names[self.metric] == value.name for value in values):
            return (names[self.metric],)
        if self.metric in ("precision", "recall", "f1") and self.tp is None:
            return (f"macro_{'F1' if self.metric == 'f1' else self.metric}",)
        return (values[-1].name,)

    def conventions(self) -> Iterable[tuple[str, Self]]:
        """Yield the other conventions that the statement leaves open: case, punctuation, base of logarithms, gains."""
        changes: list[tuple[str, dict[str, Any]]] = []
        if self.metric in LOGARITHMS and not self.log_base:
            default = "e" if self.metric == "perplexity" else "2"
            changes += [
                (f"Read with logarithms to the base {base}.", {"log_base": base})
                for base in ("e", "2", "10")
                if base != default
            ]
        if self.metric in RANKINGS and not self.gain:
            changes.append(("Read with the gain 2^relevance − 1.", {"gain": "exponential"}))
        if self.metric in (*CLASSES,) and not self.macro:
            changes.append(("Macro F1 is read as the F1 of macro precision and recall.", {"macro": "harmonic"}))
        texts = " ".join((*self.candidate, *(text for group in self.reference for text in group)))
        has_marks = re.search(r"[^\w\s]", texts) is not None
        is_lowercase = texts == texts.casefold()
        if self.metric in ROUGE and not (self.case or self.tokens) and (has_marks or not is_lowercase):
            note = "Read with upper and lower case, and with punctuation as part of words."
            changes.append((note, {"case": "kept", "tokens": "words"}))
        if self.metric == "bleu" and not self.case and not is_lowercase:
            changes.append(("Read without upper and lower case.", {"case": "ignored"}))
        if self.metric == "bleu" and not self.tokens and has_marks:
            changes.append(("Read with punctuation apart.", {"tokens": "punctuation"}))
        if self.metric == "bleu":
            bleu = self._bleu()
            shortest = max(len(candidate) for candidate, _ in bleu.pairs)
            if 1 <= shortest < bleu.max_n and self.smoothing == "none":
                note = f"Read with n-grams up to {shortest}: the candidate has no longer ones."
                changes.append((note, {"max_n": shortest}))
        for note, fields in changes:
            yield note, self.model_copy(update=fields)


def _as_group(group: Any) -> tuple[str, ...]:
    """Return a sentence as a tuple of one, and alternatives as they are."""
    return (group,) if isinstance(group, str) else group
