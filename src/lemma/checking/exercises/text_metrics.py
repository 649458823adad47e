"""Metrics that compare texts: BLEU, ROUGE, chrF and the edit distance, with the values that mistakes give."""

import re
import string
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log, prod

import numpy as np

from lemma.checking.exercises.statements import expect, show, show_terms
from lemma.checking.expected_values import ExpectedValue

PERCENT = {100.0: "in per cent"}
MAX_TABLE = 400  # entries of a table of edit distances
MAX_ALIGNMENTS = 12  # different counts of edits that are as cheap
Tokens = tuple[str, ...]


def split_words(text: str, lowercase: bool, tokens: str) -> Tokens:
    """Return the words of a text, with punctuation as it is, apart, or left out.

    >>> split_words("The cat.", True, "punctuation"), split_words("The cat.", False, "no punctuation")
    (('the', 'cat', '.'), ('The', 'cat'))
    """
    text = text.casefold() if lowercase else text
    if tokens == "words":
        return tuple(text.split())
    marks = re.escape(string.punctuation + "“”‘’„«»…–—¿¡。、，！？")
    parts = re.findall(rf"[^\s{marks}]+|[{marks}]", text)
    if tokens == "punctuation":
        return tuple(parts)
    return tuple(part for part in parts if not re.fullmatch(rf"[{marks}]", part))


def count_ngrams(tokens: Sequence[str], order: int) -> Counter[tuple[str, ...]]:
    """Return the count of each n-gram."""
    return Counter(tuple(tokens[start : start + order]) for start in range(len(tokens) - order + 1))


# BLEU


@dataclass(frozen=True)
class BleuStatement:
    """Sentences with their references, and the conventions of BLEU."""

    pairs: tuple[tuple[Tokens, tuple[Tokens, ...]], ...]
    max_n: int
    smoothing: str
    length_rule: str

    def candidate_length(self) -> int:
        """Return the number of words of all candidates."""
        return sum(len(candidate) for candidate, _ in self.pairs)

    def reference_length(self, rule: str = "") -> float:
        """Return the length of the references, for each candidate by the rule."""
        total = 0.0
        for candidate, references in self.pairs:
            lengths = [len(reference) for reference in references]
            match rule or self.length_rule:
                case "shortest":
                    total += min(lengths)
                case "longest":
                    total += max(lengths)
                case "average":
                    total += sum(lengths) / len(lengths)
                case "first":
                    total += lengths[0]
                case _:
                    total += min(lengths, key=lambda length: (abs(length - len(candidate)), length))
        return total

    def count_matches(self, order: int, clip: str = "max") -> int:
        """Return the matching n-grams of all candidates, clipped by a rule."""
        total = 0
        for candidate, references in self.pairs:
            counts = count_ngrams(candidate, order)
            limits = [count_ngrams(reference, order) for reference in references]
            for ngram, count in counts.items():
                in_references = [limit[ngram] for limit in limits]
                match clip:
                    case "none":
                        total += count if any(in_references) else 0
                    case "types":
                        total += bool(any(in_references))
                    case "sum":
                        total += min(count, sum(in_references))
                    case "first":
                        total += min(count, in_references[0])
                    case _:
                        total += min(count, max(in_references))
        return total

    def count_totals(self, order: int, of: str = "candidate") -> int:
        """Return the number of n-grams of the candidates, or of something that is confused with them."""
        total = 0
        for candidate, references in self.pairs:
            match of:
                case "references":
                    total += max(0, len(references[0]) - order + 1)
                case "words":
                    total += len(candidate)
                case "types":
                    total += len(count_ngrams(candidate, order))
                case _:
                    total += max(0, len(candidate) - order + 1)
        return total

    def precisions(self, clip: str = "max", of: str = "candidate", smoothing: str = "") -> list[float]:
        """Return the modified precision of each order."""
        smoothing, halvings, values = smoothing or self.smoothing, 0, list[float]()
        for order in range(1, self.max_n + 1):
            matches: float = self.count_matches(order, clip)
            total: float = self.count_totals(order, of)
            if smoothing == "add-1-all" or (smoothing == "add-1" and order > 1):
                matches, total = matches + 1, total + 1
            elif not matches and smoothing == "floor":
                matches = 0.1
            elif not matches and smoothing == "exp":
                halvings += 1
                matches = 0.5**halvings
            values.append(matches / total if total else 0.0)
        return values

    def penalty(self, rule: str = "") -> float:
        """Return the brevity penalty: exp(1 − r/c) for short candidates."""
        length, expected = self.candidate_length(), self.reference_length(rule)
        return 1.0 if length >= expected else exp(1 - expected / length)


def geometric_mean(values: Sequence[float]) -> float:
    """Return the geometric mean: 0 if a value is 0."""
    return exp(sum(map(log, values)) / len(values)) if values and min(values) > 0 else 0.0


def expect_bleu(bleu: BleuStatement) -> list[ExpectedValue]:
    """Return the counts, the precisions, the brevity penalty and BLEU."""
    values: list[ExpectedValue] = []
    right = bleu.precisions()
    mistaken_precisions = {
        "the counts are not clipped": bleu.precisions("none"),
        "the counts are clipped by the sum over the references instead of the largest": bleu.precisions("sum"),
        "only the first reference counts": bleu.precisions("first"),
        "different n-grams are counted, not occurrences": bleu.precisions("types", "types"),
        "each n-gram counts once in the numerator": bleu.precisions("types"),
        "the denominator has the n-grams of the reference: that is recall": bleu.precisions("max", "references"),
        "the denominator is the number of words instead of n-grams": bleu.precisions("max", "words"),
    }
    if bleu.smoothing == "none":
        mistaken_precisions["the counts are smoothed (add 1 for n > 1)"] = bleu.precisions(smoothing="add-1")
        mistaken_precisions["the counts are smoothed (add 1 for all n)"] = bleu.precisions(smoothing="add-1-all")
    else:
        mistaken_precisions["the counts are not smoothed"] = bleu.precisions(smoothing="none")
        mistaken_precisions["unigrams are smoothed, too"] = bleu.precisions(smoothing="add-1-all")
        mistaken_precisions["unigrams are not smoothed"] = bleu.precisions(smoothing="add-1")
    for index in range(bleu.max_n):
        order, name = index + 1, f"{index + 1}-grams"
        matches, total = bleu.count_matches(order), bleu.count_totals(order)
        values.append(
            expect(
                f"clipped{order} matches{order} clip{order} count_clip{order} numerator{order}",
                matches,
                f"clipped count of matching {name}",
                "Σ over n-grams of min(count in the candidate, largest count in a reference)",
                mistakes={
                    "the counts are not clipped": bleu.count_matches(order, "none"),
                    "each n-gram counts once": bleu.count_matches(order, "types"),
                    "the counts are clipped by the sum over the references": bleu.count_matches(order, "sum"),
                    "all n-grams of the candidate are counted": total,
                },
            )
        )
        values.append(
            expect(
                f"total{order} ngrams{order} denominator{order} possible{order}",
                total,
                f"number of {name} in the candidate",
                "c − n + 1 for each sentence",
                mistakes={
                    "that is the number of words": bleu.count_totals(order, "words"),
                    "the n-grams of the reference are counted": bleu.count_totals(order, "references"),
                    "different n-grams are counted": bleu.count_totals(order, "types"),
                },
            )
        )
        smoothed = "" if bleu.smoothing == "none" else f", smoothing {bleu.smoothing}"
        values.append(
            expect(
                [f"p{order}", f"precision{order}", f"p_{order}", f"bleu-{order} precision"],
                right[index],
                f"modified precision of {name}",
                "clipped count / number of n-grams in the candidate" + smoothed,
                f"{matches}/{total}{' before smoothing' if smoothed else ''} = {show(right[index])}",
                {text: precisions[index] for text, precisions in mistaken_precisions.items()},
                scales=PERCENT,
            )
        )
    length, expected = bleu.candidate_length(), bleu.reference_length()
    rules = {
        f"the reference length is that of the {rule} reference": bleu.reference_length(rule)
        for rule in ("shortest", "longest", "first")
    } | {"the reference length is the average of the references": bleu.reference_length("average")}
    total_length = sum(len(reference) for _, references in bleu.pairs for reference in references)
    values.append(expect("c candidate_length hypothesis_length len_c", length, "words of the candidate"))
    values.append(
        expect(
            "r effective_reference_length len_r",
            expected,
            f"words of the reference ({bleu.length_rule} where there are several)",
            mistakes=rules | {"the lengths of all references are added": total_length},
        )
    )
    penalty = bleu.penalty()
    ratio = expected / length
    penalties = {
        "the brevity penalty is left out": 1.0,
        "the ratio is inverted: exp(1 − c/r) instead of exp(1 − r/c)": exp(1 - 1 / ratio),
        "the penalty applies though the candidate is not shorter": exp(1 - ratio),
        "the exponential is left out: c/r": 1 / ratio,
        "the penalty is r/c": ratio,
        "the penalty is 1 − r/c": 1 - ratio,
        "the penalty is exp(−r/c): 1 is left out": exp(-ratio),
        "the exponent has the wrong sign": exp(min(ratio - 1, 50)),
        **{text: 1.0 if length >= other else exp(1 - other / length) for text, other in rules.items()},
    }
    condition = "c ≥ r: no penalty" if length >= expected else f"exp(1 − {show(expected)}/{length})"
    formula = "1 if c ≥ r, else exp(1 − r/c)"
    values.append(
        expect("BP brevity_penalty brevity", penalty, "brevity penalty", formula, condition, penalties, scales=PERCENT)
    )
    mean = geometric_mean(right)
    means = {
        "the arithmetic mean is taken instead of the geometric": sum(right) / len(right),
        "the product has no root": prod(right),
        "the square root is taken instead of the N-th": prod(right) ** 0.5,
        "only unigrams count": right[0],
        f"only {bleu.max_n}-grams count": right[-1],
        "the precisions are added": sum(right),
        "the precisions that are 0 are left out; they make the mean 0": geometric_mean([p for p in right if p]),
    }
    product = show_terms(right, "·")
    values.append(
        expect(
            "geometric_mean GM mean",
            mean,
            "geometric mean of the precisions",
            "(p1·…·pN)^(1/N) = exp(Σ log p_n / N)",
            f"({product})^(1/{bleu.max_n})",
            means,
            scales=PERCENT,
        )
    )
    mistakes = {
        **{text: value * mean for text, value in penalties.items()},
        **{text: penalty * geometric_mean(precisions) for text, precisions in mistaken_precisions.items()},
        **{text: penalty * value for text, value in means.items()},
        "the counts are not clipped and the brevity penalty is left out": geometric_mean(
            mistaken_precisions[next(iter(mistaken_precisions))]
        ),
    }
    if penalty < 1:
        mistakes["the arithmetic mean is taken and the brevity penalty is left out"] = sum(right) / len(right)
    values.append(
        expect(
            ["BLEU", f"BLEU-{bleu.max_n}", f"BLEU{bleu.max_n}", "score"],
            penalty * mean,
            f"BLEU with n-grams up to {bleu.max_n}",
            "BP · (p1·…·pN)^(1/N)",
            f"{show(penalty)} · ({product})^(1/{bleu.max_n}) = {show(penalty)} · {show(mean)}",
            mistakes,
            scales=PERCENT,
        )
    )
    return values


# ROUGE


def longest_common_subsequence(first: Sequence[str], second: Sequence[str]) -> int:
    """Return the length of the longest common subsequence.

    >>> longest_common_subsequence("abcd", "acbd")
    3
    """
    row = [0] * (len(second) + 1)
    for item in first:
        diagonal = 0
        for index, other in enumerate(second, 1):
            diagonal, row[index] = row[index], diagonal + 1 if item == other else max(row[index], row[index - 1])
    return row[-1]


def longest_common_substring(first: Sequence[str], second: Sequence[str]) -> int:
    """Return the length of the longest common contiguous part.

    >>> longest_common_substring("abcd", "acbd")
    1
    """
    row, best = [0] * (len(second) + 1), 0
    for item in first:
        row = [0, *(row[index] + 1 if item == other else 0 for index, other in enumerate(second))]
        best = max(best, *row)
    return best


def f_score(precision: float, recall: float, beta: float = 1.0) -> float:
    """Return the weighted harmonic mean of precision and recall; 0 if both are 0."""
    divisor = beta**2 * precision + recall
    return (1 + beta**2) * precision * recall / divisor if divisor else 0.0


def expect_f_score(
    names: Sequence[str], precision: float, recall: float, beta: float, mistakes: dict[str, float] | None = None
) -> ExpectedValue:
    """Return the F score of a precision and a recall."""
    value = f_score(precision, recall, beta)
    scales = dict(PERCENT)
    formula = "2·P·R / (P + R)" if beta == 1 else f"(1 + β²)·P·R / (β²·P + R) with β = {show(beta)}"
    text = f"with P = {show(precision)} and R = {show(recall)}"
    wrong = {
        "the arithmetic mean of precision and recall is taken instead of the harmonic": (precision + recall) / 2,
        "the geometric mean of precision and recall is taken instead of the harmonic": (precision * recall) ** 0.5,
        "the factor 2 is left out": f_score(precision, recall) / 2,
        "that is the precision": precision,
        "that is the recall": recall,
        "precision and recall are multiplied": precision * recall,
    }
    if beta != 1:
        wrong["β is 1: the plain F1"] = f_score(precision, recall)
        wrong["precision and recall are exchanged, or β is inverted"] = f_score(precision, recall, 1 / beta)
        wrong["β is not squared"] = f_score(precision, recall, beta**0.5)
    return expect(names, value, "F score", formula, text, {**wrong, **(mistakes or {})}, scales=scales)


def expect_rouge(candidate: Tokens, references: Sequence[Tokens], beta: float, variant: str) -> list[ExpectedValue]:
    """Return overlap, precision, recall and F of ROUGE-1, 2 and L; `variant` may leave out its name, as in "recall"."""
    values: list[ExpectedValue] = []
    for kind in sorted(("1", "2", "L"), key=lambda kind: kind == variant):  # the variant last: it is asked for
        order = 1 if kind == "L" else int(kind)
        sizes = [max(0, len(candidate) - order + 1), *(max(0, len(text) - order + 1) for text in references)]

        def overlap(reference: Tokens, clip: bool = True, kind: str = kind, order: int = order) -> int:
            if kind == "L":
                return longest_common_subsequence(candidate, reference)
            left, right = count_ngrams(candidate, order), count_ngrams(reference, order)
            return sum(min(count, right[ngram]) if clip else count * (ngram in right) for ngram, count in left.items())

        matches = [overlap(reference) for reference in references]
        precisions = [match / sizes[0] if sizes[0] else 0.0 for match in matches]
        recalls = [match / size if size else 0.0 for match, size in zip(matches, sizes[1:], strict=True)]
        best = max(range(len(references)), key=lambda index: f_score(precisions[index], recalls[index], beta))
        size, match = sizes[1 + best], matches[best]
        precision, recall = precisions[best], recalls[best]
        shared = {
            "different words are counted, not occurrences": len({*candidate} & {*references[best]}),
        }
        if kind == "L":
            shared["the longest common substring is taken: a subsequence may have gaps"] = longest_common_substring(
                candidate, references[best]
            )
            shared["all common words are counted, whatever their order"] = sum(
                (Counter(candidate) & Counter(references[best])).values()
            )
        else:
            shared["the counts are not clipped"] = overlap(references[best], False)
        unit = "words in the longest common subsequence" if kind == "L" else f"common {kind}-grams"
        unshifted = kind == variant
        stem = (f"rouge{kind}", f"rouge-{kind}", f"r{kind}", f"r-{kind}", f"rouge-{kind}-", f"rouge{kind}-")

        def names(
            *measures: str,
            stem: tuple[str, ...] = stem,
            unshifted: bool = unshifted,
            kind: str = kind,
        ) -> list[str]:
            full = [f"{start}_{measure}" for start in stem for measure in measures]
            full += [f"{measure}_{kind}" for measure in measures] + [f"{m}({s})" for m in measures for s in stem[:2]]
            full += [f"{measure}_lcs" for measure in measures] if kind == "L" else []
            return full + ([*measures] if unshifted else [])

        values.append(
            expect(
                [*(("LCS", "lcs_length") if kind == "L" else ()), *names("overlap", "matches")],
                match,
                f"number of {unit}",
                "length of the longest common subsequence" if kind == "L" else "Σ min(count, count in the reference)",
                mistakes=shared,
            )
        )
        texts = (f"{match}/{size}", f"{match}/{sizes[0]}")
        values.append(
            expect(
                names("recall", "r"),
                recall,
                f"ROUGE-{kind} recall",
                f"{unit} / {'words' if kind == 'L' else kind + '-grams'} of the reference",
                f"{texts[0]} = {show(recall)}",
                {
                    "precision and recall are exchanged: this divides by the candidate": precision,
                    **{text: wrong / size if size else 0.0 for text, wrong in shared.items()},
                    "the denominator counts words instead of n-grams": match / max(1, len(references[best])),
                },
                scales=PERCENT,
            )
        )
        values.append(
            expect(
                names("precision", "p"),
                precision,
                f"ROUGE-{kind} precision",
                f"{unit} / {'words' if kind == 'L' else kind + '-grams'} of the candidate",
                f"{texts[1]} = {show(precision)}",
                {
                    "precision and recall are exchanged: this divides by the reference": recall,
                    **{text: wrong / sizes[0] if sizes[0] else 0.0 for text, wrong in shared.items()},
                    "the denominator counts words instead of n-grams": match / max(1, len(candidate)),
                },
                scales=PERCENT,
            )
        )
        wrong_scores = {
            text: f_score(wrong / sizes[0], wrong / size, beta) if sizes[0] and size else 0.0
            for text, wrong in shared.items()
        }
        value = expect_f_score(
            [*names("f1", "f", "F1", "F", "f-score", "fscore", "fmeasure", "f-measure", "f1-score")],
            precision,
            recall,
            beta,
            wrong_scores,
        )
        values.append(value)
    return values


# chrF


def expect_chrf(candidate: str, references: Sequence[str], max_n: int, beta: float) -> list[ExpectedValue]:
    """Return precision and recall of character n-grams by order, their means, and chrF."""
    unshifted = "".join(candidate.split())

    def measure(hypothesis: str, reference: str) -> tuple[list[float], list[float]]:
        precisions, recalls = list[float](), list[float]()
        for order in range(1, max_n + 1):
            left, right = count_ngrams(hypothesis, order), count_ngrams(reference, order)
            if left and right:
                matches = (left & right).total()
                precisions.append(matches / left.total())
                recalls.append(matches / right.total())
        return precisions or [0.0], recalls or [0.0]

    def score(parts: tuple[list[float], list[float]], weight: float = beta) -> float:
        return f_score(float(np.mean(parts[0])), float(np.mean(parts[1])), weight)

    best = max(references, key=lambda text: score(measure(unshifted, "".join(text.split()))))
    precisions, recalls = parts = measure(unshifted, "".join(best.split()))
    precision, recall = float(np.mean(precisions)), float(np.mean(recalls))
    values: list[ExpectedValue] = []
    for order, (left, right) in enumerate(zip(precisions, recalls, strict=True), 1):
        exchanged = "precision and recall are exchanged"
        names = [f"chrP{order}", f"precision{order}", f"p{order}"]
        values.append(expect(names, left, f"precision of {order}-grams", mistakes={exchanged: right}, scales=PERCENT))
        names = [f"chrR{order}", f"recall{order}", f"r{order}"]
        values.append(expect(names, right, f"recall of {order}-grams", mistakes={exchanged: left}, scales=PERCENT))
    mean = "mean over the orders that both texts have"
    values.append(
        expect("chrP precision", precision, "mean precision", mean, show_terms(precisions), {"that is chrR": recall})
    )
    values.append(expect("chrR recall", recall, "mean recall", mean, show_terms(recalls), {"that is chrP": precision}))
    mistakes = {
        "blanks are counted as characters": score(measure(candidate, best)),
        "the F scores of the orders are averaged; precision and recall are averaged first": float(
            np.mean([f_score(left, right, beta) for left, right in zip(precisions, recalls, strict=True)])
        ),
        "only single characters count": score(measure_first(parts)),
        "words are compared instead of characters": score(measure_words(candidate, best, max_n)),
    }
    names = ["chrF", f"chrF{beta:g}", "score", "F"]
    values.append(expect_f_score(names, precision, recall, beta, mistakes))
    return values


def measure_first(parts: tuple[list[float], list[float]]) -> tuple[list[float], list[float]]:
    """Return precision and recall of single characters alone."""
    return parts[0][:1], parts[1][:1]


def measure_words(candidate: str, reference: str, max_n: int) -> tuple[list[float], list[float]]:
    """Return precision and recall of word n-grams."""
    precisions, recalls = list[float](), list[float]()
    for order in range(1, max_n + 1):
        left, right = count_ngrams(candidate.split(), order), count_ngrams(reference.split(), order)
        if left and right:
            matches = (left & right).total()
            precisions.append(matches / left.total())
            recalls.append(matches / right.total())
    return precisions or [0.0], recalls or [0.0]


# Edit distance


@dataclass(frozen=True)
class EditCosts:
    """Costs of the edits that turn a source into a target."""

    insert: float = 1.0
    delete: float = 1.0
    substitute: float = 1.0


def edit_table(source: Sequence[str], target: Sequence[str], costs: EditCosts, swap: bool = False) -> np.ndarray:
    """Return the table of distances of all prefixes: rows for the source, columns for the target.

    >>> edit_table("ab", "b", EditCosts()).tolist()
    [[0.0, 1.0], [1.0, 1.0], [2.0, 1.0]]
    """
    table = np.zeros((len(source) + 1, len(target) + 1))
    table[:, 0] = costs.delete * np.arange(len(source) + 1)
    table[0, :] = costs.insert * np.arange(len(target) + 1)
    rows = [[float(entry) for entry in row] for row in table]
    for i, left in enumerate(source, 1):
        for j, right in enumerate(target, 1):
            rows[i][j] = min(
                rows[i - 1][j] + costs.delete,
                rows[i][j - 1] + costs.insert,
                rows[i - 1][j - 1] + (0.0 if left == right else costs.substitute),
            )
            if swap and i > 1 and j > 1 and left == target[j - 2] and source[i - 2] == right:
                rows[i][j] = min(rows[i][j], rows[i - 2][j - 2] + 1)
    return np.array(rows)


def count_edits(
    source: Sequence[str], target: Sequence[str], costs: EditCosts, table: np.ndarray
) -> list[tuple[int, int, int]]:
    """Return the possible numbers of (substitutions, deletions, insertions) of the cheapest alignments, a few at most.

    Those with the most substitutions come first.
    """
    row: list[set[tuple[int, int, int]]] = []
    for i in range(len(source) + 1):
        previous, row = row, []
        for j in range(len(target) + 1):
            counts: set[tuple[int, int, int]] = {(0, 0, 0)} if i == j == 0 else set()
            best = table[i, j]
            if i and abs(table[i - 1, j] + costs.delete - best) < 1e-9:
                counts |= {(s, d + 1, n) for s, d, n in previous[j]}
            if j and abs(table[i, j - 1] + costs.insert - best) < 1e-9:
                counts |= {(s, d, n + 1) for s, d, n in row[j - 1]}
            if i and j:
                is_same = source[i - 1] == target[j - 1]
                if abs(table[i - 1, j - 1] + (0 if is_same else costs.substitute) - best) < 1e-9:
                    counts |= {(s + (not is_same), d, n) for s, d, n in previous[j - 1]}
            row.append(set(sorted(counts, reverse=True)[:MAX_ALIGNMENTS]))
    return sorted(row[-1], reverse=True)


def expect_edits(
    source: Sequence[str], target: Sequence[str], costs: EditCosts, edits: tuple[int, int, int], unit: str
) -> list[ExpectedValue]:
    """Return the table, the distance, the numbers of edits and the error rate of turning a source into a target."""
    table = edit_table(source, target, costs)
    distance = float(table[-1, -1])
    is_lowercase = costs.substitute == 1
    other = EditCosts(costs.insert, costs.delete, 2.0 if is_lowercase else 1.0)
    paired = sum(a != b for a, b in zip(source, target, strict=False))
    common = longest_common_subsequence(source, target)
    mistakes = {
        f"a substitution costs {show(other.substitute)}; here it costs {show(costs.substitute)}": float(
            edit_table(source, target, other)[-1, -1]
        ),
        "the texts are compared position by position: insertions shift what follows": paired
        + abs(len(source) - len(target)),
        "only the positions that differ are counted": paired,
        "only the lengths are compared": abs(len(source) - len(target)),
        "substitutions are counted as a deletion and an insertion": len(source) + len(target) - 2 * common,
        "exchanging two neighbours counts as one edit; here it takes two": float(
            edit_table(source, target, costs, swap=True)[-1, -1]
        ),
        "the longest common subsequence is subtracted from the longer length": max(len(source), len(target)) - common,
        "insertions and deletions are exchanged": float(
            edit_table(source, target, EditCosts(costs.delete, costs.insert, costs.substitute))[-1, -1]
        ),
        "matching symbols are counted as edits": float(max(len(source), len(target))),
    }
    values: list[ExpectedValue] = []
    if table.size <= MAX_TABLE:
        wrong = {
            next(iter(mistakes)): edit_table(source, target, other),
            "the first row and column are 0; they count deletions and insertions": _table_from_zeros(
                source, target, costs
            ),
        }
        formula = "D[i, j] = min(D[i−1, j] + delete, D[i, j−1] + insert, D[i−1, j−1] + (0 if equal else substitute))"
        values.append(
            expect(
                "table D",
                table,
                "distances of all prefixes, the empty one first; rows: candidate, columns: reference",
                formula,
                mistakes=wrong,
                up_to=frozenset({"transposition"}),
            )
        )
    names = ("substitutions S", "deletions D_count", "insertions I")
    deletions = {"insertions and deletions are exchanged": edits[2]}
    insertions = {"insertions and deletions are exchanged": edits[1]}
    for name, count, wrong_counts in zip(names, edits, ({}, deletions, insertions), strict=True):
        values.append(
            expect(name, count, f"number of {name.split()[0]} of a cheapest alignment", mistakes=wrong_counts)
        )
    work = f"{edits[0]}·{show(costs.substitute)} (substitutions) + {edits[1]}·{show(costs.delete)} (deletions) + "
    work += f"{edits[2]}·{show(costs.insert)} (insertions) = {show(distance)}"
    values.append(
        expect(
            "distance edit_distance levenshtein edits lev d",
            distance,
            "smallest cost of edits that turn the candidate into the reference",
            "lower right entry of the table",
            work,
            mistakes,
        )
    )
    if target:
        errors = sum(edits)
        rate = errors / len(target)
        rates: dict[str, float] = {
            "the divisor is the length of the candidate instead of the reference": errors / max(1, len(source)),
            "the divisor is the longer length instead of that of the reference": errors / max(len(source), len(target)),
            "that is the accuracy 1 − error rate": 1 - rate,
            "the divisor is the sum of both lengths": errors / (len(source) + len(target)),
            "only substitutions are counted": edits[0] / len(target),
            "insertions are left out": (edits[0] + edits[1]) / len(target),
            "deletions are left out": (edits[0] + edits[2]) / len(target),
            "the number of edits is not divided by the length of the reference": float(errors),
            **{text: wrong / len(target) for text, wrong in mistakes.items()},
        }
        kind = ["WER", "word_error_rate"] if unit == "words" else ["CER", "character_error_rate"]
        values.append(
            expect(
                [*kind, "error_rate"],
                rate,
                f"edits for each of the {unit} of the reference",
                "(S + D + I) / length of the reference",
                f"({edits[0]} + {edits[1]} + {edits[2]}) / {len(target)}",
                rates,
                scales=PERCENT,
            )
        )
    return values


def _table_from_zeros(source: Sequence[str], target: Sequence[str], costs: EditCosts) -> np.ndarray:
    """Return the table with a first row and column of zeros."""
    table = np.zeros((len(source) + 1, len(target) + 1))
    for i, left in enumerate(source, 1):
        for j, right in enumerate(target, 1):
            table[i, j] = min(
                table[i - 1, j] + costs.delete,
                table[i, j - 1] + costs.insert,
                table[i - 1, j - 1] + (0.0 if left == right else costs.substitute),
            )
    return table
