"""Identities of language models and of graph convolution."""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from lemma.checking.identities.base import (
    EXACT,
    SEED,
    Evidence,
    Finding,
    default_float64,
    expect_count,
    expect_zero,
    identity,
    random_module,
    sample_normal,
    setting,
)
from lemma.errors import SpecError
from lemma.layers.graph import Normalisation, build_adjacency
from lemma.models.build import build
from lemma.models.transformer import EncoderModel
from lemma.spec.models import Decoder, Encoder, FeedForward, Lstm
from lemma.tasks.language import causal_loss
from lemma.tasks.masked import masked_loss, next_sentence_loss

NUM_MODELS, NUM_ROUNDS, MAX_STATES = 20, 10, 4096


@identity(
    "b8 loops greedy",
    title="Greedy decoding of an n-gram model loops",
    claim="A neural n-gram model decoded at temperature 0 repeats its last N−1 tokens, and from there loops for ever.",
)
def greedy_loops(
    V: int = setting(12, 2, 64, "words of the vocabulary"),
    N: int = setting(3, 2, 6, "words of an n-gram; 3 is the trigram model"),
    seed: int = SEED,
) -> Evidence:
    """Decode random n-gram models greedily; check that each repeats a state within V^(N−1) steps, and loops from there.

    Each token follows from the state, the N−1 tokens before it. There are V^(N−1) states, so that within that many
    steps some state comes back; all that followed it follows again.
    """
    if (bound := V ** (N - 1)) > MAX_STATES:
        raise SpecError(f"V = {V}, N = {N}: V^(N−1) = {bound:,} states; at most {MAX_STATES:,} are tried.")

    def following(model: nn.Module, state: Sequence[int]) -> int:
        with torch.no_grad():
            return int(model(torch.tensor([state]))[0][0, -1].argmax())

    spec = FeedForward(vocabulary=V, width=6, hidden=12, context=N)
    num_deviating, loops = 0, []
    for number in range(NUM_MODELS):
        model = random_module(lambda: build(spec), seed + 1000 * number)
        for parameter in model.parameters():
            parameter.data.mul_(parameter.shape[-1] ** 0.5)  # so large that the text wanders before it loops
        tokens, first_seen = [0] * (N - 1), {}
        while (state := tuple(tokens[1 - N :])) not in first_seen:
            first_seen[state] = len(tokens)
            tokens.append(following(model, state))
        period = len(tokens) - first_seen[state]
        loops.append((first_seen[state] - N + 1, period))
        for _ in range(min(NUM_ROUNDS * period, 200)):
            tokens.append(following(model, tokens[1 - N :]))
            num_deviating += tokens[-1] != tokens[-1 - period]
    num_looping = sum(onset + period <= bound for onset, period in loops)
    label = f"of {NUM_MODELS} models, those that loop within V^(N−1) = {bound:,} steps"
    return Evidence(
        (
            expect_count(label, num_looping, NUM_MODELS),
            expect_count(f"tokens that break a loop in {NUM_ROUNDS} more rounds of each", num_deviating, 0),
        ),
        ("model", "onset", "period"),
        tuple((str(number), *loop) for number, loop in enumerate(loops[:8], 1)),
        ("The loop of a trigram model starts where a bigram comes back; its period is the distance between the two.",),
    )


@identity(
    "c1 lstm lstm-step",
    title="One LSTM step by its formulas",
    claim="c_t = Γ_f∗c_{t−1} + Γ_u∗c̃, a_t = Γ_o∗tanh(c_t), ŷ = softmax(W_y a_t + b_y), with [a; x] stacked.",
)
def lstm_step(
    D: int = setting(6, 1, 1024, "units"),
    d: int = setting(4, 1, 1024, "numbers of the input"),
    V: int = setting(5, 2, 10_000, "classes"),
    seed: int = SEED,
) -> Evidence:
    """Compare a step of torch.nn.LSTMCell with the formulas; the gates u, f and o are Γ = σ(W[a; x] + b)."""
    cell = random_module(lambda: nn.LSTMCell(d, D), seed)
    output = random_module(lambda: nn.Linear(D, V), seed + 50)
    x, a, c = (sample_normal(size, seed=seed + 90 + index) for index, size in enumerate((d, D, D)))
    with torch.no_grad():
        reference, state = cell(x[None], (a[None], c[None]))
        probabilities = output(reference).softmax(-1)[0]
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
            expect_zero("c_t − torch.nn.LSTMCell's, largest entry", c_t - state[0]),
            expect_zero("a_t − torch.nn.LSTMCell's, largest entry", a_t - reference[0]),
            expect_zero("ŷ − softmax of the output layer, largest entry", scores / scores.sum() - probabilities),
        )
    )


@identity(
    "d2 perplexity cross-entropy",
    title="Cross-entropy is log perplexity",
    claim="The cross-entropy of a text is the logarithm of its perplexity.",
)
def log_perplexity(
    V: int = setting(50, 2, 5000, "words of the vocabulary"),
    T: int = setting(64, 2, 500, "tokens that are predicted"),
    seed: int = SEED,
) -> Evidence:
    """Compare the cross-entropy of three models with the log of their perplexity, computed from probabilities."""
    text = torch.randint(V, (1, T + 1), generator=torch.Generator().manual_seed(seed))
    findings, rows = [], []
    for spec in (
        FeedForward(vocabulary=V, width=8, hidden=16, context=3),
        Lstm(vocabulary=V, width=8, hidden=16),
        Decoder(vocabulary=V, width=16, depth=1, heads=2, context=T),
    ):
        model = random_module(lambda spec=spec: build(spec), seed)
        with torch.no_grad():
            logits, _ = model(text[:, :-1])
        entropy, perplexity = float(causal_loss(logits, text[:, 1:])), _geometric_mean(logits, text[:, 1:])
        label = f"{spec.family}: log of the geometric mean of 1/p − cross-entropy"
        findings.append(expect_zero(label, abs(math.log(perplexity) - entropy)))
        rows.append((spec.family, entropy, math.exp(entropy), perplexity))
    uniform = _geometric_mean(torch.zeros(1, T, V, dtype=torch.float64), text[:, 1:])
    findings.append(Finding("a model that knows nothing: perplexity against V", uniform, V, V * EXACT))
    return Evidence(
        tuple(findings),
        ("model", "cross-entropy", "exp of it", "perplexity"),
        tuple(rows),
        ("In nats; in bits, cross-entropy is the logarithm to base 2 of the same perplexity.",),
    )


def _geometric_mean(logits: Float[Tensor, "1 T V"], targets: Tensor) -> float:
    """Return the perplexity (Π 1/p_t)^(1/T) of the targets, the geometric mean of 1/p_t, without any logarithm."""
    probabilities = logits[0].softmax(-1).gather(1, targets[0, :, None]).flatten()
    return float((1 / probabilities).pow(1 / len(probabilities)).prod())


@identity(
    "e3 pretraining",
    title="What plain text teaches by itself",
    claim="Causal, masked and next-sentence pretraining need no labels: each predicts a part of the text from another.",
)
def pretraining_losses(
    V: int = setting(30, 8, 5000, "words of the vocabulary"),
    T: int = setting(16, 4, 200, "tokens of a text"),
    seed: int = SEED,
) -> Evidence:
    """Compare causal, masked and next-sentence losses with −log p of the text's own tokens, token by token."""
    text = torch.randint(V - 4, (1, T + 1), generator=torch.Generator().manual_seed(seed))
    reader = random_module(lambda: build(Lstm(vocabulary=V, width=8, hidden=12)), seed)
    spec = Encoder(vocabulary=V, width=16, depth=1, heads=2, context=T + 1, objective="both")
    encoder = random_module(lambda: EncoderModel(spec), seed)
    hidden = torch.arange(1, T + 1, 4)
    targets = torch.full_like(text, -1)
    targets[0, hidden], targets[0, 0] = text[0, hidden], 1
    with torch.no_grad():
        # the prefix alone is given for each prediction, so that nothing later can help
        losses = [-reader(text[:, :end])[0][0, -1].log_softmax(-1)[text[0, end]].item() for end in range(1, T + 1)]
        batch_loss = float(causal_loss(reader(text[:, :-1])[0], text[:, 1:]))
        logits, next_logits = encoder(text), encoder.follows(text)
        changed_logits = -logits
        changed_logits[0, hidden] = logits[0, hidden]
        loss, loss_changed = (masked_loss(batch_logits, targets).loss for batch_logits in (logits, changed_logits))
        log_probabilities = logits[0, hidden].log_softmax(-1).gather(1, text[0, hidden, None])
        second = float(next_sentence_loss(next_logits, targets).loss + next_logits[0].log_softmax(-1)[1])
    error, change = batch_loss - sum(losses) / T, loss - loss_changed
    return Evidence(
        (
            expect_zero("causal − mean of −log p(next token), read one prefix at a time", abs(error)),
            expect_zero("masked − mean of −log p over the hidden places", abs(float(loss + log_probabilities.mean()))),
            expect_zero("masked: other logits at places that are not hidden change it by", abs(float(change))),
            expect_zero("next-sentence − (−log p(follows))", abs(second)),
        )
    )


# D4: the rows of Â = D̃^(−1/2) Ã D̃^(−1/2) do *not* sum to one, unless every connected part is regular.
# What holds on every graph: the spectral norm of Â is 1 (its eigenvector is √d̃), and the rows of D̃⁻¹Ã sum to one.

POWERS = 8
NORM_TOLERANCE = 1e-10  # what rounding leaves of an eigenvalue of a matrix of some hundred rows
MATRIX_FORMULAS = {"symmetric": "Â = D̃^(−1/2) Ã D̃^(−1/2)", "rows": "D̃⁻¹Ã"}
MATRIX_NAMES: dict[Normalisation, str] = {"none": "Ã", "symmetric": "Â", "rows": "D̃⁻¹Ã"}
Graph = Literal["star", "path", "random", "cycle", "complete"]


@identity("d4 graph convolution", title="Are the rows of Â normalised?")
def graph_convolution(
    graph: Graph = "star",  # cycles and complete graphs are regular: all their nodes have the same degree
    matrix: Literal["symmetric", "rows"] = "symmetric",  # of which matrix the rows are claimed to sum to one
    nodes: int = setting(8, 2, 500, "how many nodes"),
    edges: int = setting(12, 0, 500 * 499 // 2, "how many edges a random graph has; the other kinds have theirs"),
    seed: int = SEED,
) -> Evidence:
    """Build Ã, Â and D̃⁻¹Ã of a graph with Lemma's convolution; check their row sums, norms and powers."""
    most = nodes * (nodes - 1) // 2
    if graph == "random" and edges > most:
        raise SpecError(f"edges = {edges}: {nodes} nodes have at most {most} edges.")
    if graph == "cycle" and nodes < 3:
        raise SpecError("nodes = 2: a cycle needs 3 nodes at least.")
    numbers = torch.arange(nodes)
    all_pairs = torch.combinations(numbers).T
    order = torch.randperm(all_pairs.shape[1], generator=torch.Generator().manual_seed(seed))
    pairs: Int[Tensor, "two edges"] = {
        "star": torch.stack([torch.zeros_like(numbers[1:]), numbers[1:]]),
        "path": torch.stack([numbers[:-1], numbers[1:]]),
        "cycle": torch.stack([numbers, numbers.roll(-1)]),
        "complete": all_pairs,
        "random": all_pairs[:, order[:edges]],
    }[graph]
    features = sample_normal(nodes, 3, seed=seed)
    with default_float64():
        matrices: dict[Normalisation, Tensor] = {
            kind: build_adjacency(pairs, nodes, kind).to_dense() for kind in MATRIX_NAMES
        }
    deviation = {kind: float((adjacency.sum(1) - 1).abs().max()) for kind, adjacency in matrices.items()}
    norms = {kind: float(torch.linalg.matrix_norm(adjacency, 2)) for kind, adjacency in matrices.items()}
    degrees = torch.bincount(pairs.flatten(), minlength=nodes)
    # the nodes of each connected part have all the same degree just if the two ends of every edge do
    regular = bool((degrees[pairs[0]] == degrees[pairs[1]]).all())
    powers = [features]
    for _ in range(POWERS):
        powers.append(matrices["symmetric"] @ powers[-1])
    num_longer = sum(bool(after.norm() > before.norm() * (1 + NORM_TOLERANCE)) for before, after in pairwise(powers))
    rows = []
    for kind, adjacency in matrices.items():
        sums, features_after = adjacency.sum(1), torch.linalg.matrix_power(adjacency, POWERS) @ features
        growth = float(features_after.norm() / features.norm())
        rows.append((MATRIX_NAMES[kind], float(sums.min()), float(sums.max()), norms[kind], growth))
    is_normalized = deviation["symmetric"] <= EXACT
    note = f"This {graph} graph is regular, so the claim holds here; graph=star shows that it is not general."
    label = f"claimed: every row of {MATRIX_NAMES[matrix]} sums to 1; furthest sum − 1"
    return Evidence(
        (
            Finding("spectral norm of Â", norms["symmetric"], 1.0, NORM_TOLERANCE),
            expect_zero("rows of D̃⁻¹Ã: furthest sum − 1", deviation["rows"]),
            expect_count("rows of Â sum to one (1 = yes), against: every part is regular", is_normalized, regular),
            expect_count("powers of Â up to 8 that make features longer", num_longer, 0),
        ),
        ("matrix", "lowest row sum", "highest row sum", "spectral norm", f"‖M^{POWERS} X‖ / ‖X‖"),
        tuple(rows),
        (note,) if is_normalized and matrix == "symmetric" else (),
        "the rows of Â sum to one only where every connected part of the graph is regular; those of D̃⁻¹Ã do on every "
        "graph. What holds of Â: its spectral norm is 1, so that repeated layers do not blow features up.",
        claimed=(expect_zero(label, deviation[matrix]),),
        claim=f"The rows of {MATRIX_FORMULAS[matrix]} are normalised: each sums to one.",
        sizes={"edges": pairs.shape[1]},
    )
