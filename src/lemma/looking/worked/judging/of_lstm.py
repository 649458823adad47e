"""The quantities of an LSTM step worked by hand, and what usual slips make of them."""

from collections.abc import Mapping

import numpy as np

from lemma.looking.worked.judging.quantity import AnyQuantity, Array, numbered, quantity
from lemma.looking.worked.lstm_backward import step_backward
from lemma.looking.worked.lstm_case import LstmCase
from lemma.looking.worked.lstm_forward import sigmoid
from lemma.looking.worked.lstm_given import Values
from lemma.looking.worked.lstm_result import WorkedLstm
from lemma.looking.worked.lstm_tables import SYMBOLS

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
SPELLINGS = {
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
        _quantity(name, array, worked.case, values, slips) for name, array in {**worked.forward, **gradients}.items()
    ]


def _goes_back(case: LstmCase) -> bool:
    return case.y is not None or case.da_next is not None or case.dc_next is not None


def _quantity(
    name: str, array: Array, case: LstmCase, values: Values, slips: Mapping[str, Mapping[str, Array]]
) -> AnyQuantity:
    own = {said: made for said, made in slips.get(name, {}).items() if made.shape == array.shape}
    written = case.written(name)
    others = {name, *SPELLINGS.get(name, ()), *_signs(name)} - {written}
    meaning = MEANINGS.get(name, "")
    if case.letter == "h":
        meaning = meaning.replace("a_", "h_")
    return quantity(written, array, _labels(name, array, case, values), meaning, sorted(others), own)


def _signs(name: str) -> tuple[str, ...]:
    """The same with Greek letters and hats."""
    plain = name.removeprefix("d")
    lead = name[: len(name) - len(plain)]
    return (lead + SYMBOLS[plain],) if plain in SYMBOLS else ()


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
