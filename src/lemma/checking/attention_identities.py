"""Identities about attention: A2, B1–B3, B5–B7, C6–C8, C10, C11, D3."""

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Literal

import torch
from jaxtyping import Float
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn import functional

from lemma.checking.identity import (
    EXACT,
    KURTOSIS,
    Draws,
    Finding,
    Identity,
    IdentityReport,
    draw,
    drawn,
    filled,
    gap,
    in_float64,
    residual,
    sampled,
)
from lemma.counting.account import Account
from lemma.counting.count import count
from lemma.counting.polynomial import Polynomial, symbol, total
from lemma.counting.subject import factory_subject
from lemma.counting.writing import write
from lemma.layers.attention import Attention, AttentionShape, WindowHead, over_dependents, over_governors
from lemma.layers.positions import sinusoids
from lemma.layers.recording import AttentionRecord, overhear, tap
from lemma.report.curves import Curve, Plot
from lemma.spec.base import Spec
from lemma.spec.positions import Alibi, Rotary
from lemma.tasks.parsing import pictures
from lemma.tasks.penalties import shape_of

# Problem A2: one attention head over the window, asked by its last word only.
#
# score(e_last, e_i) = (W^q e_last)·(W^k e_i)/√d_k, α = softmax of the scores, a = Σ α_i W^v e_i.


class Sizes(Spec):
    """Of which widths, over how many words."""

    d: int = Field(default=8, ge=1, le=1024)
    """Width of the embedded words."""
    d_k: int = Field(default=5, ge=1, le=1024)
    """Width of query and keys."""
    d_v: int = Field(default=6, ge=1, le=1024)
    """Width of values."""
    N: int = Field(default=5, ge=2, le=512)
    """The window has N−1 words."""
    seed: int = Field(default=1, ge=0)
    """Fixes words and weights."""


def run(sizes: Sizes) -> IdentityReport:
    """Run our head on one window, and set its output beside the formulas word by word."""
    words = drawn(sizes.N - 1, sizes.d, seed=sizes.seed)
    head = filled(lambda: WindowHead(sizes.d, sizes.d_k, sizes.d_v), sizes.seed)
    with torch.no_grad(), overhear() as records:
        output = head(words[None], 1, sizes.N - 1)[0, 0]
    scores, alpha, written = by_hand(head, words)
    return IdentityReport(
        "a2",
        WINDOW_HEAD.title,
        "With the query of the last word only, a = Σ α_i W^v e_i, α = softmax((W^q e_last)·(W^k e_i)/√d_k).",
        sizes.to_dict(),
        (
            residual("the head − the sum written out, largest entry", gap(output, written)),
            residual("its weights − softmax of the scores", gap(records[0].weights()[0, 0, 0], alpha)),
            Finding("outputs for a window: one, of width", output.numel(), sizes.d_v, 0, "a count"),
        ),
        ("word", "score", "α"),
        tuple((str(place + 1), float(scores[place]), float(alpha[place])) for place in range(min(8, sizes.N - 1))),
    )


def by_hand(
    head: WindowHead, words: Float[Tensor, "window d"]
) -> tuple[Float[Tensor, "window"], Float[Tensor, "window"], Float[Tensor, "d_v"]]:
    """Scores, weights and output, one word after the other."""
    with torch.no_grad():
        query = head.query.weight @ words[-1]
        scores = torch.stack([query @ (head.key.weight @ word) for word in words]) / len(query) ** 0.5
        alpha = scores.exp() / scores.exp().sum()
        terms = [share * (head.value.weight @ word) for share, word in zip(alpha, words, strict=True)]
    return scores, alpha, torch.stack(terms).sum(0)


WINDOW_HEAD = Identity("a2", ("window-head",), "One head over the window, asked by its last word", Sizes, run)


# Problem B1: a head as a dependency relation. Head `dobj` attending from `prefer` is 1 on `flight`, else 0.


WORDS = ["I", "prefer", "the", "morning", "flight", "through", "Denver"]
ARCS = {
    "I": ("prefer", "nsubj"),
    "prefer": ("(top)", "root"),
    "the": ("flight", "det"),
    "morning": ("flight", "nmod"),
    "flight": ("prefer", "dobj"),
    "through": ("Denver", "case"),
    "Denver": ("flight", "nmod"),
}
"""Each word's governor and relation."""
RELATIONS = sorted({relation for _, relation in ARCS.values()})
PLACES = ["(top)", *WORDS]


class RelationsSizes(Spec):
    """How sharp the scores are."""

    sharpness: float = Field(default=60.0, gt=0, le=1000)
    """The score of what is right; all other scores are 0, that of the null place half of it."""


def targets() -> Tensor:
    """Governor and relation of each word, by number."""
    rows = [[PLACES.index(ARCS[word][0]), RELATIONS.index(ARCS[word][1])] for word in WORDS]
    return torch.tensor([rows])


def scores(sharpness: float) -> Float[Tensor, "1 relations governors dependents"]:
    """High where a word depends on another by that relation, 0 elsewhere."""
    made = torch.zeros(1, len(RELATIONS), len(PLACES), len(WORDS), dtype=torch.float64)
    for dependent, (governor, relation) in enumerate(targets()[0].tolist()):
        made[0, relation, governor, dependent] = sharpness
    return made


def run_relations(sizes: RelationsSizes) -> IdentityReport:
    """Let heads with the right scores attend, and read the picture and the tree off them."""
    table, there = scores(sizes.sharpness), torch.ones(1, len(WORDS), dtype=torch.bool)
    null = torch.full((len(RELATIONS),), sizes.sharpness / 2, dtype=torch.float64)
    alpha = over_dependents(table, null, there).exp()[0]
    dobj = alpha[RELATIONS.index("dobj"), PLACES.index("prefer")]
    flight = 1 + WORDS.index("flight")
    best = over_governors(table, there)[0].flatten(0, 1).argmax(0)
    right = targets()[0, :, 1] * len(PLACES) + targets()[0, :, 0]
    wanted = pictures(targets(), len(RELATIONS))[0].double()
    return IdentityReport(
        "b1",
        RELATION_HEAD.title,
        "In 'I prefer the morning flight through Denver' the head dobj attending from prefer is 1 on flight, else 0.",
        sizes.to_dict(),
        (
            Finding("head dobj from prefer, on flight", float(dobj[flight]), 1.0, 1e-9),
            residual("the same head, on everything else together", float(dobj.sum() - dobj[flight]), 1e-9),
            residual("all heads from all words − the picture of the tree", float((alpha - wanted).abs().max()), 1e-9),
            Finding(
                "words whose governor and relation the scores give back", int((best == right).sum()), 7, 0, "a count"
            ),
        ),
        ("word", "governor", "relation"),
        tuple((word, *ARCS[word]) for word in WORDS),
        ("A head whose governor has no such dependent attends to a null place; several dependents share evenly.",),
    )


RELATION_HEAD = Identity(
    "b1", ("relations", "dependency"), "A head as a dependency relation", RelationsSizes, run_relations
)


# Problems B2 and B3: the losses that shape attention, tried where their values are known.
#
# L_focus = 1/(K·T·L) Σ H(α[ℓ,k,t₁,·]), the mean entropy of a row;
# L_near = 1/(K·T·(L−1)) Σ_{ℓ≤L−2} min(L_max, Σ α(t₁−t₂)²).


CLOSED = -1e4  # a score so low that its exponential is 0
Weights = Float[Tensor, "layers heads T T"]


class Focus(Spec):
    """How many layers, heads and places."""

    L: int = Field(default=2, ge=1, le=12)
    """Layers."""
    K: int = Field(default=3, ge=1, le=16)
    """Heads of a layer."""
    T: int = Field(default=16, ge=2, le=512)
    """Places."""
    seed: int = Field(default=1, ge=0)
    """Fixes the scores."""


class Near(Focus):
    """The same, with the bound."""

    L: int = Field(default=3, ge=2, le=12)
    """Layers; the last is left out."""
    T: int = Field(default=64, ge=2, le=512)
    """The largest number of places."""
    L_max: float = Field(default=6.0, gt=0)
    """Where a row's squared distance is cut off."""

    @model_validator(mode="after")
    def _reaches(self) -> "Near":
        if self.L_max > (self.T // 2) ** 2:
            least = 2 * math.ceil(math.sqrt(self.L_max))
            raise ValueError(
                f"T = {self.T}: no row reaches the bound L_max = {self.L_max:g}; give T = {least} or more."
            )
        return self


def records_of(scores: Weights) -> list[AttentionRecord]:
    """A layer of attention for each, whose scores are these."""
    layers, heads, places, _ = scores.shape
    nothing = torch.zeros(1, heads, places, 1, dtype=scores.dtype)
    return [AttentionRecord(nothing, nothing, None, 1.0, scores[layer][None]) for layer in range(layers)]


def furthest(layers: int, heads: int, places: int) -> Weights:
    """Scores by which every row attends only to the place furthest from it."""
    row = torch.arange(places)
    far = torch.where(row * 2 >= places - 1, 0, places - 1)
    scores = torch.full((places, places), CLOSED, dtype=torch.float64)
    scores[row, far] = 0.0
    return scores.expand(layers, heads, places, places).contiguous()


def close_by(sizes: Near) -> Weights:
    """Random scores that fall with the distance, so that no row comes near the bound."""
    places = torch.arange(sizes.T, dtype=torch.float64)
    distance = (places[:, None] - places).abs()
    return drawn(sizes.L, sizes.K, sizes.T, sizes.T, seed=sizes.seed) - 4 * distance


def run_focus(sizes: Focus) -> IdentityReport:
    """Focus on random, even and sharp attention, beside the formula written out."""
    shape = (sizes.L, sizes.K, sizes.T, sizes.T)
    scores, even, sharp = drawn(*shape, seed=sizes.seed), torch.zeros(shape).double(), furthest(*shape[:3])
    alpha = scores.softmax(-1)
    written = float(-(alpha * alpha.log()).sum((1, 2, 3)).sum() / (sizes.K * sizes.T * sizes.L))
    return IdentityReport(
        "b2",
        FOCUS.title,
        "L_focus = 1/(K·T·L) Σ H(α[ℓ,k,t1,·]) is the mean entropy, in nats, of every head's attention rows.",
        sizes.to_dict(),
        (
            Finding("random attention, beside the sum written out", focus_of(scores), written, 1e-10),
            Finding("even attention: log T", focus_of(even), math.log(sizes.T), 1e-10),
            residual("attention to one place only: no entropy", abs(focus_of(sharp))),
        ),
        remarks=("It lies between 0, every row on one place, and log T, every row even.",),
    )


def focus_of(scores: Weights) -> float:
    """L_focus by the objective that trains."""
    return float(shape_of(records_of(scores), near_max=1.0).focus)


def near_of(scores: Weights, bound: float) -> float:
    """L_near by the objective that trains."""
    return float(shape_of(records_of(scores), near_max=bound).near)


def run_near(sizes: Near) -> IdentityReport:
    """Near where every row looks as far away as it can, at more and more places."""
    first = 2 * math.ceil(math.sqrt(sizes.L_max))
    lengths = sorted({first, *(size for size in (16, 32, 64, 128, 256) if first < size < sizes.T), sizes.T})
    rows = [_row(sizes, length) for length in lengths]
    scores = close_by(sizes)
    last, before = scores.clone(), scores.clone()
    last[-1], before[0] = 9 * drawn(*scores.shape[1:], seed=sizes.seed + 1), furthest(*scores.shape[:3])[0]
    here = near_of(scores, sizes.L_max)
    return IdentityReport(
        "b3",
        NEAR.title,
        "The largest value of the near loss, min(L_max, Σ α (t1−t2)²) averaged, does not depend on T.",
        sizes.to_dict(),
        (
            *(Finding(f"largest at T = {row[0]}: L_max", row[1], sizes.L_max, 1e-10) for row in rows),
            residual("another last layer changes it by", abs(near_of(last, sizes.L_max) - here)),
            residual("another first layer changes it by", abs(near_of(before, sizes.L_max) - here), different=True),
        ),
        ("T", "largest, cut at L_max", "largest, not cut"),
        tuple(rows),
        ("Not cut, the largest value grows with T²: one far look would outweigh all others.",),
    )


def _row(sizes: Near, places: int) -> tuple[int, float, float]:
    scores = furthest(sizes.L, sizes.K, places)
    return places, near_of(scores, sizes.L_max), near_of(scores, 1e12)


FOCUS = Identity("b2", ("focus",), "Focus loss: the mean entropy of attention", Focus, run_focus)
NEAR = Identity("b3", ("near",), "Near loss: its bound does not depend on T", Near, run_near)


# Problem C7: E[(aᵀb)²] = D for independent a, b ∈ R^D of zero mean and unit variance.


AT_ONCE = 2**22  # numbers drawn in one go
ENUMERATED = 6  # up to here all 4^D pairs of sign vectors are gone through


class ProductsSizes(Spec):
    """At which D, with how many pairs."""

    D: int = Field(default=64, ge=1, le=100_000)
    """Number of components."""
    samples: int = Field(default=20_000, ge=2, le=10_000_000)
    """Pairs drawn."""
    draws: Draws = "normal"
    """How components are drawn: normal, uniform or signs; only their two first moments matter."""
    seed: int = Field(default=1, ge=0)
    """Fixes the draws."""


def fourth_moment(D: int, draws: Draws) -> float:
    """E[(aᵀb)⁴] = D k² + 3D(D−1), with k = E[x⁴] of one component.

    Of the D⁴ products a_i b_i a_j b_j a_k b_k a_l b_l those count in which each index comes twice or four times.
    """
    return D * KURTOSIS[draws] ** 2 + 3 * D * (D - 1)


def inner_products(D: int, samples: int, draws: Draws, seed: int) -> Float[Tensor, "samples"]:
    """Draw pairs of vectors, some at a time, and return aᵀb of each."""
    generator = torch.Generator().manual_seed(seed)
    rows = max(1, AT_ONCE // D)
    sizes = [min(rows, samples - begin) for begin in range(0, samples, rows)]
    return torch.cat([(draw(draws, (n, D), generator) * draw(draws, (n, D), generator)).sum(1) for n in sizes])


def enumerated(D: int) -> float:
    """E[(aᵀb)²] over all pairs of sign vectors, without chance."""
    signs = torch.tensor(list(itertools.product((-1.0, 1.0), repeat=D)), dtype=torch.float64)
    return float((signs @ signs.T).square().mean())


def run_products(sizes: ProductsSizes) -> IdentityReport:
    """Set the sampled mean of (aᵀb)² beside D, with its standard error in closed form."""
    ladder = sorted({*(D for D in (1, 4, 16, 64, 256, 1024) if D < sizes.D), sizes.D})
    findings = [_finding(D, sizes) for D in ladder]
    rows = [(D, one.got, one.tolerance / 4, one.got / D) for D, one in zip(ladder, findings, strict=True)]
    small = min(sizes.D, ENUMERATED)
    exact = Finding(f"all {4**small:,} pairs of sign vectors at D = {small}", enumerated(small), float(small), 1e-12)
    return IdentityReport(
        "c7",
        PRODUCT_VARIANCE.title,
        "E[(aᵀb)²] = D, where a, b ∈ R^D are independent with zero mean and unit variance.",
        sizes.to_dict(),
        (findings[-1], exact),
        ("D", "mean of (aᵀb)²", "standard error", "mean / D"),
        tuple(rows),
        (
            "Why: (aᵀb)² = Σ_ij a_i b_i a_j b_j; where i ≠ j the mean is a product of zeros, and D terms are left.",
            "Standard error: √((Dk² + 3D(D−1) − D²)/samples), with k = E[x⁴] of a component.",
        ),
    )


def _finding(D: int, sizes: ProductsSizes) -> Finding:
    squares = inner_products(D, sizes.samples, sizes.draws, sizes.seed + D).square()
    error = ((fourth_moment(D, sizes.draws) - D**2) / sizes.samples) ** 0.5
    return sampled(f"mean of (aᵀb)² over {sizes.samples:,} pairs at D = {D}", float(squares.mean()), float(D), error)


PRODUCT_VARIANCE = Identity(
    "c7", ("products", "inner-products"), "The mean square of an inner product is D", ProductsSizes, run_products
)


# Problem B5: β = 1/√I gives logits of zero mean and unit variance, whatever the dimension I.


CANDIDATES = 50  # logits of the softmax whose sharpness is shown


class TemperatureSizes(Spec):
    """At which I, with how many logits."""

    I: int = Field(default=64, ge=1, le=100_000)  # noqa: E741 - the source's letter
    """Number of components of h and e."""
    samples: int = Field(default=20_000, ge=2, le=10_000_000)
    """Logits drawn."""
    draws: Draws = "normal"
    """How components are drawn: normal, uniform or signs; only their two first moments matter."""
    seed: int = Field(default=1, ge=0)
    """Fixes the draws."""


def run_temperature(sizes: TemperatureSizes) -> IdentityReport:
    """Sample logits βhᵀe, and set their mean and variance beside 0 and 1."""
    I = sizes.I  # noqa: E741
    products = inner_products(I, sizes.samples, sizes.draws, sizes.seed)
    return IdentityReport(
        "b5",
        TEMPERATURE.title,
        "With h, e ∈ R^I of independent zero-mean, unit-variance components, β = 1/√I gives logits βhᵀe of zero mean "
        "and unit variance.",
        sizes.to_dict(),
        (*_moments(products * I**-0.5, sizes), _same_factor_as_attention(I, sizes.seed)),
        ("I", "variance, β = 1", "variance, β = 1/√I", "largest weight, β = 1", "largest weight, β = 1/√I"),
        tuple(
            _temperature_row(size, sizes)
            for size in sorted({*(size for size in (4, 16, 64, 256, 1024) if size < I), I})
        ),
        (
            "Closed form: E[hᵀe] = 0 and Var[hᵀe] = I, so that Var[βhᵀe] = β²I.",
            f"Largest weight: the mean over softmaxes of {CANDIDATES} such logits. Without β it goes to 1 as I grows.",
        ),
    )


def _moments(logits: Float[Tensor, "samples"], sizes: TemperatureSizes) -> tuple[Finding, Finding]:
    I, count = sizes.I, sizes.samples  # noqa: E741
    of_variance = ((fourth_moment(I, sizes.draws) / I**2 - 1) / count) ** 0.5
    return (
        sampled(f"mean of {count:,} logits at I = {I}", float(logits.mean()), 0.0, count**-0.5),
        sampled(f"variance of {count:,} logits at I = {I}", float(logits.square().mean()), 1.0, of_variance),
    )


def _same_factor_as_attention(I: int, seed: int) -> Finding:  # noqa: E741
    queries, keys, values = drawn(3, 5, min(I, 1024), seed=seed)
    mine = (queries @ keys.T * queries.shape[-1] ** -0.5).softmax(-1) @ values
    theirs = functional.scaled_dot_product_attention(queries[None], keys[None], values[None])[0]
    return residual("softmax(βQKᵀ)V − PyTorch's fused attention, largest entry", gap(mine, theirs))


def _temperature_row(size: int, sizes: TemperatureSizes) -> tuple[float | int, ...]:
    logits = inner_products(size, sizes.samples, sizes.draws, sizes.seed + 1)
    whole = logits[: len(logits) // CANDIDATES * CANDIDATES].view(-1, CANDIDATES)
    rows = whole if len(whole) else logits[None]
    variances = [float(logits.square().mean()) / scale for scale in (1, size)]
    sharpness = [float(torch.softmax(rows * scale, -1).amax(-1).mean()) for scale in (1.0, size**-0.5)]
    return size, *variances, *sharpness


TEMPERATURE = Identity(
    "b5", ("temperature",), "The temperature that fits a dimension", TemperatureSizes, run_temperature
)


# Problem B6: one merged query–key matrix a head gives the same attention without a key matrix.
#
# W^QK[j1,j2] = Σ_i W^Q[i,j1] W^K[i,j2], times 1/√I. A plain inner product of the inputs cannot replace it: it is the
# same
# for every head.


VISIBLE = 1e-6  # a difference that is no rounding


class MergedSizes(Spec):
    """How many inputs, how wide, how many heads of which width."""

    N: int = Field(default=10, ge=2, le=2000)
    """Number of inputs."""
    J: int = Field(default=24, ge=1, le=1024)
    """Their width."""
    I: int = Field(default=6, ge=1, le=1024)  # noqa: E741 - the source's letter
    """Width of a head's queries and keys."""
    H: int = Field(default=3, ge=1, le=64)
    """Number of heads."""
    seed: int = Field(default=1, ge=0)
    """Fixes inputs and weights."""


def run_merged(sizes: MergedSizes) -> IdentityReport:
    """Compare our attention with separate and with merged matrices, and with none."""
    inputs = drawn(1, sizes.N, sizes.J, seed=sizes.seed)
    separate, merged, plain = _parts(sizes)
    outputs, weights = zip(*(_read(part, inputs) for part in (separate, merged, plain)), strict=True)
    size = max(1.0, float(outputs[0].abs().max()))
    return IdentityReport(
        "b6",
        MERGED_MATRICES.title,
        "W^QK[j1,j2] = Σ_i W^Q[i,j1] W^K[i,j2] (per head), times 1/√I, gives the same attention without a key matrix.",
        sizes.to_dict(),
        (
            residual("outputs, merged − separate, largest entry", gap(outputs[1], outputs[0]) / size),
            residual("weights, merged − separate, largest entry", gap(weights[1], weights[0])),
            *_heads_differ(weights[1], weights[2]),
        ),
        ("form", "query–key parameters a head", "kept for each token", "furthest heads"),
        (
            ("separate", 2 * sizes.I * sizes.J, f"{sizes.H * sizes.I} (keys)", spread_of_heads(weights[0])),
            ("merged", sizes.J**2, f"{sizes.J} (the input itself)", spread_of_heads(weights[1])),
            ("plain inner product", 0, f"{sizes.J} (the input itself)", spread_of_heads(weights[2])),
        ),
        ("Furthest heads: the largest difference between two heads' weights for the same pair of tokens.",),
    )


def merged_weight(query: Float[Tensor, "I J"], key: Float[Tensor, "I J"]) -> Float[Tensor, "J J"]:
    """What takes an input to the vector that meets the other inputs: (W_Qᵀ W_K)ᵀ, for maps written W x."""
    return (query.T @ key).T


def spread_of_heads(weights: Float[Tensor, "heads N N"]) -> float:
    """The largest difference between two heads' weights for the same pair of tokens."""
    return float((weights.amax(0) - weights.amin(0)).max())


def _parts(sizes: MergedSizes) -> tuple[Attention, Attention, Attention]:
    """The same attention with separate matrices, with merged ones, and with the identity in their place."""
    H, I, J = sizes.H, sizes.I, sizes.J  # noqa: E741
    words = {"width": J, "heads": H, "attention_width": H * I, "causal": False, "bias": False}
    separate = filled(lambda: Attention(AttentionShape(**words)), sizes.seed)
    with in_float64():
        merged, plain = (Attention(AttentionShape(**words, key_query="merged")) for _ in range(2))
    query, key, value = separate.query_key_value.weight.detach().split(H * I)
    pairs = zip(query.split(I), key.split(I), strict=True)
    with torch.no_grad():
        merged.get_parameter("query_value.weight").copy_(torch.cat([*(merged_weight(*pair) for pair in pairs), value]))
        plain.get_parameter("query_value.weight").copy_(torch.cat([*[torch.eye(J, dtype=value.dtype)] * H, value]))
        for part in (merged, plain):
            part.output.weight.copy_(separate.output.weight)
    return separate, merged, plain


def _read(part: Attention, inputs: Tensor) -> tuple[Float[Tensor, "N J"], Float[Tensor, "heads N N"]]:
    with torch.no_grad(), tap(part) as records:
        outputs = part(inputs)[0][0]
    return outputs, records[0].weights()[0]


def _heads_differ(merged: Tensor, plain: Tensor) -> list[Finding]:
    if len(merged) < 2:
        return []
    return [
        residual("merged, heads differ: furthest two", spread_of_heads(merged), VISIBLE, different=True),
        residual("a plain inner product in its place, heads are one: furthest two", spread_of_heads(plain)),
    ]


MERGED_MATRICES = Identity("b6", ("merged", "query-key"), "One merged query–key matrix a head", MergedSizes, run_merged)


# Problem B7: a merged query–key matrix has J² parameters a head against 2IJ; equal at I = J/2.


INWARD = "query"  # the maps of queries and keys bear it in their names; what else there is serves values and outputs


class BudgetSizes(Spec):
    """Of which widths."""

    J: int = Field(default=64, ge=2, le=4096)
    """Width of the inputs."""
    I: int = Field(default=16, ge=1, le=4096)  # noqa: E741 - the source's letter
    """Width of a head's queries and keys."""


def separate(J: int, I: int) -> Attention:  # noqa: E741
    """One head with its query and its key matrix."""
    return Attention(AttentionShape(J, 1, I, value_output="merged", bias=False))


def merged(J: int, I: int) -> Attention:  # noqa: E741
    """One head with one query–key matrix."""
    return Attention(AttentionShape(J, 1, I, key_query="merged", value_output="merged", bias=False))


def query_key_parameters(factory: object, sizes: BudgetSizes) -> Polynomial:
    """The parameters of queries and keys as a formula, read off the running module."""
    account = count(factory_subject(factory, {"J": sizes.J, "I": sizes.I}), ["parameters"])
    return total(part.whole for part in account.quantities["parameters"].parts if INWARD in part.path)


def run_budget(sizes: BudgetSizes) -> IdentityReport:
    """Read both formulas off our attention, and find where they meet."""
    apart, joined = (query_key_parameters(factory, sizes) for factory in (separate, merged))
    J, I = sizes.J, sizes.I  # noqa: E741
    order = ("I", "J")
    widths = sorted({1, max(1, J // 8), max(1, J // 4), J // 2, (J + 1) // 2, I, 3 * J // 4, J})
    return IdentityReport(
        "b7",
        MERGED_PARAMETERS.title,
        "A merged query–key matrix has J² parameters a head, separate ones 2IJ; equal at I = J/2.",
        sizes.to_dict(),
        (
            _count(f"separate, {write(apart, order, 'unicode')} at I = {I}, J = {J}", apart, I, J, 2 * I * J),
            _count(f"merged, {write(joined, order, 'unicode')} at J = {J}", joined, I, J, J**2),
            Finding("formulas of the module − 2IJ and J²: terms left", _terms_left(apart, joined), 0, 0.0, "exact"),
            _meeting(apart, joined, J),
        ),
        ("I", "separate, 2IJ", "merged, J²", "merged / separate"),
        tuple((width, 2 * width * J, J**2, J / (2 * width)) for width in widths),
        ("Usual heads are narrow (I = J/h), so that merging costs h/2 times as many; at I > J/2 it saves some.",),
        plot=_plot(J),
    )


def _count(says: str, formula: Polynomial, I: int, J: int, wanted: int) -> Finding:  # noqa: E741
    return Finding(says, int(formula.at({"I": I, "J": J})), wanted, 0.0, "a count")


def _terms_left(apart: Polynomial, joined: Polynomial) -> int:
    I, J = symbol("I"), symbol("J")  # noqa: E741
    return len((apart - 2 * I * J).terms) + len((joined - J**2).terms)


def _meeting(apart: Polynomial, joined: Polynomial, J: int) -> Finding:
    """At I = J/2, a fraction where J is odd: no head is that wide, but the formulas meet there all the same."""
    half = Fraction(J, 2)
    between = f" (J is odd: between I = {J // 2} and I = {J // 2 + 1})" if J % 2 else ""
    gap = (joined - apart).at({"I": half, "J": J})
    return Finding(f"at I = J/2 = {J / 2:g}{between}, merged − separate", float(gap), 0.0, 0.0, "exact")


def _plot(J: int) -> Plot:
    widths = tuple(float(width) for width in sorted({max(1, J * step // 16) for step in range(1, 17)}))
    apart = Curve("separate, 2IJ", widths, tuple(2 * width * J for width in widths))
    joined = Curve("merged, J²", widths, tuple(float(J**2) for _ in widths), dashed=True)
    caption = f"Query–key parameters of one head at J = {J}; the two meet at I = J/2 = {J / 2:g}."
    return Plot("width I of a head", "parameters", (apart, joined), rule=J / 2, caption=caption)


MERGED_PARAMETERS = Identity(
    "b7", ("parameters", "merged-parameters"), "Parameters of a merged query–key matrix", BudgetSizes, run_budget
)


# Problem C6: self-attention on orthogonal inputs does *not* return its inputs; it does so in the limit of large
# norms.
#
# With N orthogonal inputs of norm r and s = r² (or r²/√D if scaled), every score is s on the diagonal and 0
# elsewhere.
# exp(0) is 1, not 0: each output is y_i = (e^s x_i + Σ_{j≠i} x_j) / (e^s + N − 1), and therefore
# ‖y_i − x_i‖ / ‖x_i‖ = √(N(N−1)) / (e^s + N − 1), which is 0 for no norm and tends to 0 as the norm grows.


STEPS = 25
CLAIMS = {
    "equality": "Self-attention on orthogonal inputs returns its inputs.",
    "limit": "Self-attention on orthogonal inputs returns its inputs in the limit of large norms.",
}
LARGEST_SCORE = 30.0  # beyond it float64 cannot tell the output from the input


class OrthogonalSizes(Spec):
    """How many inputs, how wide, up to which norm."""

    N: int = Field(default=8, ge=2, le=2000)
    """Number of inputs."""
    D: int = Field(default=16, ge=2, le=2000)
    """Their width; there are no more than D orthogonal ones."""
    norm: float = Field(default=1.0, gt=0, le=1e6)
    """The norm r at which the equality is tried."""
    scaled: bool = False
    """Whether scores are divided by √D; the source does not."""
    says: Literal["equality", "limit"] = "equality"
    """What is claimed: that it returns its inputs, or that it does so in the limit of large norms."""
    seed: int = Field(default=1, ge=0)
    """Fixes the directions."""

    @model_validator(mode="after")
    def _room_for_all(self) -> "OrthogonalSizes":
        if self.N > self.D:
            raise ValueError(f"N = {self.N}: in width D = {self.D} there are at most {self.D} orthogonal inputs.")
        return self


def orthogonal(N: int, D: int, norm: float, seed: int) -> Float[Tensor, "N D"]:
    """N orthogonal vectors of one norm, in directions drawn at random."""
    return torch.linalg.qr(drawn(D, N, seed=seed)).Q.T * norm


def self_attention(inputs: Float[Tensor, "N D"], scale: float) -> Float[Tensor, "N D"]:
    """softmax(XXᵀ·scale)X by the kernel that every model here runs."""
    one = inputs[None]
    return functional.scaled_dot_product_attention(one, one, one, scale=scale)[0]


def relative_error(N: int, score: float) -> float:
    """√(N(N−1)) / (e^s + N − 1), the distance of each output from its input as a share of the norm."""
    return math.sqrt(N * (N - 1)) * math.exp(-score) / (1 + (N - 1) * math.exp(-score))


def measured_error(sizes: OrthogonalSizes, norm: float) -> float:
    """The same, measured on the running kernel."""
    inputs = orthogonal(sizes.N, sizes.D, norm, sizes.seed)
    outputs = self_attention(inputs, _scale(sizes))
    return float(((outputs - inputs).norm(dim=1) / norm).max())


def run_orthogonal(sizes: OrthogonalSizes) -> IdentityReport:
    """Measure the error against the norm, beside the exact formula and its limit."""
    top = math.sqrt(LARGEST_SCORE / _scale(sizes))
    norms = [top * (step + 1) / STEPS for step in range(STEPS)]
    rows = [_orthogonal_row(sizes, norm) for norm in sorted({*norms[:: STEPS // 8], sizes.norm})]
    return IdentityReport(
        "c6",
        ORTHOGONAL_INPUTS.title,
        CLAIMS[sizes.says],
        sizes.to_dict(),
        _findings(sizes, norms),
        ("norm r", "score s", "weight on itself", "error measured", "error by formula", "limit √(N(N−1))·e^(−s)"),
        tuple(rows),
        ("Error: ‖y_i − x_i‖ / ‖x_i‖. The slip: the off-diagonal scores are 0, and exp(0) was taken for 0; it is 1.",),
        "y_i = (e^s x_i + Σ_(j≠i) x_j) / (e^s + N − 1) with s = r²" + ("/√D" if sizes.scaled else "") + "; "
        "the error is √(N(N−1)) / (e^s + N − 1): never 0, and 0 only in the limit of large norms.",
        _orthogonal_plot(sizes, norms),
        (_claim(sizes, norms),),
    )


def _claim(sizes: OrthogonalSizes, norms: list[float]) -> Finding:
    """The equality as the source claims it, for every norm; or in the limit, at the largest of them."""
    if sizes.says == "limit":
        last = measured_error(sizes, norms[-1])
        return residual(f"claimed: error 0 in the limit; at the largest norm, r = {norms[-1]:.3g}", last, 20 * EXACT)
    worst = max(measured_error(sizes, norm) for norm in (*norms, sizes.norm))
    return residual(f"claimed: error 0 at every norm; largest over {len(norms) + 1} norms", worst)


def _findings(sizes: OrthogonalSizes, norms: list[float]) -> tuple[Finding, ...]:
    inputs = orthogonal(sizes.N, sizes.D, sizes.norm, sizes.seed)
    scale = _scale(sizes)
    score = sizes.norm**2 * scale
    others = inputs.sum(0, keepdim=True) - inputs
    exact = (inputs + math.exp(-score) * others) / (1 + (sizes.N - 1) * math.exp(-score))
    formula = float((self_attention(inputs, scale) - exact).abs().max() / sizes.norm)
    worst = max(abs(measured_error(sizes, norm) - relative_error(sizes.N, norm**2 * scale)) for norm in norms)
    slip = torch.eye(sizes.N, dtype=torch.float64) @ inputs - inputs
    return (
        _claimed(sizes.norm, measured_error(sizes, sizes.norm), relative_error(sizes.N, score)),
        residual("outputs − the formula below, largest entry / r", formula),
        residual(f"measured error − formula, largest over {len(norms)} norms", worst),
        residual("with 0 in place of exp(0) the inputs would come back: largest difference", float(slip.abs().max())),
    )


def _claimed(norm: float, error: float, predicted: float) -> Finding:
    """The equality fails, unless the norm is so large that float64 cannot tell any more."""
    if predicted > 10 * EXACT:
        return residual(f"the source's equality fails: error at r = {norm:g}", error, different=True)
    return residual(f"at r = {norm:g} float64 cannot tell the limit from equality: error", error, 20 * EXACT)


def _orthogonal_row(sizes: OrthogonalSizes, norm: float) -> tuple[float, ...]:
    score = norm**2 * _scale(sizes)
    itself = 1 / (1 + (sizes.N - 1) * math.exp(-score))
    limit = math.sqrt(sizes.N * (sizes.N - 1)) * math.exp(-score)
    return norm, score, itself, measured_error(sizes, norm), relative_error(sizes.N, score), limit


def _orthogonal_plot(sizes: OrthogonalSizes, norms: list[float]) -> Plot:
    x = tuple(norms)
    scores = [norm**2 * _scale(sizes) for norm in norms]
    root = math.sqrt(sizes.N * (sizes.N - 1))
    measured = Curve("error measured", x, tuple(measured_error(sizes, norm) for norm in norms), dots=True)
    formula = Curve("error by formula", x, tuple(relative_error(sizes.N, score) for score in scores))
    limit = Curve("limit √(N(N−1))·exp(−s)", x, tuple(root * math.exp(-score) for score in scores), dashed=True)
    caption = (
        f"How far the outputs lie from the inputs, against the norm of the inputs (N = {sizes.N}, D = {sizes.D}). The "
        "source's equality would be 0 throughout; it is approached, never reached."
    )
    return Plot("norm r of the inputs", "‖y − x‖ / ‖x‖", (formula, measured, limit), log_y=True, caption=caption)


def _scale(sizes: OrthogonalSizes) -> float:
    return sizes.D**-0.5 if sizes.scaled else 1.0


ORTHOGONAL_INPUTS = Identity(
    "c6", ("orthogonal",), "Self-attention on orthogonal inputs", OrthogonalSizes, run_orthogonal
)


# Problem C8: multi-head attention as a sum over heads, with one matrix a head from the inputs to the outputs.
#
# Y = Σ_h softmax(Q_h K_hᵀ/√D_k) X W^(h) with W^(h) = W_h^(v) W_h^(o). Where the maps have biases, each row also gets
# b^(v) W^(o) + b^(o), since the weights of a row sum to 1.


class HeadsSizes(Spec):
    """How many inputs, how wide, how many heads."""

    N: int = Field(default=10, ge=1, le=2000)
    """Number of inputs."""
    D: int = Field(default=32, ge=1, le=2048)
    """Their width."""
    H: int = Field(default=4, ge=1)
    """Number of heads; each is D/H wide."""
    bias: bool = False
    """Whether the four maps have biases."""
    seed: int = Field(default=1, ge=0)
    """Fixes inputs and weights."""

    @model_validator(mode="after")
    def _heads_divide(self) -> "HeadsSizes":
        if self.D % self.H:
            raise ValueError(f"H = {self.H} does not divide D = {self.D}.")
        return self


def run_heads(sizes: HeadsSizes) -> IdentityReport:
    """Compare PyTorch's multi-head attention with the sum over heads."""
    inputs, layer = drawn(sizes.N, sizes.D, seed=sizes.seed), _layer(sizes)
    with torch.no_grad():
        theirs = layer(*[inputs[None]] * 3, need_weights=False)[0][0]
        summed = sum_over_heads(layer, inputs)
        parts = torch.stack([head_output(layer, inputs, head) for head in range(sizes.H)])
        ours = () if sizes.bias else _ours(layer, inputs)
    size = max(1.0, float(theirs.abs().max()))
    return IdentityReport(
        "c8",
        SUM_OVER_HEADS.title,
        "Y = Σ_h softmax(Q_h K_hᵀ/√D_k) X W^(h) with W^(h) = W_h^(v) W_h^(o).",
        sizes.to_dict(),
        (
            residual("torch.nn.MultiheadAttention − the sum over heads, largest entry", gap(theirs, summed) / size),
            *(
                residual(
                    f"lemma.layers.attention.Attention, value–output {name} − the sum, largest entry",
                    gap(one, summed) / size,
                )
                for name, one in zip(("separate", "merged"), ours, strict=False)
            ),
            _rank(layer, sizes),
        ),
        ("head", "‖W^(h)‖", "share of ‖Y‖² if alone"),
        tuple(_heads_row(layer, parts, head) for head in range(sizes.H)),
        (
            f"W^(h) is {sizes.D} × {sizes.D}, yet of rank D/H = {sizes.D // sizes.H} at most: merged it has D² numbers "
            "a head, apart 2D²/H.",
            *(["With biases every row also gets b^(v)W^(o) + b^(o), since weights sum to 1."] if sizes.bias else []),
        ),
    )


def sum_over_heads(layer: nn.MultiheadAttention, inputs: Float[Tensor, "N D"]) -> Float[Tensor, "N D"]:
    """Σ_h softmax(Q_h K_hᵀ/√D_k) X W^(h), and what the biases add."""
    heads = torch.stack([head_output(layer, inputs, head) for head in range(layer.num_heads)])
    return heads.sum(0) + constant(layer)


def head_output(layer: nn.MultiheadAttention, inputs: Float[Tensor, "N D"], head: int) -> Float[Tensor, "N D"]:
    """One term of the sum: softmax(Q_h K_hᵀ/√D_k) X W^(h)."""
    rows = slice(head * layer.head_dim, (head + 1) * layer.head_dim)
    query, key, _ = layer.in_proj_weight.chunk(3)
    shifts = layer.in_proj_bias.chunk(3) if layer.in_proj_bias is not None else (query.new_zeros(len(query)),) * 3
    queries, keys = inputs @ query[rows].T + shifts[0][rows], inputs @ key[rows].T + shifts[1][rows]
    return (queries @ keys.T * layer.head_dim**-0.5).softmax(-1) @ inputs @ head_matrix(layer, head)


def head_matrix(layer: nn.MultiheadAttention, head: int) -> Float[Tensor, "D D"]:
    """W^(h) = W_h^(v) W_h^(o); PyTorch keeps both transposed."""
    rows = slice(head * layer.head_dim, (head + 1) * layer.head_dim)
    value = layer.in_proj_weight.chunk(3)[2][rows]
    return value.T @ layer.out_proj.weight[:, rows].T


def constant(layer: nn.MultiheadAttention) -> Tensor | float:
    """What the biases of values and output add to every row."""
    if layer.in_proj_bias is None:
        return 0.0
    return layer.in_proj_bias.chunk(3)[2] @ layer.out_proj.weight.T + layer.out_proj.bias


def _layer(sizes: HeadsSizes) -> nn.MultiheadAttention:
    return filled(lambda: nn.MultiheadAttention(sizes.D, sizes.H, bias=sizes.bias, batch_first=True), sizes.seed)


def _ours(layer: nn.MultiheadAttention, inputs: Float[Tensor, "N D"]) -> tuple[Float[Tensor, "N D"], ...]:
    """Our own attention with the same weights: value and output maps apart, and merged into W^(h)."""
    shape = AttentionShape(layer.embed_dim, layer.num_heads, causal=False, bias=False)
    with in_float64():
        apart, merged = Attention(shape), Attention(replace(shape, value_output="merged"))
    apart.query_key_value.weight.copy_(layer.in_proj_weight)
    apart.output.weight.copy_(layer.out_proj.weight)
    merged.get_parameter("query_key.weight").copy_(layer.in_proj_weight[: 2 * layer.embed_dim])
    matrices = [head_matrix(layer, head) for head in range(layer.num_heads)]
    merged.output.weight.copy_(torch.cat(matrices).T)
    return apart(inputs[None])[0][0], merged(inputs[None])[0][0]


def _rank(layer: nn.MultiheadAttention, sizes: HeadsSizes) -> Finding:
    ranks = [int(torch.linalg.matrix_rank(head_matrix(layer, head).detach())) for head in range(sizes.H)]
    return Finding("largest rank of a W^(h)", max(ranks), sizes.D // sizes.H, 0.0, "a count")


def _heads_row(layer: nn.MultiheadAttention, parts: Float[Tensor, "H N D"], head: int) -> tuple[float | int, ...]:
    share = float(parts[head].square().sum() / parts.sum(0).square().sum())
    return head, float(head_matrix(layer, head).detach().norm()), share


SUM_OVER_HEADS = Identity(
    "c8", ("sum-over-heads", "heads"), "Multi-head attention as a sum over heads", HeadsSizes, run_heads
)


# Problem C10: attention's scores as a constrained dense layer of the products x_i x_j.
#
# QKᵀ/√D_k = X A Xᵀ with A = W_Q W_Kᵀ/√D_k is linear in the products of entries of X, so that a dense map M of shape
# (ND, ND, N, N) gives it: M[(i,a), (j,b), n, m] = A[a,b] if i = n and j = m, else 0.


LARGEST = 2**26  # entries of M: half a gigabyte


class DenseSizes(Spec):
    """How many inputs, how wide; M has N⁴D² entries."""

    N: int = Field(default=6, ge=1)
    """Number of inputs."""
    D: int = Field(default=4, ge=1)
    """Their width."""
    D_k: int = Field(default=3, ge=1, le=4096)
    """Width of queries and keys."""
    seed: int = Field(default=1, ge=0)
    """Fixes inputs and weights."""

    @model_validator(mode="after")
    def _small_enough(self) -> "DenseSizes":
        if (entries := self.N**4 * self.D**2) > LARGEST:
            raise ValueError(
                f"N = {self.N}, D = {self.D}: M would have N⁴D² = {entries:,} entries, {8 * entries:,} bytes. "
                f"At most {LARGEST:,} are built; that N⁴D² grows so fast is the point."
            )
        return self


def dense_map(A: Float[Tensor, "D D"], N: int) -> Float[Tensor, "ND ND N N"]:
    """M[(i,a), (j,b), n, m] = A[a,b] δ_in δ_jm."""
    D, eye = len(A), torch.eye(N, dtype=A.dtype)
    return torch.einsum("ab,in,jm->iajbnm", A, eye, eye).reshape(N * D, N * D, N, N)


def dense_scores(M: Float[Tensor, "ND ND N N"], inputs: Float[Tensor, "N D"]) -> Float[Tensor, "N N"]:
    """Apply M to all products of two entries of the inputs, as one dense layer."""
    flat = inputs.flatten()
    N = len(inputs)
    return (torch.outer(flat, flat).flatten() @ M.flatten(0, 1).flatten(1)).view(N, N)


def run_dense(sizes: DenseSizes) -> IdentityReport:
    """Build M, compare its scores with attention's, and count its entries."""
    N, D = sizes.N, sizes.D
    inputs, query, key = drawn(N, D, seed=sizes.seed), *drawn(2, D, sizes.D_k, seed=sizes.seed + 1)
    M = dense_map(query @ key.T * sizes.D_k**-0.5, N)
    mine, scores = dense_scores(M, inputs), (inputs @ query) @ (inputs @ key).T * sizes.D_k**-0.5
    queries, keys, values = (inputs @ query)[None], (inputs @ key)[None], inputs[None]
    fused = functional.scaled_dot_product_attention(queries, keys, values)[0]
    findings = (
        residual("M·(x ⊗ x) − QKᵀ/√D_k, largest entry", gap(mine, scores) / max(1.0, float(scores.abs().max()))),
        residual(
            "softmax(M·(x ⊗ x))X − PyTorch's fused attention, largest entry", gap(mine.softmax(-1) @ inputs, fused)
        ),
        Finding("entries of M", M.numel(), N**4 * D**2, 0.0, "a count"),
        Finding("entries of M that are not 0", int(M.count_nonzero()), N**2 * D**2, 0.0, "a count"),
    )
    return IdentityReport(
        "c10",
        DENSE_LAYER.title,
        "QKᵀ/√D_k = X A Xᵀ is linear in the products x_i x_j: a dense map M of shape (ND, ND, N, N) expresses it, with "
        "O(N⁴D²) entries.",
        sizes.to_dict(),
        findings,
        ("N", "D", "entries of M, N⁴D²", "bytes in float32", "not 0, N²D²", "free, D²"),
        tuple(_dense_row(n, d) for n, d in ((N, D), (2 * N, D), (N, 2 * D), (64, 64), (1024, 512), (2048, 1024))),
        (
            "Twice N makes 16 times the entries, twice D 4 times. Of them D² are free: attention is that dense layer "
            "with all other entries fixed at 0 and the rest shared between places.",
        ),
    )


def _dense_row(N: int, D: int) -> tuple[int, ...]:
    entries = N**4 * D**2
    return N, D, entries, 4 * entries, N**2 * D**2, D**2


DENSE_LAYER = Identity("c10", ("dense", "dense-layer"), "Attention as a constrained dense layer", DenseSizes, run_dense)


# Problem C11: self-attention is permutation-equivariant, unless it has positions or a causal mask.


Map = Callable[[Float[Tensor, "N D"]], Float[Tensor, "N D"]]


class PermutationSizes(Spec):
    """How many inputs, how wide, how many heads."""

    N: int = Field(default=12, ge=3, le=2000)
    """Number of inputs."""
    D: int = Field(default=32, ge=1, le=2048)
    """Their width."""
    H: int = Field(default=4, ge=1)
    """Number of heads; each is D/H wide."""
    seed: int = Field(default=1, ge=0)
    """Fixes inputs, weights and the permutation."""

    @model_validator(mode="after")
    def _heads_divide(self) -> "PermutationSizes":
        if self.D % self.H:
            raise ValueError(f"H = {self.H} does not divide D = {self.D}.")
        return self


def run_permutation(sizes: PermutationSizes) -> IdentityReport:
    """Permute the inputs of PyTorch's and of our own attention: their outputs are permuted alike, or are not."""
    inputs = drawn(sizes.N, sizes.D, seed=sizes.seed)
    order = permutation(sizes.N, sizes.seed)
    cases = _cases(sizes)
    gaps = {name: unfaithful(attend, inputs, order) for name, (attend, _) in cases.items()}
    return IdentityReport(
        "c11",
        PERMUTATION.title,
        "Self-attention without positions is permutation-equivariant: f(PX) = P f(X).",
        sizes.to_dict(),
        tuple(_permutation_finding(name, gaps[name], equivariant) for name, (_, equivariant) in cases.items()),
        ("case", "largest entry of f(PX) − P f(X)"),
        tuple(gaps.items()),
        (f"P: {' '.join(map(str, order.tolist()[:16]))}{' …' if sizes.N > 16 else ''}",),
    )


def permutation(N: int, seed: int) -> Tensor:
    """A permutation that keeps not all distances: neither the identity nor the reversal."""
    order = torch.randperm(N, generator=torch.Generator().manual_seed(seed))
    return order.roll(1) if bool((order.diff().abs() == 1).all()) else order


def unfaithful(attend: Map, inputs: Float[Tensor, "N D"], order: Tensor) -> float:
    """How far the outputs of permuted inputs lie from the permuted outputs."""
    with torch.no_grad():
        return gap(attend(inputs[order]), attend(inputs)[order])


def _permutation_finding(name: str, size: float, equivariant: bool) -> Finding:
    return residual(f"{name}: f(PX) − P f(X)", size, EXACT if equivariant else VISIBLE, different=not equivariant)


def _cases(sizes: PermutationSizes) -> dict[str, tuple[Map, bool]]:
    """What is tried, and whether it is equivariant."""
    shape = AttentionShape(sizes.D, sizes.H, causal=False)
    plain = filled(lambda: Attention(shape), sizes.seed)
    theirs = filled(lambda: nn.MultiheadAttention(sizes.D, sizes.H, batch_first=True), sizes.seed)
    table = sinusoids(sizes.N, sizes.D, 10_000.0).double()
    others = {"causal mask": replace(shape, causal=True), "ALiBi": replace(shape, positions=Alibi())}
    if shape.head_width % 2 == 0:
        others["rotary positions"] = replace(shape, positions=Rotary())
    return {
        "no positions, no mask": (lambda x: plain(x[None])[0][0], True),
        "torch.nn.MultiheadAttention": (lambda x: theirs(*[x[None]] * 3, need_weights=False)[0][0], True),
        "sinusoidal positions added": (lambda x: plain(x[None] + table)[0][0], False),
        **{name: (_running(one, sizes.seed), False) for name, one in others.items()},
    }


def _running(shape: AttentionShape, seed: int) -> Map:
    part = filled(lambda: Attention(shape), seed)
    return lambda x: part(x[None])[0][0]


PERMUTATION = Identity(
    "c11",
    ("permutation", "equivariance"),
    "Self-attention is permutation-equivariant",
    PermutationSizes,
    run_permutation,
)


# Problem D3: one head against many, without an output map: the same parameters and operations, more softmaxes.


class HeadCostsSizes(Spec):
    """How wide, how many heads, how long."""

    d: int = Field(default=64, ge=2, le=4096)
    """Width."""
    h: int = Field(default=8, ge=2, le=64)
    """Heads of the one that has several."""
    n: int = Field(default=32, ge=2, le=4096)
    """Tokens."""

    @model_validator(mode="after")
    def _heads_divide(self) -> "HeadCostsSizes":
        if self.d % self.h:
            raise ValueError(f"h = {self.h} does not divide d = {self.d}.")
        return self


def one_head(d: int) -> Attention:
    """One head of width d."""
    return Attention(AttentionShape(d, 1, value_output="none", bias=False, causal=False))


def many_heads(d: int, h: int) -> Attention:
    """Heads of width d/h, side by side."""
    return Attention(AttentionShape(d, h, value_output="none", bias=False, causal=False))


def _tokens(d: int, n: int = 32) -> Tensor:
    return torch.zeros(1, n, d)


one_head.inputs = _tokens  # pyright: ignore[reportFunctionMemberAccess]
many_heads.inputs = _tokens  # pyright: ignore[reportFunctionMemberAccess]


def run_head_costs(sizes: HeadCostsSizes) -> IdentityReport:
    """Read parameters and operations of both off our attention, and count the softmaxes of each."""
    accounts = {
        "single": _account(one_head, {"d": sizes.d, "n": sizes.n}),
        "multi": _account(many_heads, {"d": sizes.d, "h": sizes.h, "n": sizes.n}),
    }
    d, n = symbol("d"), symbol("n")
    products = 2 * (3 * n * d**2 + 2 * n**2 * d)
    rows = tuple(_head_costs_row(name, account, sizes) for name, account in accounts.items())
    return IdentityReport(
        "d3",
        HEAD_COSTS.title,
        "Single and multi-head attention both have 3d² parameters and take O(n²d + nd²) operations; multi-head pays h "
        "softmaxes a query.",
        sizes.to_dict(),
        (
            *(_terms(f"{name}: parameters − 3d²", one, "parameters", 3 * d**2) for name, one in accounts.items()),
            *(_terms(f"{name}: operations − 2(3nd² + 2n²d)", one, "flops", products) for name, one in accounts.items()),
            Finding(
                "softmaxes: multi / single", _softmaxes(sizes, sizes.h) / _softmaxes(sizes, 1), sizes.h, 0, "a count"
            ),
        ),
        ("attention", "parameters", "operations", "softmaxes"),
        rows,
        ("Operations: those of matrix products, a multiply–add counted as two. Time: lemma study heads.",),
    )


def _account(factory: object, sizes: dict[str, int]) -> Account:
    return count(factory_subject(factory, sizes), ["parameters", "flops"])


def _terms(says: str, account: Account, quantity: str, wanted: object) -> Finding:
    left = account.quantities[quantity].polynomial - wanted  # pyright: ignore[reportOperatorIssue]
    return Finding(f"{says}: terms left", len(left.terms), 0, 0, "a formula")


def _head_costs_row(name: str, account: Account, sizes: HeadCostsSizes) -> tuple[str | int, ...]:
    numbers = [int(account.quantities[one].polynomial.at(account.symbols)) for one in ("parameters", "flops")]
    return name, *numbers, _softmaxes(sizes, 1 if name == "single" else sizes.h)


def _softmaxes(sizes: HeadCostsSizes, heads: int) -> int:
    """How many rows of weights there are in one pass."""
    part = many_heads(sizes.d, heads)
    with torch.no_grad(), overhear() as records:
        part(_tokens(sizes.d, sizes.n))
    return sum(record.weights().shape[:-1].numel() for record in records)


HEAD_COSTS = Identity(
    "d3", ("single-multi", "heads-cost"), "Single against multi-head attention", HeadCostsSizes, run_head_costs
)
