"""Metrics of information: perplexity, entropy, divergences, mutual information and PMI."""

from collections.abc import Sequence
from math import exp, log

import numpy as np

from lemma.checking.exercises.class_metrics import divide
from lemma.checking.exercises.statements import expect, show, show_terms
from lemma.checking.expected_values import Array, ExpectedValue

UNITS = {"2": "bits", "e": "nats", "10": "decimal digits"}
SIGNS = {"2": "log2", "e": "ln", "10": "log10"}
BASES = {"2": 2.0, "e": np.e, "10": 10.0}


def logs(values: Array, base: str) -> Array:
    """Return logarithms to the base "2", "e" or "10"; 0 for 0, whose products with 0 are 0."""
    return np.log(np.where(values > 0, values, 1.0)) / log(BASES[base])


def wrong_bases(value: float, base: str) -> dict[str, float]:
    """Return a value in nats, bits or digits as it comes out with another base of the logarithm."""
    return {
        f"the logarithm has the base {other}; here it is {SIGNS[base]}": value * log(BASES[base]) / log(BASES[other])
        for other in BASES
        if other != base
    }


def expect_perplexity(probabilities: Array, base: str) -> list[ExpectedValue]:
    """Return log-likelihood, cross-entropy and perplexity of a text whose tokens have these probabilities."""
    count, terms = len(probabilities), logs(probabilities, base)
    total, sign = float(terms.sum()), SIGNS[base]
    loss = -total / count
    natural = float(np.log(probabilities).sum())
    perplexity = exp(min(-natural / count, 700.0))
    probability = exp(natural)
    ps = show_terms(probabilities, "·")
    values = [
        expect(
            "probability likelihood P product",
            probability,
            "probability of the text",
            "product of the probabilities",
            ps,
            {
                "the probabilities are added": float(probabilities.sum()),
                "the mean of the probabilities is taken": float(probabilities.mean()),
            },
        ),
        expect(
            "log_likelihood log_probability LL logP",
            total,
            f"in {UNITS[base]}",
            f"Σ {sign} p",
            show_terms(terms),
            {**wrong_bases(total, base), "the sum is divided by the number of tokens": total / count},
        ),
        expect(
            "NLL negative_log_likelihood",
            -total,
            f"in {UNITS[base]}",
            f"−Σ {sign} p",
            f"−({show_terms(terms)})",
            {**wrong_bases(-total, base), "the sum is divided by the number of tokens": loss},
        ),
        expect(
            "cross_entropy H loss CE entropy bits_per_token mean_NLL average_NLL",
            loss,
            f"for each token, in {UNITS[base]}",
            f"−(1/N) Σ {sign} p",
            f"−({show_terms(terms)}) / {count}",
            {
                **wrong_bases(loss, base),
                "the sum is not divided by the number of tokens": -total,
                "the mean of the probabilities is taken before the logarithm": -float(
                    logs(np.array([probabilities.mean()]), base)[0]
                ),
                "the divisor is one too small": divide(-total, count - 1) if count > 1 else np.nan,
                "the divisor is one too large": -total / (count + 1),
                "that is the perplexity": perplexity,
            },
        ),
    ]
    natural_loss = -natural / count
    mistakes = {
        "the root is left out: that is 1 / probability of the text": exp(min(-natural, 700.0)),
        "the inverse is left out: that is the geometric mean of the probabilities": 1 / perplexity,
        "the arithmetic mean of the probabilities is inverted instead of the geometric": 1
        / float(probabilities.mean()),
        "the inverse probabilities are averaged": float((1 / probabilities).mean()),
        "2 is raised to a cross-entropy in nats; base and logarithm must agree": 2**natural_loss,
        "e is raised to a cross-entropy in bits; base and logarithm must agree": exp(min(natural_loss / log(2), 700.0)),
        "e is raised to a cross-entropy with log10; base and logarithm must agree": exp(natural_loss / log(10)),
        "that is the cross-entropy in nats, not yet its exponential": natural_loss,
        "that is the cross-entropy in bits, not yet its power of two": natural_loss / log(2),
        "the number of tokens is one too small": exp(min(-natural / (count - 1), 700.0)) if count > 1 else np.nan,
        "the number of tokens is one too large": exp(-natural / (count + 1)),
        "the square root is taken instead of the N-th": exp(min(-natural / 2, 700.0)),
        "the probability of the text is divided by the number of tokens, not rooted": 1 / (count * probability)
        if probability
        else np.nan,
    }
    values.append(
        expect(
            "perplexity PP PPL",
            perplexity,
            "inverse geometric mean of the probabilities",
            "(p1·…·pN)^(−1/N) = exp(−(1/N) Σ ln p)",
            f"({ps})^(−1/{count}) = exp({show(natural_loss)})",
            mistakes,
            up_to=frozenset({"decimals"}),
        )
    )
    return values


def expect_divergence(p: Array, q: Array | None, base: str) -> list[ExpectedValue]:
    """Return the entropies of distributions, their cross-entropies and divergences."""
    sign, unit = SIGNS[base], UNITS[base]

    def cross(left: Array, right: Array, to: str = base) -> float:
        if np.any((left > 0) & (right <= 0)):
            return np.inf
        return -float((left * logs(right, to)).sum())

    entropy = cross(p, p)
    terms = [f"{show(x)}·{sign} {show(x)}" for x in p[:8]]
    values = [
        expect(
            "H(p) entropy H(X) entropy_p" + (" H" if q is None else ""),
            entropy,
            f"entropy of p, in {unit}",
            f"−Σ p {sign} p",
            f"−({' + '.join(terms)})",
            {
                **wrong_bases(entropy, base),
                "the weights p are left out": -float(logs(p, base).sum()),
                "the sum is divided by the number of outcomes": entropy / len(p),
                "that is the entropy of the uniform distribution": float(logs(np.array([float(len(p))]), base)[0]),
            },
        )
    ]
    if q is None:
        power = exp(entropy * log(BASES[base]))
        values.insert(0, expect("perplexity PP", power, "", f"{'e' if base == 'e' else base}^H"))
        return values
    forward, backward = cross(p, q), cross(q, p)
    other = cross(q, q)
    values.append(
        expect("H(q) entropy_q", other, f"entropy of q, in {unit}", f"−Σ q {sign} q", "", wrong_bases(other, base))
    )
    divergence, reverse = forward - entropy, backward - other
    if np.isfinite(reverse):
        names = "KL(q||p) KL(q|p) D(q|p) D_KL(q|p) D(q||p) D_KL(q||p) reverse_KL KL(q‖p) D(q‖p) DKL(q‖p)"
        values.append(
            expect(
                names,
                reverse,
                f"in {unit}",
                f"Σ q {sign}(q/p)",
                "",
                {**wrong_bases(reverse, base), "p and q are exchanged": divergence},
            )
        )
        values.append(expect("H(q,p)", backward, f"cross-entropy of p under q, in {unit}", f"−Σ q {sign} p"))
    middle = (p + q) / 2
    halves = [cross(p, middle) - entropy, cross(q, middle) - other]
    shannon = sum(halves) / 2
    values.append(
        expect(
            "JS(p,q) JS JSD JS(p||q) jensen-shannon",
            shannon,
            f"Jensen–Shannon divergence, in {unit}",
            "(KL(p‖m) + KL(q‖m)) / 2 with m = (p + q)/2",
            f"({show(halves[0])} + {show(halves[1])}) / 2",
            {
                **wrong_bases(shannon, base),
                "the factor 1/2 is left out": 2 * shannon,
                "that is its square root, the distance": shannon**0.5 if shannon > 0 else 0.0,
                "KL(p‖q) and KL(q‖p) are averaged": (divergence + reverse) / 2,
            },
        )
    )
    if not np.isfinite(forward):
        return values
    terms = [f"{show(x)}·{sign} {show(y)}" for x, y in zip(p[:8], q[:8], strict=True)]
    values.append(
        expect(
            "H(p,q) cross_entropy CE cross-entropy loss",
            forward,
            f"cross-entropy of q under p, in {unit}",
            f"−Σ p {sign} q",
            f"−({' + '.join(terms)})",
            {
                **wrong_bases(forward, base),
                "p and q are exchanged": backward,
                "that is the entropy of p": entropy,
                "that is the divergence: the entropy of p is subtracted": divergence,
                "the weights p are left out": -float(logs(q, base).sum()),
                "the sum is divided by the number of outcomes": forward / len(p),
            },
        )
    )
    ratios = [f"{show(x)}·{sign}({show(x)}/{show(y)})" for x, y in zip(p[:8], q[:8], strict=True)]
    weighted = float((p * np.abs(logs(np.where(p > 0, p / np.where(q > 0, q, 1), 1), base))).sum())
    values.append(
        expect(
            "KL KL(p||q) KL(p|q) D(p|q) D_KL(p|q) D(p||q) D_KL(p||q) D_KL KL(p‖q) D(p‖q) DKL(p‖q) divergence KL(p,q)",
            divergence,
            f"divergence of q from p, in {unit}",
            f"Σ p {sign}(p/q) = H(p, q) − H(p)",
            " + ".join(ratios),
            {
                **wrong_bases(divergence, base),
                "p and q are exchanged": reverse,
                "that is the cross-entropy: the entropy of p is not subtracted": forward,
                "H(p, q) and H(p) are added": forward + entropy,
                "the entropy of q is subtracted instead of that of p": forward - other,
                "the weights p are left out": float((logs(p, base) - logs(q, base)).sum()),
                "the terms are taken without their signs": weighted,
                "both directions are averaged": (divergence + reverse) / 2,
                "both directions are added": divergence + reverse,
            },
        )
    )
    return values


def expect_information(joint: Array, base: str) -> list[ExpectedValue]:
    """Return the marginals, entropies and mutual information of a joint distribution or table of counts."""
    total = float(joint.sum())
    joint = joint / total
    p_x, p_y = joint.sum(axis=1), joint.sum(axis=0)
    sign, unit = SIGNS[base], UNITS[base]

    def entropy(values: Array) -> float:
        return -float((values * logs(values, base)).sum())

    h_x, h_y, h_xy = entropy(p_x), entropy(p_y), entropy(joint)
    product = np.outer(p_x, p_y)
    pmi = logs(np.where(joint > 0, joint / np.where(product > 0, product, 1), 1.0), base)
    information = h_x + h_y - h_xy
    ratios = joint / np.where(product > 0, product, 1.0)
    values = [
        expect("p_x p(x) marginal_x", p_x, "distribution of X: rows", mistakes={"rows and columns are exchanged": p_y}),
        expect(
            "p_y p(y) marginal_y", p_y, "distribution of Y: columns", mistakes={"rows and columns are exchanged": p_x}
        ),
        expect(
            "H(X) H_X", h_x, f"in {unit}", f"−Σ p(x) {sign} p(x)", "", {**wrong_bases(h_x, base), "that is H(Y)": h_y}
        ),
        expect(
            "H(Y) H_Y", h_y, f"in {unit}", f"−Σ p(y) {sign} p(y)", "", {**wrong_bases(h_y, base), "that is H(X)": h_x}
        ),
        expect("H(X,Y) H_XY", h_xy, f"in {unit}", f"−Σ p(x, y) {sign} p(x, y)", "", wrong_bases(h_xy, base)),
        expect(
            "H(X|Y) H(X∣Y)",
            h_xy - h_y,
            f"in {unit}",
            "H(X, Y) − H(Y)",
            f"{show(h_xy)} − {show(h_y)}",
            {"that is H(Y|X)": h_xy - h_x, "that is H(X, Y) + H(Y)": h_xy + h_y, **wrong_bases(h_xy - h_y, base)},
        ),
        expect(
            "H(Y|X) H(Y∣X)",
            h_xy - h_x,
            f"in {unit}",
            "H(X, Y) − H(X)",
            f"{show(h_xy)} − {show(h_x)}",
            {"that is H(X|Y)": h_xy - h_y, "that is H(X, Y) + H(X)": h_xy + h_x, **wrong_bases(h_xy - h_x, base)},
        ),
    ]
    if np.any(joint > 0):
        values.append(
            expect(
                "PMI pmi_matrix",
                np.where(joint > 0, pmi, -np.inf),
                "pointwise mutual information of each cell",
                f"{sign} p(x, y) / (p(x) p(y))",
                "",
                {"the marginals are left out": logs(joint, base)},
            )
        )
    values.append(
        expect(
            "PPMI ppmi_matrix positive_PMI",
            np.where(joint > 0, np.maximum(pmi, 0.0), 0.0),
            "positive PMI of each cell",
            f"max(0, {sign} p(x, y) / (p(x) p(y))), and 0 for pairs that do not occur",
            "",
            {
                "negative PMI becomes 0": np.where(joint > 0, pmi, 0.0),
                "the logarithm is left out": ratios,
                **{
                    f"the logarithm has the base {other}; here it is {sign}": np.where(
                        joint > 0, np.maximum(logs(np.where(joint > 0, ratios, 1.0), other), 0.0), 0.0
                    )
                    for other in BASES
                    if other != base
                },
            },
        )
    )
    values.append(
        expect(
            "I(X;Y) I(X,Y) MI mutual_information I",
            information,
            f"mutual information, in {unit}",
            f"Σ p(x, y) {sign} p(x, y)/(p(x) p(y)) = H(X) + H(Y) − H(X, Y)",
            f"{show(h_x)} + {show(h_y)} − {show(h_xy)}",
            {
                **wrong_bases(information, base),
                "that is the joint entropy": h_xy,
                "the weights p(x, y) are left out: the PMI are added": float(pmi.sum()),
                "the PMI are averaged without weights": float(pmi.mean()),
                "the weights are p(x)·p(y) instead of p(x, y)": float((product * pmi).sum()),
                "that is H(X|Y)": h_xy - h_y,
                "that is H(Y|X)": h_xy - h_x,
                "H(X, Y) is subtracted from H(X) alone": h_x - h_xy,
            },
        )
    )
    return values


def expect_pmi(pair: float, first: float, second: float, total: float, base: str) -> list[ExpectedValue]:
    """Return the probabilities and the pointwise mutual information of counts of a pair and of its parts."""
    joint, left, right = pair / total, first / total, second / total
    sign, unit = SIGNS[base], UNITS[base]

    def value(ratio: float) -> float:
        return log(ratio) / log(BASES[base]) if ratio > 0 else np.nan

    result = value(joint / (left * right)) if pair else -np.inf
    values = [
        expect("p(x,y) p_xy P(xy)", joint, "fraction of the pair", "count(x, y) / N", f"{show(pair)} / {show(total)}"),
        expect("p(x) p_x", left, "fraction of x", "count(x) / N", f"{show(first)} / {show(total)}"),
        expect("p(y) p_y", right, "fraction of y", "count(y) / N", f"{show(second)} / {show(total)}"),
    ]
    if not pair:
        return [*values, expect("PPMI positive_PMI", 0.0, "", "max(PMI, 0)", "the pair never occurs: PMI is −∞")]
    mistakes = {
        **wrong_bases(result, base),
        "the fraction is inverted": -result,
        "the counts are not divided by N: N is left out": value(pair / (first * second)),
        "N is squared in the numerator, or one division by N is left out": value(joint / (left * right)) + value(total),
        "p(y) is left out: that is log p(y | x) / …": value(joint / left),
        "p(x) is left out": value(joint / right),
        "the logarithm is left out": joint / (left * right),
        "p(x) and p(y) are added instead of multiplied": value(joint / (left + right)),
        "the logarithm is weighted with p(x, y)": joint * result,
    }
    work = f"{sign} ({show(joint)} / ({show(left)}·{show(right)})) = {sign} {show(joint / (left * right))}"
    formula = f"{sign} p(x, y) / (p(x) p(y)) = {sign} count(x, y)·N / (count(x)·count(y))"
    npmi = result / -value(joint) if joint < 1 else 1.0
    values += [
        expect("NPMI normalized_PMI", npmi, "normalized PMI", "PMI / −log p(x, y)"),
        expect(
            "PPMI positive_PMI",
            max(result, 0.0),
            "positive PMI",
            "max(PMI, 0)",
            work,
            {"a negative PMI becomes 0": result, **wrong_bases(max(result, 0.0), base)},
        ),
        expect("PMI pmi(x,y) PMI(x;y)", result, f"in {unit}", formula, work, mistakes),
    ]
    return values


def normalize_distribution(values: Sequence[float], name: str) -> Array:
    """Return a distribution as an array; raise a ValueError if it does not sum to 1."""
    array = np.array(values, dtype=np.float64)
    if np.any(array < 0) or abs(array.sum() - 1) > 0.011:
        raise ValueError(f"{name} is no distribution: its probabilities sum to {show(array.sum())}, not to 1.")
    return array
