"""Metrics of classes and rankings: precision, recall, F1, Cohen's κ, MRR, MAP, nDCG and pass@k."""

from collections.abc import Sequence
from math import log

import numpy as np

from lemma.checking.exercises.statements import expect, show, show_terms
from lemma.checking.exercises.text_metrics import PERCENT, expect_f_score, f_score
from lemma.checking.expected_values import Array, ExpectedValue

POSITIVE_LABELS = ("1", "positive", "pos", "yes", "true", "spam", "+", "+1", "p", "y", "t")


def divide(numerator: float, divisor: float) -> float:
    """Return a quotient; 0 where the divisor is 0."""
    return numerator / divisor if divisor else 0.0


def expect_binary(tp: float, fp: float, fn: float, tn: float | None, beta: float) -> list[ExpectedValue]:
    """Return precision, recall, F1 and accuracy of counts; without `tn` no accuracy."""
    precision, recall = divide(tp, tp + fp), divide(tp, tp + fn)
    total = tp + fp + fn + (tn or 0)
    values = [expect("TP true_positives hits", tp, "true positives")]
    values.append(expect("FP false_positives", fp, "false positives", mistakes={"FP and FN are exchanged": fn}))
    values.append(expect("FN false_negatives", fn, "false negatives", mistakes={"FP and FN are exchanged": fp}))
    if tn is not None:
        values.append(expect("TN true_negatives", tn, "true negatives"))
        specificity = divide(tn, tn + fp)
        negative = divide(tn, tn + fn)
        mistakes = {"the divisor is TN + FN: that is the negative predictive value": negative, "that is recall": recall}
        formula, work = "TN / (TN + FP)", f"{show(tn)} / ({show(tn)} + {show(fp)})"
        names = "specificity true_negative_rate TNR"
        values.append(expect(names, specificity, "specificity", formula, work, mistakes, scales=PERCENT))
        names = "false_positive_rate FPR fall-out"
        mistakes = {"the divisor is FP + TP": divide(fp, fp + tp), "the divisor is all": divide(fp, total)}
        values.append(expect(names, 1 - specificity, "", "FP / (FP + TN)", "", mistakes, scales=PERCENT))
        accuracy = divide(tp + tn, total)
        right = f"({show(tp)} + {show(tn)}) / {show(total)}"
        mistakes = {
            "true negatives are left out of the numerator": divide(tp, total),
            "true negatives are left out": divide(tp, tp + fp + fn),
            "true negatives are left out of the divisor": divide(tp + tn, tp + fp + fn),
            "that is the error rate: 1 − accuracy": 1 - accuracy,
            "that is precision": precision,
            "that is recall": recall,
            "that is the mean of recall and specificity": (recall + specificity) / 2,
        }
        formula = "(TP + TN) / (TP + FP + FN + TN)"
        values.append(expect("accuracy acc", accuracy, "accuracy", formula, right, mistakes, scales=PERCENT))
        values.append(expect("error_rate", 1 - accuracy, "1 − accuracy", scales=PERCENT))
    mistakes = {
        "precision and recall are exchanged: TP + FN is the divisor": recall,
        "the divisor is the number of all cases": divide(tp, total),
        "that is 1 − precision": 1 - precision,
        "the divisor is TP + TN": divide(tp, tp + (tn or 0)),
        "the numerator is FP": divide(fp, tp + fp + (tn or 0)),
        "true negatives are counted as right positives": divide(tp + (tn or 0), tp + fp + (tn or 0)),
        "TP is divided by FP": divide(tp, fp),
    }
    names, formula = "precision P prec PPV", "TP / (TP + FP)"
    work = f"{show(tp)} / ({show(tp)} + {show(fp)})"
    values.append(expect(names, precision, "precision", formula, work, mistakes, scales=PERCENT))
    mistakes = {
        "precision and recall are exchanged: TP + FP is the divisor": precision,
        "the divisor is the number of all cases": divide(tp, total),
        "that is 1 − recall": 1 - recall,
        "that is specificity: TN / (TN + FP)": divide(tn or 0, (tn or 0) + fp),
        "the divisor is TP + TN": divide(tp, tp + (tn or 0)),
        "TP is divided by FN": divide(tp, fn),
    }
    names, formula = "recall R rec sensitivity TPR true_positive_rate", "TP / (TP + FN)"
    work = f"{show(tp)} / ({show(tp)} + {show(fn)})"
    values.append(expect(names, recall, "recall", formula, work, mistakes, scales=PERCENT))
    mistakes = {
        "the divisor counts TP once: TP / (TP + FP + FN)": divide(tp, tp + fp + fn),
        "that is the accuracy": divide(tp + (tn or 0), total) if tn is not None else np.nan,
    }
    names = ["F1", "F", "f-score", "f1-score", "f-measure", f"F{beta:g}", "fscore", "f_beta"]
    values.append(expect_f_score(names, precision, recall, beta, mistakes))
    return values


def build_confusion(gold: Sequence[str], predicted: Sequence[str], classes: Sequence[str]) -> Array:
    """Return the confusion matrix: rows are gold classes, columns predicted ones."""
    index = {label: number for number, label in enumerate(classes)}
    matrix = np.zeros((len(classes), len(classes)))
    for left, right in zip(gold, predicted, strict=True):
        matrix[index[left], index[right]] += 1
    return matrix


def guess_positive(classes: Sequence[str]) -> str:
    """Return the class of two that is the positive one by its name; "" if none or both are.

    >>> guess_positive(["ham", "spam"]), guess_positive(["cat", "dog"])
    ('spam', '')
    """
    names = [label for label in classes if label.casefold() in POSITIVE_LABELS]
    return names[0] if len(names) == 1 and len(classes) == 2 else ""


def expect_classes(
    matrix: Array, classes: Sequence[str], positive: str, beta: float, harmonic: bool
) -> list[ExpectedValue]:
    """Return precision, recall and F1 by class, their averages, and accuracy; of two classes also the binary ones.

    Args:
        matrix: counts, rows are gold classes.
        positive: the positive class; "" for none.
        harmonic: whether macro F1 is that of macro precision and recall.
    """
    right, gold, predicted = np.diag(matrix), matrix.sum(axis=1), matrix.sum(axis=0)
    total = float(matrix.sum())
    safe = lambda a, b: np.divide(a, b, out=np.zeros_like(a), where=b > 0)  # noqa: E731
    precisions, recalls = safe(right, predicted), safe(right, gold)
    scores = np.array([f_score(p, r, beta) for p, r in zip(precisions, recalls, strict=True)])
    labels = [classes]
    values = [
        expect(
            "confusion confusion_matrix matrix_counts",
            matrix,
            "counts; rows are gold classes, columns predicted ones",
            labels=[classes, classes],
            mistakes={"rows are predicted classes; here they are gold": matrix.T},
        ),
        expect(
            "support",
            gold,
            "gold cases of each class",
            labels=labels,
            mistakes={"the predicted cases are counted": predicted},
        ),
    ]
    exchanged = "precision and recall are exchanged: the divisor is the {} sum of the matrix"
    for name, array, other, text in (
        ("precisions", precisions, recalls, "row (gold)"),
        ("recalls", recalls, precisions, "column (predicted)"),
    ):
        wrong = {exchanged.format(text): other, "the divisor is the number of all cases": right / max(total, 1)}
        formula = "diagonal / sum of the " + ("column" if name == "precisions" else "row")
        values.append(
            expect(name, array, f"{name[:-1]} of each class", formula, "", wrong, labels=labels, scales=PERCENT)
        )
    values.append(
        expect(
            "F1s f1_scores",
            scores,
            "F1 of each class",
            "2·P·R / (P + R)",
            labels=labels,
            scales=PERCENT,
            mistakes={"the arithmetic mean of precision and recall is taken": (precisions + recalls) / 2},
        )
    )
    binary: list[ExpectedValue] = []
    if positive:
        index = list(classes).index(positive)
        tp, fp, fn = right[index], predicted[index] - right[index], gold[index] - right[index]
        binary = expect_binary(float(tp), float(fp), float(fn), float(total - tp - fp - fn), beta)
    for index, label in enumerate(classes):
        names = {
            "precision": ("precision_{}", "precision({})", "P_{}", "P({})", "prec_{}", "precision of {}"),
            "recall": ("recall_{}", "recall({})", "R_{}", "R({})", "rec_{}", "recall of {}"),
            "F1": ("F1_{}", "F1({})", "F_{}", "F({})", "F1 of {}"),
        }
        tp, fp, fn = right[index], predicted[index] - right[index], gold[index] - right[index]
        for value in expect_binary(float(tp), float(fp), float(fn), float(total - tp - fp - fn), beta):
            if value.name in names:
                extra_names = [pattern.format(label) for pattern in names[value.name]]
                values.append(
                    expect(
                        extra_names,
                        value.values,
                        f"{value.name} of {label}",
                        value.formula,
                        value.work,
                        value.mistakes,
                        scales=PERCENT,
                    )
                )
    micro = divide(float(right.sum()), total)
    weights = gold / max(total, 1.0)
    means = {
        "precision": (float(precisions.mean()), float(weights @ precisions)),
        "recall": (float(recalls.mean()), float(weights @ recalls)),
        "F1": (float(scores.mean()), float(weights @ scores)),
    }
    of_means = f_score(means["precision"][0], means["recall"][0], beta)
    used = predicted > 0
    for name, (macro, weighted) in means.items():
        part = {"precision": precisions, "recall": recalls, "F1": scores}[name]
        wrong = {
            f"that is micro {name}": micro,
            f"that is weighted {name}: classes count equally": weighted,
            "classes that are never predicted are left out": float(part[used].mean()) if used.any() else np.nan,
            "the sum is not divided by the number of classes": float(part.sum()),
        }
        if name != "F1":
            wrong["precision and recall are exchanged"] = means["recall" if name == "precision" else "precision"][0]
        formula, work = f"mean of the {name} of all classes", f"({show_terms(part)}) / {len(classes)}"
        if name == "F1":
            wrong["F1 is computed from macro precision and recall; here it is the mean of all F1"] = of_means
            if harmonic:
                del wrong["F1 is computed from macro precision and recall; here it is the mean of all F1"]
                wrong["the mean of all F1 is taken; here F1 is computed from macro precision and recall"] = macro
                macro = of_means
                formula = "2·P·R / (P + R) with macro precision and recall"
                work = f"with {show(means['precision'][0])} and {show(means['recall'][0])}"
        names = [f"macro_{name}", f"macro-{name}", f"{name}_macro", f"{name}-macro", f"macro averaged {name}"]
        values.append(expect(names, macro, f"macro {name}", formula, work, wrong, scales=PERCENT))
        names = [f"weighted_{name}", f"weighted-{name}", f"{name}_weighted", f"{name}-weighted"]
        work = " + ".join(f"{show(w)}·{show(p)}" for w, p in zip(weights[:8], part[:8], strict=True))
        mistakes = {f"that is macro {name}": macro, f"that is micro {name}": micro}
        mistakes["the weights are the predicted cases; they are the gold ones"] = float(
            predicted @ part / max(total, 1.0)
        )
        formula = f"mean of the {name} of all classes, weighted by their gold cases"
        values.append(expect(names, weighted, f"weighted {name}", formula, work, mistakes, scales=PERCENT))
    names = [f"{name}{sign}{part}" for part in ("precision", "recall", "F1") for name in ("micro",) for sign in "_-"]
    mistakes = {
        "that is macro F1": means["F1"][0],
        "that is macro precision": means["precision"][0],
        "that is macro recall": means["recall"][0],
        "that is the error rate": 1 - micro,
    }
    work = f"{show(float(right.sum()))} / {show(total)}"
    formula = "right cases / all cases: micro precision, recall and F1 are equal where each case has one class"
    names += [f"{part}_micro" for part in ("precision", "recall", "F1")]
    values.append(expect(names, micro, "micro precision, recall and F1", formula, work, mistakes, scales=PERCENT))
    if not binary:
        values.append(expect("accuracy acc", micro, "accuracy", "diagonal / all", work, mistakes, scales=PERCENT))
    return [*values, *binary]


def expect_kappa(matrix: Array) -> list[ExpectedValue]:
    """Return observed and expected agreement and Cohen's κ."""
    total = float(matrix.sum())
    rows, columns = matrix.sum(axis=1) / total, matrix.sum(axis=0) / total
    observed, chance = float(np.trace(matrix)) / total, float(rows @ columns)
    kappa = divide(observed - chance, 1 - chance)
    pooled = float((((rows + columns) / 2) ** 2).sum())
    classes = len(matrix)
    chances = {
        "chance agreement is 1 / number of classes": 1 / classes,
        "the marginals of both annotators are pooled: that is Scott's π": pooled,
        "chance agreement is the sum of the products without division by n²": chance * total**2,
        "only one class is counted in the chance agreement": float(rows[0] * columns[0]),
        "the rows are squared; rows and columns are multiplied": float(rows @ rows),
        "the columns are squared; rows and columns are multiplied": float(columns @ columns),
        "the products of the diagonal are taken instead of the marginals": float(
            ((np.diag(matrix) / total) ** 2).sum()
        ),
    }
    work_chance = " + ".join(f"{show(r)}·{show(c)}" for r, c in zip(rows[:6], columns[:6], strict=True))
    diagonal = show_terms(np.diag(matrix))
    observed_wrong = {
        "that is the disagreement": 1 - observed,
        "only one class is counted": float(matrix[0, 0]) / total,
    }
    kappas = {
        "chance agreement is not subtracted: that is the observed agreement": observed,
        "the difference is not divided by 1 − p_e": observed - chance,
        "the divisor is 1 − p_o instead of 1 − p_e": divide(observed - chance, 1 - observed),
        "the divisor is p_e instead of 1 − p_e": divide(observed - chance, chance),
        "p_e and p_o are exchanged": divide(chance - observed, 1 - observed),
        "that is p_o / p_e": divide(observed, chance),
        **{text: divide(observed - wrong, 1 - wrong) for text, wrong in chances.items()},
    }
    return [
        expect("marginals_rows a", rows, "fraction of each class, first annotator (rows)"),
        expect("marginals_columns b", columns, "fraction of each class, second annotator (columns)"),
        expect(
            "p_o observed_agreement P(A) A_o observed agreement Pr(a)",
            observed,
            "observed agreement",
            "sum of the diagonal / n",
            f"({diagonal}) / {show(total)}",
            observed_wrong,
            scales=PERCENT,
        ),
        expect(
            "p_e chance_agreement expected_agreement P(E) A_e chance Pr(e)",
            chance,
            "agreement by chance",
            "Σ over classes of (row sum / n)·(column sum / n)",
            work_chance,
            chances,
            scales=PERCENT,
        ),
        expect(
            "kappa κ cohens_kappa cohen's_kappa",
            kappa,
            "agreement beyond chance",
            "(p_o − p_e) / (1 − p_e)",
            f"({show(observed)} − {show(chance)}) / (1 − {show(chance)})",
            kappas,
        ),
    ]


# Rankings


def discounted_gain(gains: Array, discount: str = "log2") -> float:
    """Return the discounted cumulative gain of a ranking, with a discount by rank."""
    ranks = np.arange(1, len(gains) + 1)
    match discount:
        case "ln":
            weights = np.log(ranks + 1)
        case "log10":
            weights = np.log10(ranks + 1)
        case "rank":
            weights = ranks.astype(float)
        case "log2(rank)":
            weights = np.maximum(np.log2(ranks), 1.0)
        case "none":
            weights = np.ones(len(gains))
        case _:
            weights = np.log2(ranks + 1)
    return float((gains / weights).sum())


def expect_ranking(
    rankings: Sequence[Sequence[float]], relevant: Sequence[float], k: int, gain: str
) -> list[ExpectedValue]:
    """Return precision and recall at k, average precision, reciprocal rank and nDCG by query, and their means.

    Args:
        rankings: relevance of the documents in the order of their ranks, by query.
        relevant: number of relevant documents of each query; () for those that are ranked.
        k: cut-off; 0 for none.
        gain: "linear" or "exponential": 2^relevance − 1.
    """
    values: list[ExpectedValue] = []
    columns: dict[str, list[float]] = {name: [] for name in ("AP", "RR", "nDCG", "P", "recall")}
    wrong_columns: dict[str, dict[str, list[float]]] = {name: {} for name in columns}
    for index, ranking in enumerate(rankings):
        relevances = np.array(ranking, dtype=float)
        hits = relevances > 0
        count = float(relevant[index]) if relevant else float(hits.sum())
        top = k or len(ranking)
        ranks = np.arange(1, len(ranking) + 1)
        at_rank = np.cumsum(hits) / ranks
        cut_hits = hits[:top]
        num_hits = float(cut_hits.sum())
        precision, recall = num_hits / top, divide(num_hits, count)
        average = divide(float(at_rank[:top][cut_hits].sum()), count)
        first = int(np.argmax(hits)) + 1 if hits.any() else 0
        last = len(hits) - int(np.argmax(hits[::-1])) if hits.any() else 0
        gains = relevances if gain == "linear" else 2.0**relevances - 1
        other_gains = 2.0**relevances - 1 if gain == "linear" else relevances
        ideal, other_ideal = np.sort(gains)[::-1], np.sort(other_gains)[::-1]
        dcg, idcg = discounted_gain(gains[:top]), discounted_gain(ideal[:top])
        ndcg = divide(dcg, idcg)
        end = "" if len(rankings) == 1 else str(index + 1)
        suffix = str(index + 1)
        precision_wrong = {
            "precision and recall are exchanged": recall,
            "the divisor is the length of the ranking instead of k": num_hits / max(1, len(ranking)),
            "all ranks are counted instead of the first k": float(hits.sum()) / max(1, len(ranking)),
            "all hits are counted instead of those in the first k": float(hits.sum()) / top,
            "one rank too few is counted": float(hits[: top - 1].sum()) / top if top > 1 else np.nan,
            "one rank too many is counted": float(hits[: top + 1].sum()) / top,
        }
        values.append(
            expect(
                [f"P@{top}{'_' * bool(end)}{end}", f"precision@{top}{end}", *([f"precision@k{end}", f"P@k{end}"])],
                precision,
                f"precision of the first {top}" + (f", query {end}" if end else ""),
                "relevant documents in the first k / k",
                f"{show(num_hits)} / {top}",
                precision_wrong,
                scales=PERCENT,
            )
        )
        recall_wrong = {
            "precision and recall are exchanged": precision,
            "the divisor is the length of the ranking": num_hits / max(1, len(ranking)),
            "all hits are counted instead of those in the first k": divide(float(hits.sum()), count),
        }
        values.append(
            expect(
                [f"recall@{top}{'_' * bool(end)}{end}", f"R@{top}{end}", f"recall@k{end}", f"R@k{end}"],
                recall,
                f"recall of the first {top}" + (f", query {end}" if end else ""),
                "relevant documents in the first k / all relevant ones",
                f"{show(num_hits)} / {show(count)}",
                recall_wrong,
                scales=PERCENT,
            )
        )
        hit_ranks = [int(rank) for rank in ranks[:top][cut_hits]]
        terms = " + ".join(f"{number}/{rank}" for number, rank in enumerate(hit_ranks[:10], 1))
        average_wrong = {
            "the precisions of all ranks are averaged, not those of relevant documents": float(at_rank[:top].mean()),
            "the sum is divided by the number of ranks instead of relevant documents": float(
                at_rank[:top][cut_hits].sum()
            )
            / top,
            "the sum is not divided": float(at_rank[:top][cut_hits].sum()),
            "that is the precision of the whole list": precision,
            "the reciprocal ranks of relevant documents are averaged": divide(
                float((1 / ranks[:top])[cut_hits].sum()), count
            ),
            "the sum is divided by the relevant documents that were retrieved instead of all": divide(
                float(at_rank[:top][cut_hits].sum()), num_hits
            ),
        }
        names = [f"AP{end}", f"average_precision{end}", f"AP@{top}{end}", *([f"AP{suffix}"] if not end else [])]
        values.append(
            expect(
                names,
                average,
                "average precision",
                "sum of the precision at each relevant document / number of relevant documents",
                f"({terms or 0}) / {show(count)}",
                average_wrong,
                scales=PERCENT,
            )
        )
        reciprocal = 1 / first if first else 0.0
        reciprocal_wrong = {
            "that is the rank, not its reciprocal": float(first),
            "the last relevant document is taken instead of the first": 1 / last if last else np.nan,
            "ranks are counted from 0": 1 / (first - 1) if first > 1 else np.nan,
            "ranks are counted from 2": 1 / (first + 1),
        }
        names = [f"RR{end}", f"reciprocal_rank{end}"]
        values.append(
            expect(names, reciprocal, "reciprocal rank of the first hit", "1 / rank", f"1/{first}", reciprocal_wrong)
        )
        discounts = {
            "the discount is the natural logarithm instead of log2": "ln",
            "the discount is log10 instead of log2": "log10",
            "the discount is the rank instead of log2(rank + 1)": "rank",
            "the discount is log2(rank) instead of log2(rank + 1)": "log2(rank)",
            "the gains are not discounted": "none",
        }
        gain_text = "the gain is 2^rel − 1" if gain == "linear" else "the gain is the relevance"
        gain_text += f"; here it is {'the relevance' if gain == 'linear' else '2^rel − 1'}"
        dcg_wrong = {text: discounted_gain(gains[:top], name) for text, name in discounts.items()}
        idcg_wrong = {text: discounted_gain(ideal[:top], name) for text, name in discounts.items()}
        dcg_wrong[gain_text], idcg_wrong[gain_text] = (
            discounted_gain(other_gains[:top]),
            discounted_gain(other_ideal[:top]),
        )
        terms = " + ".join(f"{show(g)}/{show(log(r + 1, 2))}" for r, g in enumerate(gains[:top][:10], 1))
        formula = "Σ gain / log2(rank + 1), " + ("gain = relevance" if gain == "linear" else "gain = 2^rel − 1")
        values.append(expect([f"DCG{end}", f"DCG@{top}{end}", f"DCG@k{end}"], dcg, "", formula, terms, dcg_wrong))
        terms = " + ".join(f"{show(g)}/{show(log(r + 1, 2))}" for r, g in enumerate(ideal[:top][:10], 1))
        values.append(
            expect(
                [f"IDCG{end}", f"IDCG@{top}{end}", f"ideal_DCG{end}"],
                idcg,
                "DCG of the best order",
                formula + ", relevances sorted downwards",
                terms,
                {**idcg_wrong, "the relevances are not sorted": dcg},
            )
        )
        cut_ideal = discounted_gain(np.sort(gains[:top])[::-1])
        ndcg_wrong = {
            **{text: divide(dcg_wrong[text], idcg_wrong[text]) for text in dcg_wrong},
            "DCG and IDCG are exchanged": divide(idcg, dcg),
            "DCG is not divided by IDCG": dcg,
            "the ideal order sorts only the first k; it sorts all documents": divide(dcg, cut_ideal),
            "DCG is divided by the sum of the gains": divide(dcg, float(gains.sum())),
            "DCG is divided by the number of ranks": dcg / top,
        }
        names = [f"nDCG{end}", f"nDCG@{top}{end}", f"nDCG@k{end}"]
        values.append(expect(names, ndcg, "", "DCG / IDCG", f"{show(dcg)} / {show(idcg)}", ndcg_wrong, scales=PERCENT))
        for name, value, wrong in (
            ("AP", average, average_wrong),
            ("RR", reciprocal, reciprocal_wrong),
            ("nDCG", ndcg, ndcg_wrong),
            ("P", precision, precision_wrong),
            ("recall", recall, recall_wrong),
        ):
            columns[name].append(value)
            for text, number in wrong.items():
                wrong_columns[name].setdefault(text, []).append(float(number))
    means = {name: float(np.mean(column)) for name, column in columns.items()}
    wrong_means = {
        name: {text: float(np.mean(column)) for text, column in wrong.items() if np.isfinite(column).all()}
        for name, wrong in wrong_columns.items()
    }
    first_ranks = [1 / value for value in columns["RR"] if value]
    if first_ranks:
        text = "the ranks are averaged before taking the reciprocal"
        wrong_means["RR"][text] = 1 / float(np.mean(first_ranks))
        hits = [value for value in columns["RR"] if value]
        wrong_means["RR"]["queries without a hit are left out; they count 0"] = float(np.mean(hits))
    top = str(k) if k else "k"
    for name, names, meaning in (
        ("P", [f"mean_P@{top}", f"mean_precision@{top}"], "mean precision"),
        ("recall", [f"mean_recall@{top}"], "mean recall"),
        ("nDCG", ["mean_nDCG", f"mean_nDCG@{top}"], "mean nDCG"),
        ("RR", ["MRR", "mean_reciprocal_rank"], "mean reciprocal rank"),
        ("AP", ["MAP", "mean_average_precision", f"MAP@{top}"], "mean average precision"),
    ):
        column = columns[name]
        wrong = {**wrong_means[name], "the sum is not divided by the number of queries": sum(column)}
        other = "RR" if name == "AP" else "AP"
        wrong[f"that is {'MRR' if name == 'AP' else 'MAP'}"] = means[other]
        work = f"({show_terms(column)}) / {len(column)}"
        values.append(expect(names, means[name], meaning, "mean over the queries", work, wrong, scales=PERCENT))
    return values


def expect_pass(samples: int, correct: int, k: int) -> list[ExpectedValue]:
    """Return the probability that one of k samples is right, from `correct` of `samples`, without bias."""
    miss = 1.0
    for index in range(k):  # C(n − c, k) / C(n, k)
        miss *= max(0.0, (samples - correct - index) / (samples - index))
    every = 1.0
    for index in range(k):
        every *= max(0.0, (correct - index) / (samples - index))
    rate = correct / samples
    mistakes = {
        "samples are drawn with replacement: 1 − (1 − c/n)^k": 1 - (1 - rate) ** k,
        "that is pass@1: c/n": rate,
        "c/n is multiplied by k": min(k * rate, 1e6),
        "that is the probability that all k samples are right": every,
        "all k samples are right, with replacement": rate**k,
        "that is the probability that none is right: subtract it from 1": miss,
        "that is the probability that none is right, with replacement": (1 - rate) ** k,
        "c and n − c are exchanged": 1 - every,
    }
    work = f"1 − C({samples - correct}, {k}) / C({samples}, {k}) = 1 − {show(miss)}"
    return [
        expect(
            ["miss", "none_right"], miss, "probability that none of k is right", "C(n − c, k) / C(n, k)", scales=PERCENT
        ),
        expect(
            ["pass@k", f"pass@{k}", "pass_at_k", f"pass_at_{k}", "passk"],
            1 - miss,
            f"probability that one of {k} samples is right",
            "1 − C(n − c, k) / C(n, k)",
            work,
            mistakes,
            scales=PERCENT,
        ),
    ]
