"""Identities of language models: loops, an LSTM step, perplexity, pretraining."""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lemma.checking.identities.base import (
    identity,
    random_module,
    sample_normal,
    seed_setting,
    setting,
)
from lemma.checking.identity_report import (
    EXACT,
    Evidence,
    Finding,
    expect_count,
    expect_zero,
)
from lemma.errors import SpecError
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
    seed: int = seed_setting("fixes the weights of all models"),
) -> Evidence:
    """Decode twenty models with random weights greedily, and watch for the state that comes back.

    Each token follows from the N−1 before it. There are V^(N−1) such states, so that within that many steps one comes
    back; all that followed it follows again.
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
    return Evidence(
        (
            expect_count(
                f"of {NUM_MODELS} models, those that loop within V^(N−1) = {bound:,} steps", num_looping, NUM_MODELS
            ),
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
    seed: int = seed_setting("fixes all numbers"),
) -> Evidence:
    """Compare one step by the formulas, with Γ = σ(W[a; x] + b) for the gates u, f, o, with torch.nn.LSTMCell."""
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
def cross_entropy(
    V: int = setting(50, 2, 5000, "words of the vocabulary"),
    T: int = setting(64, 2, 500, "tokens that are predicted"),
    seed: int = seed_setting("fixes the text and the weights"),
) -> Evidence:
    """Predict one text by three models, and take the perplexity and the cross-entropy apart from each other."""
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
    """Return the perplexity (Π 1/p_t)^(1/T) as a product of probabilities, without any logarithm."""
    probabilities = logits[0].softmax(-1).gather(1, targets[0, :, None]).flatten()
    return float((1 / probabilities).pow(1 / len(probabilities)).prod())


@identity(
    "e3 pretraining",
    title="What plain text teaches by itself",
    claim="Causal, masked and next-sentence pretraining need no labels: each predicts a part of the text from another.",
)
def pretraining(
    V: int = setting(30, 8, 5000, "words of the vocabulary"),
    T: int = setting(16, 4, 200, "tokens of a text"),
    seed: int = seed_setting("fixes texts and weights"),
) -> Evidence:
    """Compare each training loss with −log p of the text's own tokens, token by token."""
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
    return Evidence(
        (
            expect_zero(
                "causal − mean of −log p(next token), read one prefix at a time", abs(batch_loss - sum(losses) / T)
            ),
            expect_zero("masked − mean of −log p over the hidden places", abs(float(loss + log_probabilities.mean()))),
            expect_zero(
                "masked: other logits at places that are not hidden change it by", abs(float(loss - loss_changed))
            ),
            expect_zero("next-sentence − (−log p(follows))", abs(second)),
        )
    )
