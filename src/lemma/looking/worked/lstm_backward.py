"""One LSTM step backward (problem C2): the gradient of everything, by the formulas of the derivation by hand."""

import numpy as np

from lemma.looking.worked.lstm_given import Values


def step_backward(values: Values) -> Values:
    """The gradients by name, d before it, in the order in which they arise; `values` are all those of the forward step.

    da = W_yᵀ(ŷ−y) + da_next, dc = da∗Γ_o∗(1−tanh²c) + dc_next, dc̃ = dc∗Γ_u, d(pre-c̃) = dc̃∗(1−c̃²),
    d(pre-Γ) = dΓ∗Γ∗(1−Γ), dW = d(pre) [a;x]ᵀ, db = d(pre). What the case does not give has no gradient.
    """
    made = _output(values) | _states(values)
    made |= _through_gates(values, made)
    return made | (_weights(values, made) if "stacked" in values else {})


def _output(values: Values) -> Values:
    """The output layer's gradients; without a target there is nothing to learn from."""
    if "y" not in values:
        return {}
    error = values["y_hat"] - values["y"]
    return {"dz": error, "dW_y": np.outer(error, values["a_t"]), "db_y": error}


def _states(values: Values) -> Values:
    """The whole gradients of a_t and c_t: what comes from the loss, and what arrives from the next step."""
    here = values["W_y"].T @ (values["y_hat"] - values["y"]) if "y" in values else np.zeros_like(values["a_t"])
    hidden = here + values["da_next"]
    slope = 1 - values["tanh_c"] ** 2
    through = hidden * values["gamma_o"] * slope
    state = through + values["dc_next"]
    before = {"dc_prev": state * values["gamma_f"]}
    return {"da_here": here, "da": hidden, "slope_c": slope, "dc_here": through, "dc": state, **before}


def _through_gates(values: Values, made: Values) -> Values:
    """Through the gates to what stands before their sigmoid or tanh."""
    gates = {
        "dgamma_u": made["dc"] * values["candidate"],
        "dgamma_f": made["dc"] * values["c_prev"],
        "dgamma_o": made["da"] * values["tanh_c"],
        "dcandidate": made["dc"] * values["gamma_u"],
    }
    slopes = {f"slope_{letter}": values[f"gamma_{letter}"] * (1 - values[f"gamma_{letter}"]) for letter in "ufo"}
    before = {f"dpre_{letter}": gates[f"dgamma_{letter}"] * slopes[f"slope_{letter}"] for letter in "ufo"}
    slopes["slope_candidate"] = 1 - values["candidate"] ** 2
    return {**gates, **slopes, **before, "dpre_c": gates["dcandidate"] * slopes["slope_candidate"]}


def _weights(values: Values, made: Values) -> Values:
    """The weights' and biases' gradients, and what goes on to the step before and to the input."""
    weights = {f"dW_{letter}": np.outer(made[f"dpre_{letter}"], values["stacked"]) for letter in "ufoc"}
    biases = {f"db_{letter}": made[f"dpre_{letter}"] for letter in "ufoc"}
    parts = {f"back_{letter}": values[f"W_{letter}"].T @ made[f"dpre_{letter}"] for letter in "ufoc"}
    stacked = sum(parts.values(), np.zeros_like(values["stacked"]))
    width = len(values["a_prev"])
    return {**weights, **biases, **parts, "dstacked": stacked, "da_prev": stacked[:width], "dx": stacked[width:]}
