"""What can be claimed of each worked case, and what common slips make of it."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import islice

import numpy as np

from lemma.checking.worked.answers import AnyQuantity, Array, Labels, Quantity, WordQuantity, numbered, quantity
from lemma.checking.worked.attention import Steps, WorkedAttention, WorkedCross
from lemma.checking.worked.bpe import Merging, Names, Pair
from lemma.checking.worked.case import LstmCase, largest
from lemma.checking.worked.graph import SYMBOLS, WorkedGraph
from lemma.checking.worked.lstm import SYMBOLS as LSTM_SYMBOLS
from lemma.checking.worked.lstm import Values, WorkedLstm, sigmoid, step_backward
from lemma.checking.worked.matching import WorkedMatching

# The quantities of attention and cross-attention worked by hand, and what usual slips make of them.


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


# The quantities of byte-pair encoding worked by hand, for every order in which ties may be merged.


MOST_ORDERS, MOST_STEPS = 200, 300
END = r"\w"
MINIMUM = 2


def of_byte_pairs(text: str) -> Iterator[list[AnyQuantity]]:
    """The quantities under each order of ties, the rule of Lemma first; at most 200 orders."""
    words = Counter(text.split())
    for order in islice(_orders(words, []), MOST_ORDERS):
        yield _quantities(words, order)


def _replayed(words: Counter[str], order: list[Pair]) -> Merging:
    merging = Merging(words, end_of_word=True)
    for pair in order:
        merging.merge(pair)
    return merging


def _orders(words: Counter[str], begun: list[Pair]) -> Iterator[list[Pair]]:
    """Every order of merges that always takes a most frequent pair."""
    count, ties = _replayed(words, begun).most_frequent()
    if count < MINIMUM or len(begun) >= MOST_STEPS:
        yield begun
        return
    for pair in ties:
        yield from _orders(words, [*begun, pair])


def _quantities(words: Counter[str], order: list[Pair]) -> list[AnyQuantity]:
    merging = _replayed(words, order)
    names = Names(merging, END, letters=True)
    found: list[AnyQuantity] = []
    shown = Merging(words, end_of_word=True)
    for number, pair in enumerate(order, 1):
        found += _step(shown, pair, number, names)
        shown.merge(pair)
    found.append(_counts(shown, len(order) + 1, names))
    merges = tuple(_spellings(pair, names) for pair in order)
    numbers = tuple(map(str, range(1, len(order) + 1)))
    found.append(WordQuantity("merges", merges, (numbers,), "the pairs in the order of merging"))
    cut = tuple(
        (_of_byte_pairs_joined(row, names.names), _of_byte_pairs_joined(row, names.spelled)) for row in merging.words
    )
    found.append(WordQuantity("segmentation", cut, (tuple(words),), "each word in its symbols", ("words",)))
    found.append(quantity("steps", len(order), None, "how many merges"))
    found.append(quantity("symbols", merging.symbols, None, "symbols of the whole text at the end"))
    return found


def _step(merging: Merging, pair: Pair, number: int, names: Names) -> list[AnyQuantity]:
    symbol = names.names[merging.first_merged + number - 1]
    return [
        _counts(merging, number, names),
        WordQuantity(f"merge{number}", (_spellings(pair, names),), (), f"the pair of step {number}", (symbol,)),
        quantity(f"count{number}", merging.counts[pair], None, "how often it occurs"),
    ]


def _counts(merging: Merging, number: int, names: Names) -> AnyQuantity:
    ranked = merging.ranked(None)
    labels = tuple(_of_byte_pairs_joined(pair, names.names).replace(" ", "") for pair, _ in ranked)
    return quantity(
        f"counts{number}", np.array([count for _, count in ranked]), (labels,), f"all pairs before step {number}"
    )


def _spellings(pair: Pair, names: Names) -> Labels:
    """By letters, spelled out, and by letters without a blank."""
    named = _of_byte_pairs_joined(pair, names.names)
    return (named, _of_byte_pairs_joined(pair, names.spelled), named.replace(" ", ""))


def _of_byte_pairs_joined(symbols: list[int] | Pair, names: list[str]) -> str:
    return " ".join(names[one] for one in symbols)


# The quantities of a graph worked by hand, and what usual slips make of them.


NAMES = {"adjacency": "A", "loops": "A_tilde", "symmetric": "A_hat", "rows": "A_rows"}
"""What each matrix is called where its sign is hard to type."""
OTHERS = {"loops": ("Ã", "A~"), "symmetric": ("Â", "A^"), "rows": ("D̃⁻¹Ã", "D^-1A", "D_inv_A")}


def of_graph(worked: WorkedGraph) -> list[AnyQuantity]:
    """The four matrices, degrees, row sums, norms, what powers do to features, and the layer."""
    steps, nodes = worked.steps, worked.given.names
    edges = steps.adjacency.sum(axis=1)
    without = {"the loop that Ã adds is not counted": edges}
    roots = {"the loop that Ã adds is not counted": _inverse(edges), "1/d̃ in place of 1/√d̃": 1 / steps.degrees}
    found: list[AnyQuantity] = [
        quantity("degrees", steps.degrees, (nodes,), "d̃, the row sums of Ã", ("d", "d̃", "d_tilde", "D"), without),
        quantity("roots", _inverse(steps.degrees), (nodes,), "1/√d̃", ("1/√d̃", "inverse_roots"), roots),
        *_matrices(worked),
        *_layer(worked),
    ]
    return found


def _matrices(worked: WorkedGraph) -> Iterator[AnyQuantity]:
    steps, nodes = worked.steps, worked.given.names
    for key, matrix in steps.matrices.items():
        name, sign = NAMES[key], SYMBOLS[key]
        others, slips = OTHERS.get(key, ()), _of_graph_slips(key, steps.adjacency)
        traits, powers = steps.traits[key], tuple(map(str, range(steps.powers + 1)))
        yield quantity(name, matrix, (nodes, nodes), sign if sign != name else "adjacency", others, slips)
        sums = {said: made.sum(axis=1) for said, made in slips.items()}
        if key == "symmetric":
            sums["the rows of Â are not normalised; those of D̃⁻¹Ã are"] = np.ones(len(nodes))
        yield quantity(f"sum_{name}", matrix.sum(axis=1), (nodes,), f"row sums of {sign}", _also("sum", others), sums)
        yield quantity(f"norm_{name}", traits.norm, None, f"spectral norm of {sign}", _also("norm", others))
        yield quantity(
            f"radius_{name}", traits.radius, None, f"largest |eigenvalue| of {sign}", _also("radius", others)
        )
        scale = steps.scales[key]
        yield quantity(f"size_{name}", scale[:, 0], (powers,), f"‖MᵏX‖ for k = 0 …, M = {sign}", _also("size", others))
        yield quantity(f"largest_{name}", scale[:, 1], (powers,), "its largest entry", _also("largest", others))


def _also(kind: str, others: tuple[str, ...]) -> list[str]:
    return [f"{kind}_{other}" for other in others]


def _layer(worked: WorkedGraph) -> Iterator[AnyQuantity]:
    weights = worked.given.layer
    if weights is None:
        return
    steps, matrices = worked.steps, worked.steps.matrices
    through = steps.features @ weights
    slips = {
        "Ã in place of Â": matrices["loops"] @ through,
        "A in place of Â: no loops, not normalised": matrices["adjacency"] @ through,
        "D̃⁻¹Ã in place of Â": matrices["rows"] @ through,
        "X W alone: Â is left out": through,
    }
    labels = (worked.given.names, numbered(weights.shape[1]))
    yield quantity("layer", steps.layer(weights), labels, "Â X W", ("AXW", "ÂXW", "Y"), slips)


def _of_graph_slips(key: str, adjacency: Array) -> dict[str, Array]:
    """Â and D̃⁻¹Ã made without loops, or with the degrees of A."""
    edges, loops = adjacency.sum(axis=1), adjacency + np.eye(len(adjacency))
    roots, shares = np.outer(_inverse(edges), _inverse(edges)), _inverse(edges)[:, None] ** 2
    if key == "symmetric":
        return {"A in place of Ã: no loops": adjacency * roots, "degrees of A in place of those of Ã": loops * roots}
    if key == "rows":
        return {"A in place of Ã: no loops": adjacency * shares, "degrees of A in place of those of Ã": loops * shares}
    return {}


def _inverse(degrees: Array) -> Array:
    """1/√d, and 0 for a node without neighbours."""
    return np.divide(1.0, np.sqrt(degrees), out=np.zeros_like(degrees), where=degrees > 0)


# The quantities of an LSTM step worked by hand, and what usual slips make of them.


MEANINGS = {
    "stacked": "[a_prev; x]",
    "kept": "Γ_f∗c_prev",
    "added": "Γ_u∗c̃",
    "c_t": "Γ_f∗c_prev + Γ_u∗c̃",
    "tanh_c": "tanh(c_t)",
    "a_t": "Γ_o∗tanh(c_t)",
    "z": "W_y a_t + b_y",
    "exponentials": "exp(z)",
    "y_hat": "softmax(z)",
    "loss": "−Σ y log ŷ",
}
LSTM_SPELLINGS = {
    "candidate": ("c_tilde", "c̃"),
    "a_t": ("a", "h", "h_t"),
    "c_t": ("c",),
    "exponentials": ("exp",),
    "dcandidate": ("dc_tilde", "dc̃"),
    "dpre_c": ("dpre_candidate",),
    "da_prev": ("dh_prev",),
    "da": ("da_t", "dh", "dh_t"),
    "dc": ("dc_t",),
}


def of_lstm(worked: WorkedLstm) -> list[AnyQuantity]:
    """Everything that the step makes, and every gradient where there is something to go back from."""
    values = {**worked.given, **worked.forward}
    gradients = worked.backward or (step_backward(values) if _goes_back(worked.case) else {})
    slips = {**_forward_slips(values), **_backward_slips({**values, **gradients})}
    return [
        _of_lstm_quantity(name, array, worked.case, values, slips)
        for name, array in {**worked.forward, **gradients}.items()
    ]


def _goes_back(case: LstmCase) -> bool:
    return case.y is not None or case.da_next is not None or case.dc_next is not None


def _of_lstm_quantity(
    name: str, array: Array, case: LstmCase, values: Values, slips: Mapping[str, Mapping[str, Array]]
) -> AnyQuantity:
    own = {said: made for said, made in slips.get(name, {}).items() if made.shape == array.shape}
    written = case.written(name)
    others = {name, *LSTM_SPELLINGS.get(name, ()), *_signs(name)} - {written}
    meaning = MEANINGS.get(name, "")
    if case.letter == "h":
        meaning = meaning.replace("a_", "h_")
    return quantity(written, array, _labels(name, array, case, values), meaning, sorted(others), own)


def _signs(name: str) -> tuple[str, ...]:
    """The same with Greek letters and hats."""
    plain = name.removeprefix("d")
    lead = name[: len(name) - len(plain)]
    return (lead + LSTM_SYMBOLS[plain],) if plain in LSTM_SYMBOLS else ()


def _labels(name: str, array: Array, case: LstmCase, values: Values) -> tuple[tuple[str, ...], ...] | None:
    """Columns of a gate's weights are those of [a_prev; x]; everything else is counted."""
    stacked = "stacked" in values and array.ndim and array.shape[-1] == len(values["stacked"])
    if not stacked or name.endswith("_y"):
        return None
    inputs = (*numbered(len(values["a_prev"]), f"{case.letter}_"), *numbered(len(values["x"]), "x_"))
    return (numbered(len(array)), inputs) if array.ndim == 2 else (inputs,)


def _forward_slips(values: Values) -> dict[str, dict[str, Array]]:
    u, f, o, c = (values[name] for name in ("gamma_u", "gamma_f", "gamma_o", "candidate"))
    before, cell = values["c_prev"], values["c_t"]
    swapped = u * before + f * c
    found = {
        "c_t": {"Γ_u and Γ_f are exchanged": swapped, "the gates are left out": before + c},
        "a_t": {
            "tanh is left out: Γ_o∗c_t": o * cell,
            "Γ_o is left out: tanh(c_t)": np.tanh(cell),
            "tanh is taken of the whole: tanh(Γ_o∗c_t)": np.tanh(o * cell),
            "c_t with Γ_u and Γ_f exchanged": o * np.tanh(swapped),
        },
    }
    for letter in "ufo":
        if f"pre_{letter}" in values:
            found[f"gamma_{letter}"] = {"tanh in place of σ": np.tanh(values[f"pre_{letter}"])}
    if "pre_c" in values:
        found["candidate"] = {"σ in place of tanh": sigmoid(values["pre_c"])}
    if "loss" in values:
        found["loss"] = {"the logarithm to base 2": values["loss"] / np.log(2), "the sign": -values["loss"]}
    return found


def _backward_slips(values: Values) -> dict[str, dict[str, Array]]:
    if "dc" not in values:
        return {}
    candidate, found = values["candidate"], {}
    found["dpre_c"] = {"(1 − c̃) in place of (1 − c̃²)": values["dcandidate"] * (1 - candidate)}
    if "pre_c" in values:
        found["dpre_c"]["(1 − pre_c) in place of (1 − c̃²)"] = values["dcandidate"] * (1 - values["pre_c"])
    for letter in "ufo":
        slope = values[f"slope_{letter}"]
        found[f"dpre_{letter}"] = {
            f"the factor Γ_{letter}∗(1−Γ_{letter}) counts twice": values[f"dpre_{letter}"] * slope
        }
    for letter in "ufoc":
        if f"db_{letter}" in values:
            found[f"db_{letter}"] = found[f"dpre_{letter}"]
    found["dc"] = {"1 − tanh²(c_t) is left out": values["da"] * values["gamma_o"] + values["dc_next"]}
    return found


# The quantities of a search worked by hand, and what usual slips make of them.


def of_matching(worked: WorkedMatching) -> list[AnyQuantity]:
    """P, Q, their lengths, scores, cosines, and who fits whom."""
    steps = worked.steps
    width, pair = numbered(steps.image_map.shape[1]), (steps.images, steps.sentences)
    lengths = steps.image_lengths[:, None] * steps.sentence_lengths[None]
    half = {"divided by |p|² |q|²: the lengths count once each": steps.scores / lengths**2}
    half["divided by |p| alone"] = steps.scores / steps.image_lengths[:, None]
    half["divided by |q| alone"] = steps.scores / steps.sentence_lengths[None]
    return [
        quantity("P", steps.image_vectors, (steps.images, width), "I·W_i", ("p", "image_vectors")),
        quantity("Q", steps.sentence_vectors, (steps.sentences, width), "T·W_t", ("q", "sentence_vectors")),
        quantity("scores", steps.scores, pair, "P·Qᵀ", ("score", "S", "p·q", "PQ")),
        quantity("length_p", steps.image_lengths, (steps.images,), "|p|", ("|p|", "norm_p")),
        quantity("length_q", steps.sentence_lengths, (steps.sentences,), "|q|", ("|q|", "norm_q")),
        quantity("cosines", steps.cosines, pair, "p·q / (|p| |q|)", ("cosine", "cos"), half),
        *_winners(worked),
    ]


def _winners(worked: WorkedMatching) -> list[AnyQuantity]:
    images, sentences = worked.steps.images, worked.steps.sentences
    found = (("", images, worked.of_images, "sentence"), ("_image", sentences, worked.of_sentences, "image"))
    words: list[AnyQuantity] = []
    for end, labels, matches, other in found:
        product = tuple(one.by_product for one in matches)
        cosine = tuple(one.by_cosine for one in matches)
        words.append(WordQuantity(f"best{end}", product, (labels,), f"{other} of the largest product"))
        words.append(WordQuantity(f"best{end}_cosine", cosine, (labels,), f"{other} of the largest cosine"))
    return words
