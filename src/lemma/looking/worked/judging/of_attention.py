"""The quantities of attention and cross-attention worked by hand, and what usual slips make of them."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from lemma.looking.worked.alike import largest
from lemma.looking.worked.cross import WorkedCross
from lemma.looking.worked.judging.quantity import AnyQuantity, Array, Quantity, WordQuantity, numbered, quantity
from lemma.looking.worked.steps import Steps
from lemma.looking.worked.worked_attention import WorkedAttention

SPELLINGS: Mapping[str, tuple[str, ...]] = {
    "x": ("encodings", "inputs"),
    "y": ("source",),
    "q": ("queries", "query", "Q"),
    "k": ("keys", "key", "K"),
    "v": ("values", "value", "V"),
    "qk": ("q·k", "q.k", "products", "product", "QK"),
    "score": ("scores", "s"),
    "exp": ("exponentials", "exponential", "exp(score)"),
    "sum": ("sums", "Z"),
    "alpha": ("α", "weights", "weight"),
    "output": ("outputs", "out"),
    "preferred": ("prefers", "most", "argmax"),
    "cosine": ("cosines", "cos"),
    "preferred_cosine": ("prefers_cosine",),
}


def of_attention(worked: WorkedAttention) -> list[AnyQuantity]:
    """All of a case: pass by pass, sentence by sentence. `sentence2.` begins the names of the second."""
    found: list[AnyQuantity] = []
    for number, sentence in enumerate(worked.sentences, 1):
        several = len(sentence.passes) > 1
        for place, steps in enumerate(sentence.passes, 1):
            for one in of_steps(steps):
                found.append(_named(one, str(place), several, number))
    return found


def of_cross(worked: WorkedCross) -> list[AnyQuantity]:
    """All of a case of cross-attention."""
    steps = worked.steps
    best = tuple(one.by_cosine for one in worked.preferences)
    return [
        *of_steps(steps, cross=True),
        quantity("cosine", worked.cosines, (steps.rows, steps.columns), "cosine of q and k", SPELLINGS["cosine"]),
        WordQuantity("preferred_cosine", best, (steps.rows,), "nearest by cosine", SPELLINGS["preferred_cosine"]),
    ]


def of_steps(steps: Steps, cross: bool = False) -> Iterator[AnyQuantity]:
    """One pass: x, q, k, v, q·k, scores, exponentials, sums, weights, outputs, and what each row attends to most."""
    rows, columns, formula = steps.rows, steps.columns, steps.maps.formula
    square = (rows, columns)
    yield _vectors("x", steps.inputs, rows, "vectors that look" if cross else "encodings")
    if cross:
        yield _vectors("y", steps.source, columns, "vectors looked at")
    yield _vectors("q", steps.queries, rows, formula("q"))
    yield _vectors("k", steps.keys, columns, formula("k"))
    yield _vectors("v", steps.values, columns, formula("v"))
    slips = _slips(steps)
    over = f"/√{steps.keys.shape[1]}" if steps.maps.scaled else ""
    yield _quantity("qk", steps.products, square, "q·k", slips)
    yield _quantity("score", steps.scores, square, f"q·k{over}", slips)
    shifted = " − row's largest" if steps.shifted else ""
    yield _quantity("exp", steps.exponentials, square, f"exp(score{shifted})", slips)
    yield _quantity("sum", steps.sums, (rows,), "sum of a row's exponentials", slips)
    yield _quantity("alpha", steps.weights, square, "weights: exp / sum", slips)
    yield _quantity("output", steps.outputs, (rows, numbered(steps.values.shape[1])), "Σ α·v", slips)
    best = tuple(largest(columns, weights) for weights in steps.weights)
    yield WordQuantity("preferred", best, (rows,), "what each attends to most", SPELLINGS["preferred"])


def _vectors(name: str, values: Array, labels: tuple[str, ...], meaning: str) -> Quantity:
    return quantity(name, values, (labels, numbered(values.shape[1])), meaning, SPELLINGS[name])


def _quantity(
    name: str,
    values: Array,
    labels: tuple[tuple[str, ...], ...],
    meaning: str,
    slips: Mapping[str, Mapping[str, Array]],
) -> Quantity:
    own = {said: made for said, made in slips.get(name, {}).items() if made.shape == values.shape}
    return quantity(name, values, labels, meaning, SPELLINGS[name], own)


def _slips(steps: Steps) -> dict[str, dict[str, Array]]:
    """What comes out by each slip, by the quantity in which it is seen."""
    found: dict[str, dict[str, Array]] = {}
    for said, divisor in _other_divisors(steps).items():
        made = _softmax(steps.products / divisor, steps.allowed)
        found |= _joined(found, said, score=steps.products / divisor, exp=np.exp(steps.products / divisor))
        found |= _joined(found, said, sum=np.exp(steps.products / divisor).sum(axis=1))
        found |= _joined(found, said, alpha=made, output=made @ steps.values)
    turned = steps.exponentials / steps.exponentials.sum(axis=0)
    axis = "the softmax is taken down the columns; each row must sum to one"
    found |= _joined(found, axis, alpha=turned, output=turned @ steps.values)
    found |= _joined(found, "the weights are not normalised: divide by the sum of the row", output=_raw(steps))
    if not steps.allowed.all():
        open_weights = _softmax(steps.products / steps.maps.divisor, np.ones_like(steps.allowed))
        found |= _joined(found, "later words are not hidden", alpha=open_weights, output=open_weights @ steps.values)
    return found


def _raw(steps: Steps) -> Array:
    return steps.exponentials @ steps.values


def _other_divisors(steps: Steps) -> dict[str, float]:
    width = steps.keys.shape[1]
    if not steps.maps.scaled:
        return {f"scores are divided by √{width}; this case does not scale": width**0.5}
    return {
        f"scores are not divided by √{width}": 1.0,
        f"scores are divided by {width} in place of √{width}": float(width),
        f"scores are multiplied by √{width}; they must be divided": width**-0.5,
    }


def _softmax(scores: Array, allowed: np.ndarray) -> Array:
    scores = np.where(allowed, scores, -np.inf)
    made = np.exp(scores - scores.max(axis=1, keepdims=True))
    return made / made.sum(axis=1, keepdims=True)


def _joined(found: dict[str, dict[str, Array]], said: str, **made: Array) -> dict[str, dict[str, Array]]:
    return {name: {**found.get(name, {}), said: values} for name, values in made.items()}


def _named(one: AnyQuantity, place: str, several: bool, sentence: int) -> AnyQuantity:
    """With the number of its pass, and of its sentence where it is not the first."""
    own, numbered_names = (one.name, *one.spellings), tuple(f"{name}{place}" for name in (one.name, *one.spellings))
    names = numbered_names if several else (*own, *numbered_names)
    prefixed = tuple(f"sentence{sentence}.{name}" for name in names)
    chosen = (*names, *prefixed) if sentence == 1 else prefixed
    return replace(one, name=chosen[0], spellings=chosen[1:])
