"""One LSTM step forward (problems C1 and E9), with every number on the way."""

import numpy as np
from jaxtyping import Float

from lemma.errors import InputError
from lemma.looking.worked.lstm_given import Values
from lemma.looking.worked.steps import LARGE, LARGEST

Vector = Float[np.ndarray, "width"]


def step_forward(given: Values, where: str) -> Values:
    """c_t = Γ_f∗c_{t−1} + Γ_u∗c̃, a_t = Γ_o∗tanh(c_t), ŷ = softmax(W_y a_t + b_y), all by name, in their order.

    >>> gates = {"gamma_u": 0.5, "gamma_f": 0.5, "gamma_o": 1.0, "candidate": 0.4, "c_prev": 0.2}
    >>> made = step_forward({name: np.array([value]) for name, value in gates.items()}, "here")
    >>> made["c_t"].round(3).tolist(), made["a_t"].round(3).tolist()
    ([0.3], [0.291])
    """
    with np.errstate(over="ignore", invalid="ignore"):
        made = _gates(given) if "W_u" in given else {}
        made |= _states({**given, **made})
        made |= _output({**given, **made}) if "W_y" in given else {}
    for name, values in made.items():
        if not np.abs(values).max() <= LARGEST:
            raise InputError(f"{where}: {name} grows past {LARGEST:.0e}, too large to work with. Give smaller numbers.")
    return made


def _gates(given: Values) -> Values:
    """The three gates and the candidate, from what they read: a and x, one stacked on the other."""
    stacked = np.concatenate([given["a_prev"], given["x"]])
    sums = {f"sum_{letter}": given[f"W_{letter}"] @ stacked for letter in "ufoc"}
    before = {f"pre_{letter}": sums[f"sum_{letter}"] + given[f"b_{letter}"] for letter in "ufoc"}
    gates = {f"gamma_{letter}": sigmoid(before[f"pre_{letter}"]) for letter in "ufo"}
    return {"stacked": stacked, **sums, **before, **gates, "candidate": np.tanh(before["pre_c"])}


def _states(values: Values) -> Values:
    kept = values["gamma_f"] * values["c_prev"]
    added = values["gamma_u"] * values["candidate"]
    state = kept + added
    squashed = np.tanh(state)
    return {"kept": kept, "added": added, "c_t": state, "tanh_c": squashed, "a_t": values["gamma_o"] * squashed}


def _output(values: Values) -> Values:
    """The softmax; with a target its cross-entropy, −Σ y log ŷ."""
    logits = values["W_y"] @ values["a_t"] + values["b_y"]
    shifted = logits - logits.max()
    logarithms = shifted - np.log(np.exp(shifted).sum())
    made = {"z": logits, "exponentials": exponentials(logits), "y_hat": np.exp(logarithms)}
    # a class of no share adds nothing, however unlikely it is
    return made | ({"loss": -np.dot(values["y"], logarithms)} if "y" in values else {})


def exponentials(logits: Vector) -> Vector:
    """exp(z), or exp(z − the largest) where numbers are large, which leaves the shares as they are."""
    return np.exp(logits - logits.max() if is_shifted(logits) else logits)


def is_shifted(logits: Vector) -> bool:
    """Whether the largest is taken off before exponentials."""
    return bool(np.abs(logits).max() > LARGE)


def sigmoid(values: Vector) -> Vector:
    """1 / (1 + exp(−x)), without overflow on either side."""
    return np.exp(-np.logaddexp(0.0, -values))
