"""One LSTM step worked by hand, forward and backward (Hochreiter and Schmidhuber 1997, Gers et al. 2000)."""

from typing import overload

from lemma.errors import SpecError
from lemma.looking.worked.lstm_backward import step_backward
from lemma.looking.worked.lstm_case import GivenGates, LstmCase
from lemma.looking.worked.lstm_forward import step_forward
from lemma.looking.worked.lstm_given import given_values, remarks
from lemma.looking.worked.lstm_result import WorkedLstm
from lemma.looking.worked.reading import Examples, Found, Given, list_examples, read_case


@overload
def lstm_by_hand(example: None = None) -> Examples: ...
@overload
def lstm_by_hand(example: Given, *, backward: bool = False, full: bool = False, decimals: int = 4) -> WorkedLstm: ...
def lstm_by_hand(
    example: Given | None = None, *, backward: bool = False, full: bool = False, decimals: int = 4
) -> WorkedLstm | Examples:
    """Work one LSTM step out, for an example by name, a TOML file or a table of the same words.

    Γ = σ(W [a_{t−1}; x] + b), or gates as given; c_t = Γ_f∗c_{t−1} + Γ_u∗c̃; a_t = Γ_o∗tanh(c_t); with an output layer
    ŷ = softmax(W_y a_t + b_y), and with a target its cross-entropy. `backward` adds every gradient. Without an example,
    those that come with Lemma are listed.

    >>> worked = lstm_by_hand("e9")
    >>> worked.forward["c_t"].round(3).tolist(), worked.forward["a_t"].round(3).tolist()
    ([0.52, -0.34], [0.334, -0.262])
    """
    if example is None:
        return list_examples("lstm")
    found = read_case(LstmCase, example, {})
    given = given_values(found.case, found.where)
    forward = step_forward(given, found.where)
    if backward:
        _refuse_no_gradient(found)
    gradients = step_backward({**given, **forward}) if backward else None
    return WorkedLstm(found.case, found.text, given, forward, gradients, remarks(found.case), full, decimals)


def _refuse_no_gradient(found: Found[LstmCase]) -> None:
    case = found.case
    if case.y is None and case.da_next is None and case.dc_next is None:
        raise SpecError(
            f"{found.where}: backward needs something to go back from. Give y with W_y, {case.written('da_next')} or "
            "dc_next."
        )
    if isinstance(case, GivenGates) and max(map(abs, case.candidate)) > 1:
        raise SpecError(
            f"{found.where}: candidate is outside [−1, 1], where every tanh lies, so that nothing can go back through "
            "it. Leave backward out, or give a candidate that a tanh can give."
        )
