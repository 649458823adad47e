"""Reference functions for exercises that ask for code, each with variants that make a common mistake.

All are written with NumPy in float64. A mistake is a function of the same arguments that gives what students' code with
that mistake returns.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

Function = Callable[..., Any]


@dataclass(frozen=True)
class Trial:
    """Arguments of a call, and what they try out."""

    arguments: tuple[Any, ...]
    topic: str = ""  # "" for ordinary random inputs


@dataclass(frozen=True)
class CodeReference:
    """A function that students write.

    Attributes:
        signature: name and arguments, which are passed by position.
        compute: the right function.
        make_trials: returns the inputs, from a random generator.
        mistakes: functions with a mistake, by description.
        alternatives: functions of other conventions, which are right too, by description.
        required: number of arguments that must be accepted; trials with more are skipped otherwise.
    """

    signature: str
    summary: str
    compute: Function
    make_trials: Callable[[np.random.Generator], list[Trial]]
    mistakes: Mapping[str, Function] = field(default_factory=dict)
    alternatives: Mapping[str, Function] = field(default_factory=dict)
    required: int = 1


def softmax(x: Any, axis: int = -1) -> Any:
    """Return the softmax along an axis."""
    shifted = np.exp(x - x.max(axis=axis, keepdims=True))
    return shifted / shifted.sum(axis=axis, keepdims=True)


def _softmax_trials(random: np.random.Generator) -> list[Trial]:
    shapes = [(5,), (3, 4), (2, 3, 4)]
    ordinary = [Trial((random.normal(size=shape),)) for shape in shapes]
    large = Trial((np.array([[1000.0, 1001.0, 999.0], [-1000.0, -1001.0, -1000.5]]),), "large numbers")
    return [*ordinary, large, Trial((random.normal(size=(3, 4)), 0), "another axis")]


def log_softmax(x: Any, axis: int = -1) -> Any:
    """Return the logarithm of the softmax along an axis."""
    shifted = x - x.max(axis=axis, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=axis, keepdims=True))


def cross_entropy(logits: Any, targets: Any) -> Any:
    """Return the mean negative log-likelihood of the targets."""
    return -log_softmax(logits)[np.arange(len(targets)), targets].mean()


def _cross_entropy_trials(random: np.random.Generator) -> list[Trial]:
    trials = [Trial((random.normal(size=(n, k)), random.integers(0, k, n))) for n, k in ((4, 5), (1, 3), (7, 4))]
    return [*trials, Trial((np.array([[1000.0, 0.0], [0.0, -1000.0]]), np.array([0, 0])), "large numbers")]


def _scores(q: Any, k: Any) -> Any:
    return q @ np.swapaxes(k, -1, -2) / np.sqrt(q.shape[-1])


def attention(q: Any, k: Any, v: Any, mask: Any = None) -> Any:
    """Return scaled dot-product attention; the mask is true where a query may attend."""
    scores = _scores(q, k)
    if mask is not None:
        scores = np.where(mask, scores, -np.inf)
    return softmax(scores) @ v


def _causal(length: int, offset: int = 0) -> Any:
    return np.tril(np.ones((length, length), dtype=bool), offset)


def causal_attention(q: Any, k: Any, v: Any) -> Any:
    """Return attention in which a position sees itself and those before it."""
    return attention(q, k, v, _causal(q.shape[-2]))


def _masked_after(q: Any, k: Any, v: Any, mask: Any) -> Any:
    return (softmax(_scores(q, k)) * mask) @ v


def _with_scores(transform: Function) -> Function:
    """Return attention whose scores are transformed before they are masked and normalized."""

    def compute(q: Any, k: Any, v: Any, mask: Any = None) -> Any:
        scores = transform(_scores(q, k), q, k)
        return softmax(scores if mask is None else np.where(mask, scores, -np.inf)) @ v

    return compute


ATTENTION_MISTAKES: dict[str, Function] = {
    "the scale 1/√d_k is missing": _with_scores(lambda scores, q, k: scores * np.sqrt(q.shape[-1])),
    "the scores are divided by d_k, not by √d_k": _with_scores(lambda scores, q, k: scores / np.sqrt(q.shape[-1])),
    "the scores are multiplied by √d_k, not divided": _with_scores(lambda scores, q, k: scores * q.shape[-1]),
    "the scores are scaled by the number of keys, not by d_k": _with_scores(
        lambda scores, q, k: scores * np.sqrt(q.shape[-1] / k.shape[-2])
    ),
}


def _softmax_over_queries(q: Any, k: Any, v: Any, mask: Any = None) -> Any:
    scores = _scores(q, k)
    scores = scores if mask is None else np.where(mask, scores, -np.inf)
    with np.errstate(invalid="ignore"):
        return softmax(scores, -2) @ v


def _exchanged(q: Any, k: Any, v: Any, mask: Any = None) -> Any:
    return attention(k, q, v, mask)


def _attention_trials(random: np.random.Generator) -> list[Trial]:
    def normal(*shape: int) -> Any:
        return random.normal(size=shape)

    unmasked = [Trial((normal(5, 4), normal(5, 4), normal(5, 3)))]
    unmasked.append(Trial((normal(2, 6, 3), normal(2, 6, 3), normal(2, 6, 3)), "a batch"))
    unmasked.append(Trial((normal(3, 4), normal(6, 4), normal(6, 5)), "more keys than queries"))
    masks = [_causal(5), random.random((5, 5)) < 0.6]
    masks[1][np.arange(5), np.arange(5)] = True
    return [*unmasked, *(Trial((normal(5, 4), normal(5, 4), normal(5, 3), mask), "a mask") for mask in masks)]


def _causal_trials(random: np.random.Generator) -> list[Trial]:
    shapes = [(5, 4), (7, 3), (2, 6, 4)]
    return [Trial(tuple(random.normal(size=(3, *shape))), "a batch" if len(shape) == 3 else "") for shape in shapes]


def multi_head_attention(x: Any, w_q: Any, w_k: Any, w_v: Any, w_o: Any, num_heads: int) -> Any:
    """Return multi-head self-attention of rows x (T, d) with weights (d, d), heads as consecutive columns."""
    heads = [np.split(x @ weight, num_heads, axis=-1) for weight in (w_q, w_k, w_v)]
    return np.concatenate([attention(q, k, v) for q, k, v in zip(*heads, strict=True)], axis=-1) @ w_o


def _unsplit_scale(x: Any, w_q: Any, w_k: Any, w_v: Any, w_o: Any, num_heads: int) -> Any:
    return multi_head_attention(x, w_q / np.sqrt(num_heads), w_k, w_v, w_o, num_heads)


def _multi_head_trials(random: np.random.Generator) -> list[Trial]:
    trials = []
    for length, width, heads in ((5, 8, 2), (4, 6, 3), (3, 4, 1)):
        weights = [random.normal(size=(width, width)) for _ in range(4)]
        trials.append(Trial((random.normal(size=(length, width)), *weights, heads), "one head" if heads == 1 else ""))
    return trials


def layer_norm(x: Any, gamma: Any, beta: Any, eps: float = 1e-5) -> Any:
    """Return layer normalization over the last axis."""
    mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return gamma * (x - mean) / np.sqrt(variance + eps) + beta


def _norm_over(axis: int | None) -> Function:
    def compute(x: Any, gamma: Any, beta: Any, eps: float = 1e-5) -> Any:
        mean, variance = x.mean(axis, keepdims=True), x.var(axis, keepdims=True)
        return gamma * (x - mean) / np.sqrt(variance + eps) + beta

    return compute


def _layer_norm_trials(random: np.random.Generator) -> list[Trial]:
    trials = [
        Trial((random.normal(2, 3, shape), random.normal(size=shape[-1]), random.normal(size=shape[-1])), topic)
        for shape, topic in (((3, 5), ""), ((2, 4, 6), "a batch"))
    ]
    small = 1e-3 * random.normal(size=(3, 5))
    return [*trials, Trial((small, np.ones(5), np.zeros(5)), "small numbers, where ε matters")]


def rms_norm(x: Any, gamma: Any, eps: float = 1e-6) -> Any:
    """Return RMS normalization over the last axis."""
    return gamma * x / np.sqrt((x**2).mean(-1, keepdims=True) + eps)


def _rms_trials(random: np.random.Generator) -> list[Trial]:
    return [
        Trial((random.normal(1, 2, shape), random.normal(size=shape[-1])), topic)
        for shape, topic in (((3, 5), ""), ((2, 4, 6), "a batch"))
    ]


def _angles(x: Any, base: float, first: int = 0) -> Any:
    length, width = x.shape[-2:]
    return np.outer(np.arange(first, first + length), base ** (-np.arange(0, width, 2) / width))


def rotary(x: Any, base: float = 10000.0, first: int = 0, sign: int = 1) -> Any:
    """Return rows x (T, d) rotated by their positions, in neighbouring pairs (Su et al. 2021)."""
    angles = sign * _angles(x, base, first)
    result = np.empty_like(x)
    even, odd = x[..., 0::2], x[..., 1::2]
    result[..., 0::2] = even * np.cos(angles) - odd * np.sin(angles)
    result[..., 1::2] = even * np.sin(angles) + odd * np.cos(angles)
    return result


def rotary_halves(x: Any, base: float = 10000.0, first: int = 0, sign: int = 1) -> Any:
    """Return rows x (T, d) rotated by their positions, the first half of the entries paired with the second."""
    width = x.shape[-1]
    order = np.arange(width).reshape(2, -1).T.ravel()
    return rotary(x[..., order], base, first, sign)[..., np.argsort(order)]


def _rotary_trials(random: np.random.Generator) -> list[Trial]:
    return [Trial((random.normal(size=shape),)) for shape in ((4, 6), (7, 4), (3, 8))]


def sinusoidal(length: int, width: int) -> Any:
    """Return the sinusoidal encodings (T, d), sines and cosines in turns (Vaswani et al. 2017)."""
    angles = _angles(np.empty((length, width)), 10000.0)
    return np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(length, width)


def _sinusoidal_halves(length: int, width: int) -> Any:
    angles = _angles(np.empty((length, width)), 10000.0)
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=-1)


def _sinusoidal_exponent(length: int, width: int) -> Any:
    angles = np.outer(np.arange(length), 10000.0 ** (-np.arange(width // 2) / width))
    return np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(length, width)


def merge_pair(tokens: list[str], pair: tuple[str, str]) -> list[str]:
    """Return tokens in which each occurrence of a pair is one token, from left to right."""
    merged: list[str] = []
    index = 0
    while index < len(tokens):
        if tuple(tokens[index : index + 2]) == tuple(pair):
            merged.append(pair[0] + pair[1])
            index += 2
        else:
            merged.append(tokens[index])
            index += 1
    return merged


def _merge_keeping_second(tokens: list[str], pair: tuple[str, str]) -> list[str]:
    merged: list[str] = []
    for index, token in enumerate(tokens):
        is_pair = tuple(tokens[index : index + 2]) == tuple(pair)
        merged.append(pair[0] + pair[1] if is_pair else token)
    return merged


def _merge_first_only(tokens: list[str], pair: tuple[str, str]) -> list[str]:
    for index in range(len(tokens) - 1):
        if tuple(tokens[index : index + 2]) == tuple(pair):
            return [*tokens[:index], pair[0] + pair[1], *tokens[index + 2 :]]
    return tokens


def _merge_without_last(tokens: list[str], pair: tuple[str, str]) -> list[str]:
    merged: list[str] = []
    index = 0
    while index < len(tokens) - 1:
        is_pair = tuple(tokens[index : index + 2]) == tuple(pair)
        merged.append(pair[0] + pair[1] if is_pair else tokens[index])
        index += 2 if is_pair else 1
    return merged


def _merge_trials(random: np.random.Generator) -> list[Trial]:
    texts = [("abcab", "ab"), ("aaaa", "aa"), ("aaa", "aa"), ("xyz", "ab"), ("ab", "ab"), ("babab", "ba")]
    texts.append(("".join(random.choice(list("ab"), 20)), "ab"))
    trials = [Trial((list(text), (pair[0], pair[1]))) for text, pair in texts]
    return [*trials, Trial(([], ("a", "b")), "no tokens")]


def count_pairs(tokens: list[str]) -> dict[tuple[str, str], int]:
    """Return how often each pair of neighbouring tokens occurs."""
    counts: dict[tuple[str, str], int] = {}
    for pair in pairwise(tokens):
        counts[pair] = counts.get(pair, 0) + 1
    return counts


def _pair_trials(random: np.random.Generator) -> list[Trial]:
    return [Trial((list(text),)) for text in ("abcab", "aaaa", "a", "".join(random.choice(list("abc"), 15)))]


Step = tuple[Any, Any, Any]


def adamw(
    theta: Any, gradient: Any, m: Any, v: Any, t: int, lr: float, beta1: float, beta2: float, eps: float, decay: float
) -> Step:
    """Return parameters and moments after a step of AdamW (Loshchilov and Hutter 2019); t counts from 1."""
    m = beta1 * m + (1 - beta1) * gradient
    v = beta2 * v + (1 - beta2) * gradient**2
    update = (m / (1 - beta1**t)) / (np.sqrt(v / (1 - beta2**t)) + eps)
    return theta - lr * decay * theta - lr * update, m, v


_step: Function = adamw


def _adamw_l2(theta: Any, gradient: Any, m: Any, v: Any, t: int, *settings: float) -> Step:
    return _step(theta, gradient + settings[-1] * theta, m, v, t, *settings[:-1], 0.0)


def _adamw_uncorrected(theta: Any, gradient: Any, m: Any, v: Any, t: int, *settings: float) -> Step:
    return adamw(theta, gradient, m, v, 10**6, *settings)


def _adamw_first_step(theta: Any, gradient: Any, m: Any, v: Any, t: int, *settings: float) -> Step:
    return adamw(theta, gradient, m, v, t + 1, *settings)


def _adamw_unscaled_decay(
    theta: Any, gradient: Any, m: Any, v: Any, t: int, lr: float, beta1: float, beta2: float, eps: float, decay: float
) -> Step:
    return adamw(theta, gradient, m, v, t, lr, beta1, beta2, eps, decay / lr)


def _adamw_exchanged(
    theta: Any, gradient: Any, m: Any, v: Any, t: int, lr: float, beta1: float, beta2: float, eps: float, decay: float
) -> Step:
    return adamw(theta, gradient, m, v, t, lr, beta2, beta1, eps, decay)


def _adamw_eps_in_root(
    theta: Any, gradient: Any, m: Any, v: Any, t: int, lr: float, beta1: float, beta2: float, eps: float, decay: float
) -> Step:
    m = beta1 * m + (1 - beta1) * gradient
    v = beta2 * v + (1 - beta2) * gradient**2
    update = (m / (1 - beta1**t)) / np.sqrt(v / (1 - beta2**t) + eps)
    return theta - lr * decay * theta - lr * update, m, v


def _adamw_ascent(theta: Any, gradient: Any, m: Any, v: Any, t: int, *settings: float) -> Step:
    new, m, v = _step(theta, gradient, m, v, t, *settings[:-1], 0.0)
    return 2 * theta - new - settings[0] * settings[-1] * theta, m, v


def _adamw_trials(random: np.random.Generator) -> list[Trial]:
    settings = (0.1, 0.9, 0.99, 1e-3, 0.2)
    return [
        Trial((*random.normal(size=(3, 4)), random.random(4), t, *settings), "the first step" if t == 1 else "")
        for t in (3, 7)
    ] + [
        Trial((random.normal(size=4), random.normal(size=4), np.zeros(4), np.zeros(4), 1, *settings), "the first step")
    ]


def gelu(x: Any) -> Any:
    """Return the Gaussian error linear unit."""
    from scipy.special import erf

    return 0.5 * x * (1 + erf(x / np.sqrt(2)))


def _gelu_tanh(x: Any) -> Any:
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def _gelu_without_root(x: Any) -> Any:
    from scipy.special import erf

    return 0.5 * x * (1 + erf(x))


def top_p(probabilities: Any, p: float) -> Any:
    """Return the renormalized distribution over the smallest set of most likely tokens whose mass is at least p."""
    return _nucleus(probabilities, p, 0)


def _nucleus(probabilities: Any, p: float, extra: int, normalize: bool = True) -> Any:
    order = np.argsort(-probabilities, kind="stable")
    size = int(np.searchsorted(np.cumsum(probabilities[order]), p - 1e-12)) + 1 + extra
    nucleus = np.zeros_like(probabilities)
    nucleus[order[: max(size, 0)]] = probabilities[order[: max(size, 0)]]
    with np.errstate(invalid="ignore"):
        return nucleus / nucleus.sum() if normalize else nucleus


def _top_p_trials(random: np.random.Generator) -> list[Trial]:
    shuffled = [random.permutation(softmax(np.arange(6) * 0.7 + 0.1 * random.normal(size=6))) for _ in range(4)]
    return [Trial((probabilities, p)) for probabilities, p in zip(shuffled, (0.5, 0.8, 0.9, 0.3), strict=True)]


def edit_distance(a: str, b: str) -> int:
    """Return the Levenshtein distance of two texts."""
    return _edit_distance(a, b, 1)


def _edit_distance(a: str, b: str, substitution: int) -> int:
    row = list(range(len(b) + 1))
    for i, left in enumerate(a, 1):
        previous, row[0] = row[0], i
        for j, right in enumerate(b, 1):
            cost = previous + (left != right) * substitution
            previous, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, cost)
    return row[-1]


def _edit_trials(random: np.random.Generator) -> list[Trial]:
    pairs = [
        ("kitten", "sitting"),
        ("intention", "execution"),
        ("", "abc"),
        ("abc", ""),
        ("same", "same"),
        ("abcde", "eabcd"),
    ]
    pairs.append(("".join(random.choice(list("abc"), 9)), "".join(random.choice(list("abc"), 7))))
    return [Trial(pair) for pair in pairs]


def perplexity(log_probabilities: Any) -> Any:
    """Return the perplexity of tokens with these natural log-probabilities."""
    return np.exp(-np.mean(log_probabilities))


REFERENCES: dict[str, CodeReference] = {
    "softmax": CodeReference(
        "softmax(x, axis=-1)",
        "softmax along the last axis, without overflow",
        softmax,
        _softmax_trials,
        {
            "the wrong axis: rows are the last axis": lambda x, axis=-1: softmax(x, 0 if axis == -1 else -1),
            "normalized over all entries together": lambda x, axis=-1: softmax(x.ravel(), 0).reshape(x.shape),
            "not normalized": lambda x, axis=-1: np.exp(x),
            "normalized by the largest entry, not by the sum": lambda x, axis=-1: np.exp(
                x - x.max(axis=axis, keepdims=True)
            ),
            "the axis is ignored": lambda x, axis=-1: softmax(x, -1),
            "it is the log-softmax": log_softmax,
        },
    ),
    "log-softmax": CodeReference(
        "log_softmax(x, axis=-1)",
        "logarithm of the softmax, without overflow or log(0)",
        log_softmax,
        _softmax_trials,
        {
            "the logarithm is missing": softmax,
            "the sign is wrong": lambda x, axis=-1: -log_softmax(x, axis),
            "the wrong axis: rows are the last axis": lambda x, axis=-1: log_softmax(x, 0 if axis == -1 else -1),
            "the axis is ignored": lambda x, axis=-1: log_softmax(x, -1),
        },
    ),
    "cross-entropy": CodeReference(
        "cross_entropy(logits, targets)",
        "mean negative log-likelihood of the targets (class numbers), from logits",
        cross_entropy,
        _cross_entropy_trials,
        {
            "summed over the rows, not averaged": lambda x, y: cross_entropy(x, y) * len(y),
            "the sign is wrong": lambda x, y: -cross_entropy(x, y),
            "the logarithm is to base 2": lambda x, y: cross_entropy(x, y) / np.log(2),
            "averaged over the classes too": lambda x, y: cross_entropy(x, y) / x.shape[1],
            "softmax is applied twice": lambda x, y: cross_entropy(softmax(x), y),
            "the softmax is missing": lambda x, y: -x[np.arange(len(y)), y].mean(),
            "the softmax is over the rows of the batch": lambda x, y: (
                -np.log(softmax(x, 0))[np.arange(len(y)), y].mean()
            ),
        },
        required=2,
    ),
    "attention": CodeReference(
        "attention(q, k, v, mask=None)",
        "scaled dot-product attention; the mask is true where a query may attend",
        attention,
        _attention_trials,
        {
            **ATTENTION_MISTAKES,
            "softmax over the queries: the wrong axis": _softmax_over_queries,
            "queries and keys are exchanged": _exchanged,
            "the mask is ignored": lambda q, k, v, mask=None: attention(q, k, v),
            "the mask is inverted: true means that a query may attend": lambda q, k, v, mask=None: attention(
                q, k, v, None if mask is None else ~mask
            ),
            "the mask is applied after the softmax, so that rows do not sum to one": lambda q, k, v, mask=None: (
                attention(q, k, v) if mask is None else _masked_after(q, k, v, mask)
            ),
            "masked scores are 0, not −∞": lambda q, k, v, mask=None: (
                attention(q, k, v) if mask is None else softmax(_scores(q, k) * mask) @ v
            ),
            "the softmax is missing": lambda q, k, v, mask=None: (
                (_scores(q, k) if mask is None else np.where(mask, _scores(q, k), 0)) @ v
            ),
        },
        required=3,
    ),
    "causal-attention": CodeReference(
        "causal_attention(q, k, v)",
        "attention in which each position sees itself and those before it",
        causal_attention,
        _causal_trials,
        {
            **{
                text: lambda q, k, v, function=function: function(q, k, v, _causal(q.shape[-2]))
                for text, function in ATTENTION_MISTAKES.items()
            },
            "there is no causal mask": attention,
            "off by one: the next position is visible": lambda q, k, v: attention(q, k, v, _causal(q.shape[-2], 1)),
            "off by one: a position does not see itself": lambda q, k, v: _strictly_causal(q, k, v),
            "the mask is inverted: positions see the future": lambda q, k, v: attention(
                q, k, v, _causal(q.shape[-2]).T
            ),
            "the mask is applied after the softmax, so that rows do not sum to one": lambda q, k, v: _masked_after(
                q, k, v, _causal(q.shape[-2])
            ),
            "masked scores are 0, not −∞": lambda q, k, v: softmax(_scores(q, k) * _causal(q.shape[-2])) @ v,
            "softmax over the queries: the wrong axis": lambda q, k, v: _softmax_over_queries(
                q, k, v, _causal(q.shape[-2])
            ),
        },
        required=3,
    ),
    "multi-head-attention": CodeReference(
        "multi_head_attention(x, W_q, W_k, W_v, W_o, num_heads)",
        "self-attention of the rows of x; weights are (d, d), used as x @ W; heads are consecutive columns",
        multi_head_attention,
        _multi_head_trials,
        {
            "the scale is 1/√d, not 1/√(d/heads)": _unsplit_scale,
            "the output projection W_o is missing": lambda x, q, k, v, o, n: multi_head_attention(
                x, q, k, v, np.eye(len(o)), n
            ),
            "one head of full width, not several": lambda x, q, k, v, o, n: multi_head_attention(x, q, k, v, o, 1),
            "the weights are used transposed": lambda x, q, k, v, o, n: multi_head_attention(x, q.T, k.T, v.T, o.T, n),
            "the scale is missing": lambda x, q, k, v, o, n: multi_head_attention(
                x, q * np.sqrt(x.shape[-1] / n), k, v, o, n
            ),
        },
        required=6,
    ),
    "layer-norm": CodeReference(
        "layer_norm(x, gamma, beta, eps=1e-5)",
        "layer normalization over the last axis",
        layer_norm,
        _layer_norm_trials,
        {
            "normalized over the rows of the batch: the wrong axis": _norm_over(0),
            "normalized over all entries together": _norm_over(None),
            "the variance is that of a sample (n − 1)": lambda x, g, b, eps=1e-5: (
                g * (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True, ddof=1) + eps) + b
            ),
            "divided by the standard deviation plus ε, not by √(variance + ε)": lambda x, g, b, eps=1e-5: (
                g * (x - x.mean(-1, keepdims=True)) / (x.std(-1, keepdims=True) + eps) + b
            ),
            "divided by the variance, not by its root": lambda x, g, b, eps=1e-5: (
                g * (x - x.mean(-1, keepdims=True)) / (x.var(-1, keepdims=True) + eps) + b
            ),
            "the mean is not subtracted": lambda x, g, b, eps=1e-5: g * x / np.sqrt(x.var(-1, keepdims=True) + eps) + b,
            "ε is missing": lambda x, g, b, eps=1e-5: layer_norm(x, g, b, 0),
            "γ and β are not used": lambda x, g, b, eps=1e-5: layer_norm(x, 1, 0, eps),
            "β is missing": lambda x, g, b, eps=1e-5: layer_norm(x, g, 0, eps),
            "γ is missing": lambda x, g, b, eps=1e-5: layer_norm(x, 1, b, eps),
        },
        required=3,
    ),
    "rms-norm": CodeReference(
        "rms_norm(x, gamma, eps=1e-6)",
        "RMS normalization over the last axis",
        rms_norm,
        _rms_trials,
        {
            "the mean is subtracted": lambda x, g, eps=1e-6: (
                g * (x - x.mean(-1, keepdims=True)) / np.sqrt((x**2).mean(-1, keepdims=True) + eps)
            ),
            "it is layer normalization": lambda x, g, eps=1e-6: layer_norm(x, g, 0, eps),
            "divided by the root of the sum, not of the mean": lambda x, g, eps=1e-6: (
                g * x / np.sqrt((x**2).sum(-1, keepdims=True) + eps)
            ),
            "divided by the mean square, not by its root": lambda x, g, eps=1e-6: (
                g * x / ((x**2).mean(-1, keepdims=True) + eps)
            ),
            "γ is missing": lambda x, g, eps=1e-6: rms_norm(x, 1, eps),
            "the wrong axis": lambda x, g, eps=1e-6: g * x / np.sqrt((x**2).mean(0, keepdims=True) + eps),
        },
        required=2,
    ),
    "rotary": CodeReference(
        "rotary(x, base=10000.0)",
        "rows of x (T, d) rotated by their positions 0, 1, 2 …",
        rotary,
        _rotary_trials,
        {
            "positions are counted from 1": lambda x, base=1e4: rotary(x, base, 1),
            "rotated in the other direction": lambda x, base=1e4: rotary(x, base, 0, -1),
            "halves are paired, and rotated in the other direction": lambda x, base=1e4: rotary_halves(x, base, 0, -1),
            "halves are paired, and positions are counted from 1": lambda x, base=1e4: rotary_halves(x, base, 1),
            "the exponent is i/d, not 2i/d": lambda x, base=1e4: rotary(x, base**0.5),
            "nothing is rotated": lambda x, base=1e4: x,
        },
        {"the first half of the entries is paired with the second": rotary_halves},
    ),
    "sinusoidal": CodeReference(
        "sinusoidal(length, width)",
        "sinusoidal position encodings (length, width), sines and cosines in turns",
        sinusoidal,
        lambda random: [Trial((5, 4)), Trial((3, 8)), Trial((10, 6))],
        {
            "sine and cosine are exchanged": lambda n, d: sinusoidal(n, d).reshape(n, -1, 2)[..., ::-1].reshape(n, d),
            "the exponent is i/d, not 2i/d": _sinusoidal_exponent,
            "positions are counted from 1": lambda n, d: sinusoidal(n + 1, d)[1:],
        },
        {"all sines come before all cosines": _sinusoidal_halves},
        required=2,
    ),
    "merge-pair": CodeReference(
        "merge_pair(tokens, pair)",
        "a merge of byte-pair encoding: each occurrence of the pair becomes one token, from left to right",
        merge_pair,
        _merge_trials,
        {
            "the second token of a merged pair is kept": _merge_keeping_second,
            "only the first occurrence is merged": _merge_first_only,
            "off by one: a last token that is not merged is lost": _merge_without_last,
        },
        required=2,
    ),
    "count-pairs": CodeReference(
        "count_pairs(tokens)",
        "how often each pair of neighbouring tokens occurs, as a dict",
        count_pairs,
        _pair_trials,
        {
            "each pair counts once": lambda tokens: dict.fromkeys(count_pairs(tokens), 1),
            "off by one: the last pair is not counted": lambda tokens: count_pairs(tokens[:-1]),
        },
    ),
    "adamw": CodeReference(
        "adamw(theta, gradient, m, v, t, lr, beta1, beta2, eps, weight_decay)",
        "a step of AdamW; return theta, m and v; t counts from 1",
        adamw,
        _adamw_trials,
        {
            "the bias correction is missing": _adamw_uncorrected,
            "weight decay is added to the gradient: that is Adam with L2": _adamw_l2,
            "weight decay is missing": lambda *a: _step(*a[:-1], 0.0),
            "weight decay is not multiplied by the learning rate": _adamw_unscaled_decay,
            "β1 and β2 are exchanged": _adamw_exchanged,
            "ε is inside the root": _adamw_eps_in_root,
            "the bias correction uses t + 1": _adamw_first_step,
            "the step goes up the gradient": _adamw_ascent,
        },
        required=10,
    ),
    "gelu": CodeReference(
        "gelu(x)",
        "Gaussian error linear unit",
        gelu,
        lambda random: [Trial((3 * random.normal(size=shape),)) for shape in ((6,), (3, 4))],
        {
            "√2 is missing in erf(x/√2)": _gelu_without_root,
            "it is SiLU: x·σ(x)": lambda x: x / (1 + np.exp(-x)),
            "it is ReLU": lambda x: np.maximum(x, 0),
            "the factor x is missing": lambda x: gelu(x) / x,
            "the factor ½ is missing": lambda x: 2 * gelu(x),
        },
        {"the approximation with tanh": _gelu_tanh},
    ),
    "top-p": CodeReference(
        "top_p(probabilities, p)",
        "the renormalized distribution over the smallest set of most likely tokens whose mass is at least p",
        top_p,
        _top_p_trials,
        {
            "not renormalized": lambda probabilities, p: _nucleus(probabilities, p, 0, normalize=False),
            "off by one: the token that reaches p is left out": lambda probabilities, p: _nucleus(probabilities, p, -1),
            "off by one: a token too many is kept": lambda probabilities, p: _nucleus(probabilities, p, 1),
            "tokens with a probability of at least p are kept, not the smallest set": lambda probabilities, p: (
                _threshold(probabilities, p)
            ),
        },
        required=2,
    ),
    "edit-distance": CodeReference(
        "edit_distance(a, b)",
        "Levenshtein distance of two texts, each operation at cost 1",
        edit_distance,
        _edit_trials,
        {
            "a substitution costs 2": lambda a, b: _edit_distance(a, b, 2),
            "substitutions are free": lambda a, b: _edit_distance(a, b, 0),
            "it is the Hamming distance": lambda a, b: (
                sum(x != y for x, y in zip(a, b, strict=False)) + abs(len(a) - len(b))
            ),
        },
        required=2,
    ),
    "perplexity": CodeReference(
        "perplexity(log_probabilities)",
        "perplexity of tokens with these natural log-probabilities",
        perplexity,
        lambda random: [Trial((-random.random(n) * 4,)) for n in (5, 1, 9)],
        {
            "the sum is not divided by the number of tokens": lambda x: np.exp(-np.sum(x)),
            "the sign is wrong": lambda x: np.exp(np.mean(x)),
            "it is the cross-entropy: the exponential is missing": lambda x: -np.mean(x),
            "2 is raised to natural logarithms": lambda x: 2 ** (-np.mean(x)),
            "the mean of the perplexities of the tokens": lambda x: np.mean(np.exp(-x)),
        },
    ),
}


def _strictly_causal(q: Any, k: Any, v: Any) -> Any:
    """Return attention to earlier positions only; the first row, which sees nothing, is NaN."""
    with np.errstate(invalid="ignore"):
        return attention(q, k, v, _causal(q.shape[-2], -1))


def _threshold(probabilities: Any, p: float) -> Any:
    """Return the renormalized probabilities of at least p."""
    selected = np.where(probabilities >= p, probabilities, 0)
    with np.errstate(invalid="ignore"):
        return selected / selected.sum()
