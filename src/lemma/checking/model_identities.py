"""Identities about models: B8, C1, D2, D4, E3."""

import math
from collections.abc import Mapping
from typing import Literal

import torch
from jaxtyping import Float, Int
from pydantic import Field, model_validator
from torch import Tensor, nn

from lemma.checking.identity import EXACT, Finding, Identity, IdentityReport, drawn, filled, gap, in_float64, residual
from lemma.layers.graph import Normalisation, adjacency_of
from lemma.models.build import build
from lemma.spec.base import Spec
from lemma.spec.models import Decoder, Encoder, FeedForward, Lstm, ModelSpec
from lemma.tasks.language import causal
from lemma.tasks.masked import masked, next_sentence

# Problem B8: at temperature 0 a model whose memory is its last N−1 tokens must come back to a state, and then loops.
#
# Each token follows from the N−1 before it. There are V^(N−1) such states, so that within so many steps one comes
# back;
# all that followed it follows again, for ever.


MODELS, ROUNDS, LARGEST = 20, 10, 4096
SHOWN = 8


class Sizes(Spec):
    """Of which n-gram models."""

    V: int = Field(default=12, ge=2, le=64)
    """Words of the vocabulary."""
    N: int = Field(default=3, ge=2, le=6)
    """Words of an n-gram; 3 is the trigram model."""
    seed: int = Field(default=1, ge=0)
    """Fixes the weights of all models."""

    @model_validator(mode="after")
    def _few_states(self) -> "Sizes":
        if (states := self.V ** (self.N - 1)) > LARGEST:
            raise ValueError(f"V = {self.V}, N = {self.N}: V^(N−1) = {states:,} states; at most {LARGEST:,} are tried.")
        return self


def run(sizes: Sizes) -> IdentityReport:
    """Decode twenty models with random weights greedily, and watch for the state that comes back."""
    bound = sizes.V ** (sizes.N - 1)
    loops = [_loop(sizes, number) for number in range(MODELS)]
    within = sum(onset + period <= bound for onset, period, _ in loops)
    broken = sum(differences for _, _, differences in loops)
    return IdentityReport(
        "b8",
        GREEDY_LOOPS.title,
        "A neural n-gram model decoded at temperature 0 repeats its last N−1 tokens, and from there loops for ever.",
        sizes.to_dict(),
        (
            Finding(
                f"of {MODELS} models, those that loop within V^(N−1) = {bound:,} steps", within, MODELS, 0, "a count"
            ),
            Finding(f"tokens that break a loop in {ROUNDS} more rounds of each", broken, 0, 0, "a count"),
        ),
        ("model", "onset", "period"),
        tuple((str(number + 1), onset, period) for number, (onset, period, _) in enumerate(loops[:SHOWN])),
        ("The loop of a trigram model starts where a bigram comes back; its period is the distance between the two.",),
    )


def _loop(sizes: Sizes, number: int) -> tuple[int, int, int]:
    """Where the loop of a model begins, how long it is, and how many later tokens break it."""
    spec = FeedForward(vocabulary=sizes.V, width=6, hidden=12, context=sizes.N)
    model = filled(lambda: build(spec), sizes.seed + 1000 * number)
    _enliven(model)
    span, seen = sizes.N - 1, {}
    tokens = [0] * span
    while tuple(tokens[-span:]) not in seen:
        seen[tuple(tokens[-span:])] = len(tokens)
        tokens.append(_next(model, tokens[-span:]))
    onset, period = seen[tuple(tokens[-span:])] - span, len(tokens) - seen[tuple(tokens[-span:])]
    return onset, period, _differences(model, tokens, span, period)


def _enliven(model: nn.Module) -> None:
    """Weights so large that the text wanders before it loops."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(parameter.shape[-1] ** 0.5)


def _next(model: nn.Module, last: list[int]) -> int:
    with torch.no_grad():
        return int(model(torch.tensor([last]))[0][0, -1].argmax())


def _differences(model: nn.Module, tokens: list[int], span: int, period: int) -> int:
    """Let the model go on, and count the tokens that are not those of a period before."""
    tokens, wrong = list(tokens), 0
    for _ in range(min(ROUNDS * period, 200)):
        tokens.append(_next(model, tokens[-span:]))
        wrong += tokens[-1] != tokens[-1 - period]
    return wrong


GREEDY_LOOPS = Identity("b8", ("loops", "greedy"), "Greedy decoding of an n-gram model loops", Sizes, run)


# Problem C1: one LSTM step by its formulas, beside PyTorch's cell.
#
# Γ = σ(W[a; x] + b) for the gates u, f, o; c̃ = tanh(W_c[a; x] + b_c); c_t = Γ_f∗c_{t−1} + Γ_u∗c̃; a_t =
# Γ_o∗tanh(c_t);
# ŷ = softmax(W_y a_t + b_y).


GATES = "ufco"
"""The order in which PyTorch stacks them: input (here update), forget, cell (here the candidate), output."""


class LstmStepSizes(Spec):
    """How many units, inputs and classes."""

    D: int = Field(default=6, ge=1, le=1024)
    """Units."""
    d: int = Field(default=4, ge=1, le=1024)
    """Numbers of the input."""
    V: int = Field(default=5, ge=2, le=10_000)
    """Classes."""
    seed: int = Field(default=1, ge=0)
    """Fixes all numbers."""


def run_lstm_step(sizes: LstmStepSizes) -> IdentityReport:
    """One step by the formulas and by torch.nn.LSTMCell, from the same weights."""
    cell = filled(lambda: nn.LSTMCell(sizes.d, sizes.D), sizes.seed)
    output = filled(lambda: nn.Linear(sizes.D, sizes.V), sizes.seed + 50)
    x, a, c = (drawn(size, seed=sizes.seed + 90 + place) for place, size in enumerate((sizes.d, sizes.D, sizes.D)))
    with torch.no_grad():
        theirs, state = cell(x[None], (a[None], c[None]))
        chances = output(theirs).softmax(-1)[0]
        mine, mine_state = step(cell, x, a, c)
        scores = (output.weight @ mine + output.bias).exp()
    return IdentityReport(
        "c1",
        LSTM_STEP.title,
        "c_t = Γ_f∗c_{t−1} + Γ_u∗c̃, a_t = Γ_o∗tanh(c_t), ŷ = softmax(W_y a_t + b_y), with [a; x] stacked.",
        sizes.to_dict(),
        (
            residual("c_t − torch.nn.LSTMCell's, largest entry", gap(mine_state, state[0])),
            residual("a_t − torch.nn.LSTMCell's, largest entry", gap(mine, theirs[0])),
            residual("ŷ − softmax of the output layer, largest entry", gap(scores / scores.sum(), chances)),
        ),
    )


def step(
    cell: nn.LSTMCell, x: Float[Tensor, "d"], a: Float[Tensor, "D"], c: Float[Tensor, "D"]
) -> tuple[Float[Tensor, "D"], Float[Tensor, "D"]]:
    """a_t and c_t by the formulas, from the cell's weights taken apart gate by gate."""
    stacked = torch.cat([a, x])
    weights = torch.cat([cell.weight_hh, cell.weight_ih], dim=1).chunk(4)
    biases = (cell.bias_ih + cell.bias_hh).chunk(4)
    before = {gate: W @ stacked + b for gate, W, b in zip(GATES, weights, biases, strict=True)}
    gates = {gate: 1 / (1 + (-before[gate]).exp()) for gate in "ufo"}
    state = gates["f"] * c + gates["u"] * before["c"].tanh()
    return gates["o"] * state.tanh(), state


LSTM_STEP = Identity("c1", ("lstm", "lstm-step"), "One LSTM step by its formulas", LstmStepSizes, run_lstm_step)


# Problem D2: the cross-entropy of a text is the logarithm of its perplexity.
#
# Perplexity is the geometric mean of 1/p over the tokens, (Π 1/p_t)^(1/T); its logarithm is −(1/T) Σ log p_t.


class EntropySizes(Spec):
    """How many words, how long a text."""

    V: int = Field(default=50, ge=2, le=5000)
    """Words of the vocabulary."""
    T: int = Field(default=64, ge=2, le=500)
    """Tokens that are predicted."""
    seed: int = Field(default=1, ge=0)
    """Fixes the text and the weights."""


def run_entropy(sizes: EntropySizes) -> IdentityReport:
    """Predict one text by three models, and take the perplexity and the cross-entropy apart from each other."""
    text = torch.randint(sizes.V, (1, sizes.T + 1), generator=torch.Generator().manual_seed(sizes.seed))
    measured = {spec.family: _measure(spec, text, sizes.seed) for spec in _specs(sizes)}
    uniform = torch.zeros(1, sizes.T, sizes.V, dtype=torch.float64)
    findings = [
        residual(f"{name}: log of the geometric mean of 1/p − cross-entropy", abs(math.log(mean) - entropy))
        for name, (entropy, mean) in measured.items()
    ]
    ignorant = geometric_mean(uniform, text[:, 1:])
    return IdentityReport(
        "d2",
        CROSS_ENTROPY.title,
        "The cross-entropy of a text is the logarithm of its perplexity.",
        sizes.to_dict(),
        (
            *findings,
            Finding("a model that knows nothing: perplexity beside V", ignorant, sizes.V, sizes.V * 1e-12),
        ),
        ("model", "cross-entropy", "exp of it", "perplexity"),
        tuple((name, entropy, math.exp(entropy), mean) for name, (entropy, mean) in measured.items()),
        ("In nats; in bits, cross-entropy is the logarithm to base 2 of the same perplexity.",),
    )


def geometric_mean(logits: Float[Tensor, "1 T V"], targets: Tensor) -> float:
    """(Π 1/p_t)^(1/T), by products of probabilities: no logarithm is taken of any of them."""
    chances = logits[0].softmax(-1).gather(1, targets[0, :, None]).flatten()
    return float((1 / chances).pow(1 / len(chances)).prod())


def _specs(sizes: EntropySizes) -> list[ModelSpec]:
    decoder = Decoder(vocabulary=sizes.V, width=16, depth=1, heads=2, context=sizes.T)
    window = FeedForward(vocabulary=sizes.V, width=8, hidden=16, context=3)
    return [window, Lstm(vocabulary=sizes.V, width=8, hidden=16), decoder]


def _measure(spec: ModelSpec, text: Tensor, seed: int) -> tuple[float, float]:
    model = filled(lambda: build(spec), seed)
    with torch.no_grad():
        logits, _ = model(text[:, :-1])
    return float(causal(logits, text[:, 1:])), geometric_mean(logits, text[:, 1:])


CROSS_ENTROPY = Identity(
    "d2", ("perplexity", "cross-entropy"), "Cross-entropy is log perplexity", EntropySizes, run_entropy
)


# Problem E3: three tasks that plain text sets itself: the next token, a hidden token, what follows.


HIDDEN = 4  # every fourth place is hidden


class PretrainingSizes(Spec):
    """How many words, how long a text."""

    V: int = Field(default=30, ge=8, le=5000)
    """Words of the vocabulary."""
    T: int = Field(default=16, ge=4, le=200)
    """Tokens of a text."""
    seed: int = Field(default=1, ge=0)
    """Fixes texts and weights."""


def run_pretraining(sizes: PretrainingSizes) -> IdentityReport:
    """Each loss by the objective that trains, beside −log p of what the text itself says, token by token."""
    draws = torch.Generator().manual_seed(sizes.seed)
    text = torch.randint(sizes.V - 4, (1, sizes.T + 1), generator=draws)
    return IdentityReport(
        "e3",
        PRETRAINING.title,
        "Causal, masked and next-sentence pretraining need no labels: each predicts a part of the text from another.",
        sizes.to_dict(),
        (
            residual("causal − mean of −log p(next token), read one prefix at a time", _causal(sizes, text)),
            *_masked(sizes, text),
        ),
    )


def _causal(sizes: PretrainingSizes, text: Tensor) -> float:
    """The prefix alone is given for each prediction, so that nothing later can help."""
    model = filled(lambda: build(Lstm(vocabulary=sizes.V, width=8, hidden=12)), sizes.seed)
    with torch.no_grad():
        loss = float(causal(model(text[:, :-1])[0], text[:, 1:]))
        each = [
            -model(text[:, :place])[0][0, -1].log_softmax(-1)[text[0, place]].item() for place in range(1, sizes.T + 1)
        ]
    return abs(loss - sum(each) / len(each))


def _masked(sizes: PretrainingSizes, text: Tensor) -> tuple[Finding, ...]:
    spec = Encoder(vocabulary=sizes.V, width=16, depth=1, heads=2, context=sizes.T + 1, objective="both")
    model = filled(lambda: build(spec), sizes.seed)
    hidden = torch.arange(1, sizes.T + 1, HIDDEN)
    targets = torch.full_like(text, -1)
    targets[0, hidden], targets[0, 0] = text[0, hidden], 1
    with torch.no_grad():
        logits, follows = model(text), model.follows(text)
        other = _elsewhere(logits, hidden)
        losses = [masked(one, targets).loss for one in (logits, other)]
        chances = logits[0, hidden].log_softmax(-1).gather(1, text[0, hidden, None])
        second = float(next_sentence(follows, targets).loss + follows[0].log_softmax(-1)[1])
    return (
        residual("masked − mean of −log p over the hidden places", abs(float(losses[0] + chances.mean()))),
        residual(
            "masked: other logits at places that are not hidden change it by", float((losses[0] - losses[1]).abs())
        ),
        residual("next-sentence − (−log p(follows))", abs(second)),
    )


def _elsewhere(logits: Float[Tensor, "1 T V"], hidden: Tensor) -> Float[Tensor, "1 T V"]:
    """The logits with those at all other places turned round."""
    other = -logits
    other[0, hidden] = logits[0, hidden]
    return other


PRETRAINING = Identity("e3", ("pretraining",), "What plain text teaches by itself", PretrainingSizes, run_pretraining)


# Problem D4: the rows of Â = D̃^(−1/2) Ã D̃^(−1/2) do *not* sum to one, unless every connected part is regular.
#
# What holds on every graph: the spectral norm of Â is 1 (its eigenvector is √d̃), and the rows of D̃⁻¹Ã sum to one.


Square = Float[Tensor, "nodes nodes"]
POWERS = 8
NORM = 1e-10  # what rounding leaves of an eigenvalue of a matrix of some hundred rows
FORMULAS = {"symmetric": "Â = D̃^(−1/2) Ã D̃^(−1/2)", "rows": "D̃⁻¹Ã"}
NAMES: dict[Normalisation, str] = {"none": "Ã", "symmetric": "Â", "rows": "D̃⁻¹Ã"}


class ConvolutionSizes(Spec):
    """Of which graph."""

    graph: Literal["star", "path", "random", "cycle", "complete"] = "star"
    """Its kind; cycles and complete graphs are regular: all their nodes have the same degree."""
    matrix: Literal["symmetric", "rows"] = "symmetric"
    """Of which matrix the rows are claimed to sum to one: Â, or D̃⁻¹Ã."""
    nodes: int = Field(default=8, ge=2, le=500)
    """How many nodes."""
    edges: int = Field(default=12, ge=0)
    """How many edges a random graph has; the other kinds have theirs."""
    seed: int = Field(default=1, ge=0)
    """Fixes the random graph and the features."""

    @model_validator(mode="after")
    def _possible(self) -> "ConvolutionSizes":
        most = self.nodes * (self.nodes - 1) // 2
        if self.graph == "random" and self.edges > most:
            raise ValueError(f"edges = {self.edges}: {self.nodes} nodes have at most {most} edges.")
        if self.graph == "cycle" and self.nodes < 3:
            raise ValueError("nodes = 2: a cycle needs 3 nodes at least.")
        return self


def edges_of(sizes: ConvolutionSizes) -> Int[Tensor, "two edges"]:
    """The edges of the graph asked for."""
    nodes = torch.arange(sizes.nodes)
    if sizes.graph == "star":
        return torch.stack([torch.zeros_like(nodes[1:]), nodes[1:]])
    if sizes.graph == "path":
        return torch.stack([nodes[:-1], nodes[1:]])
    if sizes.graph == "cycle":
        return torch.stack([nodes, nodes.roll(-1)])
    pairs = torch.combinations(nodes).T
    if sizes.graph == "complete":
        return pairs
    order = torch.randperm(pairs.shape[1], generator=torch.Generator().manual_seed(sizes.seed))
    return pairs[:, order[: sizes.edges]]


def run_convolution(sizes: ConvolutionSizes) -> IdentityReport:
    """Build Ã, Â and D̃⁻¹Ã by our own convolution, and measure their rows and norms."""
    edges = edges_of(sizes)
    with in_float64():
        made: dict[Normalisation, Square] = {kind: adjacency_of(edges, sizes.nodes, kind).to_dense() for kind in NAMES}
    return IdentityReport(
        "d4",
        GRAPH_CONVOLUTION.title,
        f"The rows of {FORMULAS[sizes.matrix]} are normalised: each sums to one.",
        {**sizes.to_dict(), "edges": edges.shape[1]},
        _findings(made, edges, sizes),
        ("matrix", "lowest row sum", "highest row sum", "spectral norm", f"‖M^{POWERS} X‖ / ‖X‖"),
        tuple(_row(NAMES[kind], matrix, sizes) for kind, matrix in made.items()),
        _remarks(made["symmetric"], sizes),
        "the rows of Â sum to one only where every connected part of the graph is regular; those of D̃⁻¹Ã do on every "
        "graph. What holds of Â: its spectral norm is 1, so that repeated layers do not blow features up.",
        claimed=(
            residual(
                f"claimed: every row of {NAMES[sizes.matrix]} sums to 1; furthest sum − 1", furthest(made[sizes.matrix])
            ),
        ),
    )


def furthest(matrix: Square) -> float:
    """How far the row sum that is furthest from one lies from it."""
    return float((matrix.sum(1) - 1).abs().max())


def norm(matrix: Square) -> float:
    """The spectral norm: the largest singular value."""
    return float(torch.linalg.matrix_norm(matrix, 2))


def is_regular_in_parts(edges: Int[Tensor, "two edges"], nodes: int) -> bool:
    """Whether the nodes of each connected part have all the same degree: the two ends of every edge do."""
    degrees = torch.bincount(edges.flatten(), minlength=nodes)
    return bool((degrees[edges[0]] == degrees[edges[1]]).all())


def _findings(made: Mapping[Normalisation, Square], edges: Tensor, sizes: ConvolutionSizes) -> tuple[Finding, ...]:
    symmetric, regular = made["symmetric"], is_regular_in_parts(edges, sizes.nodes)
    sums_to_one = furthest(symmetric) <= EXACT
    return (
        Finding("spectral norm of Â", norm(symmetric), 1.0, NORM),
        residual("rows of D̃⁻¹Ã: furthest sum − 1", furthest(made["rows"])),
        Finding("rows of Â sum to one (1 = yes), beside: every part is regular", sums_to_one, regular, 0.0, "a count"),
        Finding("powers of Â up to 8 that make features longer", _longer(symmetric, sizes), 0, 0.0, "a count"),
    )


def _longer(matrix: Square, sizes: ConvolutionSizes) -> int:
    features, count = drawn(sizes.nodes, 3, seed=sizes.seed), 0
    for _ in range(POWERS):
        after = matrix @ features
        count += bool(after.norm() > features.norm() * (1 + NORM))
        features = after
    return count


def _row(name: str, matrix: Square, sizes: ConvolutionSizes) -> tuple[str | float, ...]:
    features, sums = drawn(sizes.nodes, 3, seed=sizes.seed), matrix.sum(1)
    after = torch.linalg.matrix_power(matrix, POWERS) @ features
    return name, float(sums.min()), float(sums.max()), norm(matrix), float(after.norm() / features.norm())


def _remarks(symmetric: Square, sizes: ConvolutionSizes) -> tuple[str, ...]:
    if furthest(symmetric) > EXACT or sizes.matrix == "rows":
        return ()
    return (f"This {sizes.graph} graph is regular, so the claim holds here; graph=star shows that it is not general.",)


GRAPH_CONVOLUTION = Identity(
    "d4", ("graph", "convolution"), "Are the rows of Â normalised?", ConvolutionSizes, run_convolution
)
