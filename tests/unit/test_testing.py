"""The contract of language models is broken in every way that it forbids, and each is told."""

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
class Total(State):
    """The sum of all embeddings so far."""

    total: Tensor
    about = "the sum so far"

    def tensors(self) -> dict[str, Tensor]:
        return {"total": self.total}

    def with_tensors(self, tensors):
        return Total(tensors["total"])


class Sums(LanguageModel):
    """A good model: logits from the sum of all embeddings so far, kept small."""

    receptive_field = None

    def __init__(self) -> None:
        super().__init__(Lstm(vocabulary=11, width=6, hidden=7))
        self.embedding, self.output = nn.Embedding(11, 6), nn.Linear(6, 11, bias=False)
        nn.init.normal_(self.embedding.weight, std=0.1)

    def forward(self, tokens: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        sums = self.embedding(tokens).cumsum(1) + (0 if state is None else state.total[:, None])
        return self.output(sums.tanh()), Total(sums[:, -1])


class Forgetful(Sums):
    def forward(self, tokens, state=None):
        return super().forward(tokens, None)


class Seer(Sums):
    def forward(self, tokens, state=None):
        logits, state = super().forward(tokens, state)
        return logits + 0.1 * logits[:, -1:], state


class Liar(Sums):
    receptive_field = 4


class Writer(Sums):
    """It writes into the state that it is given."""

    def forward(self, tokens, state=None):
        logits, after = super().forward(tokens, state)
        if state is not None:
            state.total.add_(1.0)
        return logits, after


class Narrow(Sums):
    def forward(self, tokens, state=None):
        logits, state = super().forward(tokens, state)
        return logits[..., :-1], state


class Idle(Sums):
    def __init__(self) -> None:
        super().__init__()
        self.more = nn.Linear(2, 2)


class Loud(Sums):
    def __init__(self) -> None:
        super().__init__()
        nn.init.normal_(self.output.weight, std=30.0)


class Crowd(Sums):
    """It mixes the rows of a batch."""

    def forward(self, tokens, state=None):
        logits, state = super().forward(tokens, state)
        return logits + 0.1 * logits.mean(0, keepdim=True), state


class Blind(Sums):
    """Its state says nothing of what it holds."""

    def forward(self, tokens, state=None):
        logits, state = super().forward(tokens, state)
        object.__setattr__(state, "signature", lambda row: b"")
        return logits, state


class Raising(Sums):
    def forward(self, tokens, state=None):
        raise RuntimeError("not today")


BROKEN = {
    Forgetful: "pieces_give_the_whole",
    Seer: "future_cannot_move_the_past",
    Liar: "receptive_field_is_what_counts",
    Writer: "state_is_a_value",
    Narrow: "logits_for_each_token",
    Idle: "every_parameter_learns",
    Loud: "initial_loss_is_near_that_of_chance",
    Crowd: "state_survives_its_tensors_and_rows",
    Blind: "signature_tells_states_apart",
    Raising: "logits_for_each_token",
}


def test_a_good_model_keeps_all_but_what_its_borrowed_spec_says() -> None:
    assert list(contract_violations(Sums())) == ["counted_without_memory"]  # an LSTM's spec has other parameters


@pytest.mark.parametrize("kind", BROKEN, ids=lambda kind: kind.__name__)
def test_a_broken_promise_is_told(kind: type[Sums]) -> None:
    assert contract_violations(kind())[BROKEN[kind]]


def test_a_failure_is_told_with_its_words() -> None:
    assert contract_violations(Raising())["state_is_a_value"] == "RuntimeError: not today"


def test_a_model_that_gives_vectors_promises_more() -> None:
    assert set(contract_checks(build(FeedForward()))) - set(contract_checks(Sums())) == {
        "vectors_are_what_the_output_reads",
        "padding_changes_no_vector",
    }


def test_wrong_vectors_are_told() -> None:
    model = build(FeedForward(vocabulary=11, width=6, hidden=7, context=4))
    read = type(model).vectors
    type_ = type("Shifted", (type(model),), {"vectors": lambda self, tokens: read(self, tokens).roll(1, 1)})
    model.__class__ = type_
    assert list(contract_violations(model)) == ["vectors_are_what_the_output_reads", "padding_changes_no_vector"]


def test_the_model_itself_is_left_as_it_was() -> None:
    model = Sums().train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    contract_violations(model)
    assert model.training and all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
