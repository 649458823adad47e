"""Identities about models: B8, C1, D2, D4, E3."""

import math
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from lemma.checking.identity import (
    EXACT,
    Evidence,
    Finding,
    counted,
    drawn,
    filled,
    gap,
    identity,
    in_float64,
    residual,
    setting,
)
from lemma.errors import SpecError
from lemma.layers.graph import Normalisation, adjacency_of
from lemma.models.build import build
from lemma.spec.models import Decoder, Encoder, FeedForward, Lstm
from lemma.tasks.language import causal
from lemma.tasks.masked import masked, next_sentence

MODELS, ROUNDS, MOST_STATES = 20, 10, 4096


@identity(
    "b8",
    "loops",
    "greedy",
    title="Greedy decoding of an n-gram model loops",
    claim="A neural n-gram model decoded at temperature 0 repeats its last N−1 tokens, and from there loops for ever.",
)
def greedy_loops(
    V: int = setting(12, 2, 64, "words of the vocabulary"),
    N: int = setting(3, 2, 6, "words of an n-gram; 3 is the trigram model"),
    seed: int = setting(1, 0, about="fixes the weights of all models"),
) -> Evidence:
    """Decode twenty models with random weights greedily, and watch for the state that comes back.

    Each token follows from the N−1 before it. There are V^(N−1) such states, so that within that many steps one comes
    back; all that followed it follows again.
    """
    if (bound := V ** (N - 1)) > MOST_STATES:
        raise SpecError(f"V = {V}, N = {N}: V^(N−1) = {bound:,} states; at most {MOST_STATES:,} are tried.")
    loops = [_loop(V, N, seed + 1000 * number) for number in range(MODELS)]
    within = sum(onset + period <= bound for onset, period, _ in loops)
    broken = sum(differences for _, _, differences in loops)
    return Evidence(
        (
            counted(f"of {MODELS} models, those that loop within V^(N−1) = {bound:,} steps", within, MODELS),
            counted(f"tokens that break a loop in {ROUNDS} more rounds of each", broken, 0),
        ),
        ("model", "onset", "period"),
        tuple((str(number), onset, period) for number, (onset, period, _) in enumerate(loops[:8], 1)),
        ("The loop of a trigram model starts where a bigram comes back; its period is the distance between the two.",),
    )


def _loop(V: int, N: int, seed: int) -> tuple[int, int, int]:
    """Where the loop of a model begins, how long it is, and how many later tokens break it."""
    model = filled(lambda: build(FeedForward(vocabulary=V, width=6, hidden=12, context=N)), seed)
    span = N - 1
    tokens, seen = [0] * span, {}
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(parameter.shape[-1] ** 0.5)  # so large that the text wanders before it loops

        def go_on() -> None:
            tokens.append(int(model(torch.tensor([tokens[-span:]]))[0][0, -1].argmax()))

        while (state := tuple(tokens[-span:])) not in seen:
            seen[state] = len(tokens)
            go_on()
        onset, period, broken = seen[state] - span, len(tokens) - seen[state], 0
        for _ in range(min(ROUNDS * period, 200)):
            go_on()
            broken += tokens[-1] != tokens[-1 - period]
    return onset, period, broken


@identity(
    "c1",
    "lstm",
    "lstm-step",
    title="One LSTM step by its formulas",
    claim="c_t = Γ_f∗c_{t−1} + Γ_u∗c̃, a_t = Γ_o∗tanh(c_t), ŷ = softmax(W_y a_t + b_y), with [a; x] stacked.",
)
def lstm_step(
    D: int = setting(6, 1, 1024, "units"),
    d: int = setting(4, 1, 1024, "numbers of the input"),
    V: int = setting(5, 2, 10_000, "classes"),
    seed: int = setting(1, 0, about="fixes all numbers"),
) -> Evidence:
    """One step by the formulas, with Γ = σ(W[a; x] + b) for the gates u, f, o, and by torch.nn.LSTMCell."""
    cell = filled(lambda: nn.LSTMCell(d, D), seed)
    output = filled(lambda: nn.Linear(D, V), seed + 50)
    x, a, c = (drawn(size, seed=seed + 90 + place) for place, size in enumerate((d, D, D)))
    with torch.no_grad():
        theirs, state = cell(x[None], (a[None], c[None]))
        chances = output(theirs).softmax(-1)[0]
        weights = torch.cat([cell.weight_hh, cell.weight_ih], dim=1).chunk(4)
        biases = (cell.bias_ih + cell.bias_hh).chunk(4)
        stacked = torch.cat([a, x])
        # PyTorch stacks input (here update), forget, cell (here the candidate), output
        u, f, candidate, o = (W @ stacked + b for W, b in zip(weights, biases, strict=True))
        u, f, o = (1 / (1 + (-gate).exp()) for gate in (u, f, o))
        c_t = f * c + u * candidate.tanh()
        a_t = o * c_t.tanh()
        scores = (output.weight @ a_t + output.bias).exp()
    return Evidence(
        (
            residual("c_t − torch.nn.LSTMCell's, largest entry", gap(c_t, state[0])),
            residual("a_t − torch.nn.LSTMCell's, largest entry", gap(a_t, theirs[0])),
            residual("ŷ − softmax of the output layer, largest entry", gap(scores / scores.sum(), chances)),
        )
    )


@identity(
    "d2",
    "perplexity",
    "cross-entropy",
    title="Cross-entropy is log perplexity",
    claim="The cross-entropy of a text is the logarithm of its perplexity.",
)
def cross_entropy(
    V: int = setting(50, 2, 5000, "words of the vocabulary"),
    T: int = setting(64, 2, 500, "tokens that are predicted"),
    seed: int = setting(1, 0, about="fixes the text and the weights"),
) -> Evidence:
    """Predict one text by three models, and take the perplexity and the cross-entropy apart from each other."""
    text = torch.randint(V, (1, T + 1), generator=torch.Generator().manual_seed(seed))
    findings, rows = [], []
    for spec in (
        FeedForward(vocabulary=V, width=8, hidden=16, context=3),
        Lstm(vocabulary=V, width=8, hidden=16),
        Decoder(vocabulary=V, width=16, depth=1, heads=2, context=T),
    ):
        model = filled(lambda spec=spec: build(spec), seed)
        with torch.no_grad():
            logits, _ = model(text[:, :-1])
        entropy, perplexity = float(causal(logits, text[:, 1:])), _geometric_mean(logits, text[:, 1:])
        says = f"{spec.family}: log of the geometric mean of 1/p − cross-entropy"
        findings.append(residual(says, abs(math.log(perplexity) - entropy)))
        rows.append((spec.family, entropy, math.exp(entropy), perplexity))
    ignorant = _geometric_mean(torch.zeros(1, T, V, dtype=torch.float64), text[:, 1:])
    findings.append(Finding("a model that knows nothing: perplexity against V", ignorant, V, V * EXACT))
    return Evidence(
        tuple(findings),
        ("model", "cross-entropy", "exp of it", "perplexity"),
        tuple(rows),
        ("In nats; in bits, cross-entropy is the logarithm to base 2 of the same perplexity.",),
    )


def _geometric_mean(logits: Float[Tensor, "1 T V"], targets: Tensor) -> float:
    """The perplexity (Π 1/p_t)^(1/T), by products of probabilities: no logarithm is taken of any of them."""
    chances = logits[0].softmax(-1).gather(1, targets[0, :, None]).flatten()
    return float((1 / chances).pow(1 / len(chances)).prod())


@identity(
    "e3",
    "pretraining",
    title="What plain text teaches by itself",
    claim="Causal, masked and next-sentence pretraining need no labels: each predicts a part of the text from another.",
)
def pretraining(
    V: int = setting(30, 8, 5000, "words of the vocabulary"),
    T: int = setting(16, 4, 200, "tokens of a text"),
    seed: int = setting(1, 0, about="fixes texts and weights"),
) -> Evidence:
    """Each loss by the objective that trains, compared with −log p of what the text itself says, token by token."""
    text = torch.randint(V - 4, (1, T + 1), generator=torch.Generator().manual_seed(seed))
    reader = filled(lambda: build(Lstm(vocabulary=V, width=8, hidden=12)), seed)
    spec = Encoder(vocabulary=V, width=16, depth=1, heads=2, context=T + 1, objective="both")
    encoder = filled(lambda: build(spec), seed)
    hidden = torch.arange(1, T + 1, 4)
    targets = torch.full_like(text, -1)
    targets[0, hidden], targets[0, 0] = text[0, hidden], 1
    with torch.no_grad():
        # the prefix alone is given for each prediction, so that nothing later can help
        each = [-reader(text[:, :end])[0][0, -1].log_softmax(-1)[text[0, end]].item() for end in range(1, T + 1)]
        read = float(causal(reader(text[:, :-1])[0], text[:, 1:]))
        logits, follows = encoder(text), encoder.follows(text)
        other = -logits
        other[0, hidden] = logits[0, hidden]
        loss, same = (masked(one, targets).loss for one in (logits, other))
        chances = logits[0, hidden].log_softmax(-1).gather(1, text[0, hidden, None])
        second = float(next_sentence(follows, targets).loss + follows[0].log_softmax(-1)[1])
    return Evidence(
        (
            residual("causal − mean of −log p(next token), read one prefix at a time", abs(read - sum(each) / T)),
            residual("masked − mean of −log p over the hidden places", abs(float(loss + chances.mean()))),
            residual("masked: other logits at places that are not hidden change it by", abs(float(loss - same))),
            residual("next-sentence − (−log p(follows))", abs(second)),
        )
    )


# D4: the rows of Â = D̃^(−1/2) Ã D̃^(−1/2) do *not* sum to one, unless every connected part is regular.
# What holds on every graph: the spectral norm of Â is 1 (its eigenvector is √d̃), and the rows of D̃⁻¹Ã sum to one.

POWERS = 8
NORM = 1e-10  # what rounding leaves of an eigenvalue of a matrix of some hundred rows
FORMULAS = {"symmetric": "Â = D̃^(−1/2) Ã D̃^(−1/2)", "rows": "D̃⁻¹Ã"}
NAMES: dict[Normalisation, str] = {"none": "Ã", "symmetric": "Â", "rows": "D̃⁻¹Ã"}
Graph = Literal["star", "path", "random", "cycle", "complete"]


@identity("d4", "graph", "convolution", title="Are the rows of Â normalised?", claim="")
def graph_convolution(
    graph: Graph = "star",  # cycles and complete graphs are regular: all their nodes have the same degree
    matrix: Literal["symmetric", "rows"] = "symmetric",  # of which matrix the rows are claimed to sum to one
    nodes: int = setting(8, 2, 500, "how many nodes"),
    edges: int = setting(12, 0, about="how many edges a random graph has; the other kinds have theirs"),
    seed: int = setting(1, 0, about="fixes the random graph and the features"),
) -> Evidence:
    """Build Ã, Â and D̃⁻¹Ã by our own convolution, and measure their rows and norms."""
    most = nodes * (nodes - 1) // 2
    if graph == "random" and edges > most:
        raise SpecError(f"edges = {edges}: {nodes} nodes have at most {most} edges.")
    if graph == "cycle" and nodes < 3:
        raise SpecError("nodes = 2: a cycle needs 3 nodes at least.")
    pairs = _edges(graph, nodes, edges, seed)
    features = drawn(nodes, 3, seed=seed)
    with in_float64():
        made: dict[Normalisation, Tensor] = {kind: adjacency_of(pairs, nodes, kind).to_dense() for kind in NAMES}
    off = {kind: float((one.sum(1) - 1).abs().max()) for kind, one in made.items()}
    norms = {kind: float(torch.linalg.matrix_norm(one, 2)) for kind, one in made.items()}
    degrees = torch.bincount(pairs.flatten(), minlength=nodes)
    # the nodes of each connected part have all the same degree just if the two ends of every edge do
    regular = bool((degrees[pairs[0]] == degrees[pairs[1]]).all())
    longer, before = 0, features
    for _ in range(POWERS):
        after = made["symmetric"] @ before
        longer += bool(after.norm() > before.norm() * (1 + NORM))
        before = after
    rows = []
    for kind, one in made.items():
        sums, after = one.sum(1), torch.linalg.matrix_power(one, POWERS) @ features
        grown = float(after.norm() / features.norm())
        rows.append((NAMES[kind], float(sums.min()), float(sums.max()), norms[kind], grown))
    sums_to_one = off["symmetric"] <= EXACT
    remark = f"This {graph} graph is regular, so the claim holds here; graph=star shows that it is not general."
    return Evidence(
        (
            Finding("spectral norm of Â", norms["symmetric"], 1.0, NORM),
            residual("rows of D̃⁻¹Ã: furthest sum − 1", off["rows"]),
            counted("rows of Â sum to one (1 = yes), against: every part is regular", sums_to_one, regular),
            counted("powers of Â up to 8 that make features longer", longer, 0),
        ),
        ("matrix", "lowest row sum", "highest row sum", "spectral norm", f"‖M^{POWERS} X‖ / ‖X‖"),
        tuple(rows),
        (remark,) if sums_to_one and matrix == "symmetric" else (),
        "the rows of Â sum to one only where every connected part of the graph is regular; those of D̃⁻¹Ã do on every "
        "graph. What holds of Â: its spectral norm is 1, so that repeated layers do not blow features up.",
        claimed=(residual(f"claimed: every row of {NAMES[matrix]} sums to 1; furthest sum − 1", off[matrix]),),
        claim=f"The rows of {FORMULAS[matrix]} are normalised: each sums to one.",
        sizes={"edges": pairs.shape[1]},
    )


def _edges(graph: Graph, nodes: int, edges: int, seed: int) -> Int[Tensor, "two edges"]:
    """The edges of the graph asked for."""
    numbers = torch.arange(nodes)
    if graph == "star":
        return torch.stack([torch.zeros_like(numbers[1:]), numbers[1:]])
    if graph == "path":
        return torch.stack([numbers[:-1], numbers[1:]])
    if graph == "cycle":
        return torch.stack([numbers, numbers.roll(-1)])
    pairs = torch.combinations(numbers).T
    if graph == "complete":
        return pairs
    order = torch.randperm(pairs.shape[1], generator=torch.Generator().manual_seed(seed))
    return pairs[:, order[:edges]]
