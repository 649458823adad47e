"""Violations of every clause of the language-model contract are reported."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from lemma.layers.state import State
from lemma.models.base import LanguageModel
from lemma.models.build import build
from lemma.spec.models import FeedForward, Lstm
from lemma.testing import contract_checks, contract_violations


@dataclass(frozen=True)
class SumState(State):
    """Sum of the embeddings of all earlier tokens."""

    total: Tensor
    about = "the sum so far"

    def tensors(self) -> dict[str, Tensor]:
        return {"total": self.total}

    def with_tensors(self, tensors):
        return SumState(tensors["total"])


class SumModel(LanguageModel):
    """A valid model: logits from the bounded sum of all embeddings so far."""

    receptive_field = None

    def __init__(self) -> None:
        super().__init__(Lstm(vocabulary=11, width=6, hidden=7))
        self.embedding, self.output = nn.Embedding(11, 6), nn.Linear(6, 11, bias=False)
        nn.init.normal_(self.embedding.weight, std=0.1)

    def forward(self, tokens: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        sums = self.embedding(tokens).cumsum(1) + (0 if state is None else state.total[:, None])
        return self.output(sums.tanh()), SumState(sums[:, -1])


class IgnoresState(SumModel):
    def forward(self, tokens, state=None):
        return super().forward(tokens, None)


class SeesFuture(SumModel):
    def forward(self, tokens, state=None):
        logits, state = super().forward(tokens, state)
        return logits + 0.1 * logits[:, -1:], state


class WrongReceptiveField(SumModel):
    receptive_field = 4


class ModifiesState(SumModel):
    """A model that modifies its input state."""

    def forward(self, tokens, state=None):
        logits, after = super().forward(tokens, state)
        if state is not None:
            state.total.add_(1.0)
        return logits, after


class MissingLogit(SumModel):
    def forward(self, tokens, state=None):
        logits, state = super().forward(tokens, state)
        return logits[..., :-1], state


class UntrainedParameter(SumModel):
    def __init__(self) -> None:
        super().__init__()
        self.more = nn.Linear(2, 2)


class LargeInitialLoss(SumModel):
    def __init__(self) -> None:
        super().__init__()
        nn.init.normal_(self.output.weight, std=30.0)


class MixesRows(SumModel):
    """A model that mixes the rows of a batch."""

    def forward(self, tokens, state=None):
        logits, state = super().forward(tokens, state)
        return logits + 0.1 * logits.mean(0, keepdim=True), state


class ConstantSignature(SumModel):
    """A model whose state has a constant signature."""

    def forward(self, tokens, state=None):
        logits, state = super().forward(tokens, state)
        object.__setattr__(state, "signature", lambda row: b"")
        return logits, state


class RaisesError(SumModel):
    def forward(self, tokens, state=None):
        raise RuntimeError("not today")


BROKEN = {
    IgnoresState: "pieces_give_the_whole",
    SeesFuture: "future_cannot_move_the_past",
    WrongReceptiveField: "receptive_field_is_what_counts",
    ModifiesState: "state_is_a_value",
    MissingLogit: "logits_for_each_token",
    UntrainedParameter: "every_parameter_learns",
    LargeInitialLoss: "initial_loss_is_near_that_of_chance",
    MixesRows: "state_survives_its_tensors_and_rows",
    ConstantSignature: "signature_tells_states_apart",
    RaisesError: "logits_for_each_token",
}


def test_valid_model_violates_only_the_count_of_its_borrowed_spec() -> None:
    assert list(contract_violations(SumModel())) == ["counted_without_memory"]  # an LSTM's spec has other parameters


@pytest.mark.parametrize("kind", BROKEN, ids=lambda kind: kind.__name__)
def test_each_contract_violation_is_reported(kind: type[SumModel]) -> None:
    assert contract_violations(kind())[BROKEN[kind]]


def test_model_exception_is_quoted_in_the_violation() -> None:
    assert contract_violations(RaisesError())["state_is_a_value"] == "RuntimeError: not today"


def test_models_with_vectors_have_extra_contract_checks() -> None:
    assert set(contract_checks(build(FeedForward()))) - set(contract_checks(SumModel())) == {
        "vectors_are_what_the_output_reads",
        "padding_changes_no_vector",
    }


def test_wrong_vectors_are_reported() -> None:
    model = build(FeedForward(vocabulary=11, width=6, hidden=7, context=4))
    read = type(model).vectors
    type_ = type("Shifted", (type(model),), {"vectors": lambda self, tokens: read(self, tokens).roll(1, 1)})
    model.__class__ = type_
    assert list(contract_violations(model)) == ["vectors_are_what_the_output_reads", "padding_changes_no_vector"]


def test_contract_checks_do_not_modify_the_model() -> None:
    model = SumModel().train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    contract_violations(model)
    assert model.training and all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
