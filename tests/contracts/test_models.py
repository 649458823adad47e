"""The battery every family passes: `logits, state = model(tokens, state)`."""

import pytest
import torch
from torch import Tensor

from lemma.models import LanguageModel, build, count_parameters, parameters_of

from families import SMALL

LONG = 23  # past the context of every small model


@pytest.fixture(params=SMALL)
def model(request: pytest.FixtureRequest) -> LanguageModel:
    """A small model with lively weights, so that nothing is zero by chance."""
    model = build(SMALL[request.param]).double().eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return model


@pytest.fixture
def tokens() -> Tensor:
    return torch.randint(11, (3, LONG), generator=torch.Generator().manual_seed(1))


def test_logits_have_a_row_for_each_token(model: LanguageModel, tokens: Tensor) -> None:
    logits, _ = model(tokens)
    assert logits.shape == (3, LONG, 11)
    assert logits.isfinite().all()


@pytest.mark.parametrize("sizes", [[1] * LONG, [5, 1, 12, 5], [LONG - 1, 1], [2, LONG - 2], [9, 9, 5]])
def test_pieces_through_the_state_give_the_logits_of_the_whole(
    model: LanguageModel, tokens: Tensor, sizes: list[int]
) -> None:
    whole, _ = model(tokens)
    pieces, state = [], None
    for piece in tokens.split(sizes, dim=1):
        logits, state = model(piece, state)
        pieces.append(logits)
    torch.testing.assert_close(torch.cat(pieces, dim=1), whole, rtol=0, atol=1e-10)


def test_the_future_cannot_move_the_past(model: LanguageModel, tokens: Tensor) -> None:
    changed = tokens.clone()
    changed[:, 12:] = (changed[:, 12:] + 1) % 11
    torch.testing.assert_close(model(changed)[0][:, :12], model(tokens)[0][:, :12], rtol=0, atol=1e-12)
    assert not torch.allclose(model(changed)[0][:, 12:], model(tokens)[0][:, 12:])


def test_logits_depend_on_exactly_the_last_reach_tokens(model: LanguageModel, tokens: Tensor) -> None:
    if model.reach is None:
        pytest.skip("a recurrent model depends on all tokens")
    last = model(tokens)[0][:, -1]
    alone = model(tokens[:, -model.reach :])[0][:, -1]
    torch.testing.assert_close(alone, last, rtol=0, atol=1e-10)
    changed = tokens.clone()
    changed[:, -model.reach] = (changed[:, -model.reach] + 1) % 11
    assert not torch.allclose(model(changed)[0][:, -1], last)


def test_a_state_is_a_value(model: LanguageModel, tokens: Tensor) -> None:
    _, state = model(tokens[:, :6])
    first, _ = model(tokens[:, 6:8], state)
    model((tokens[:, 6:8] + 3) % 11, state)
    again, _ = model(tokens[:, 6:8], state)
    assert torch.equal(first, again)


def test_a_state_survives_its_tensors_and_its_rows(model: LanguageModel, tokens: Tensor) -> None:
    _, state = model(tokens[:, :7])
    stored = state.with_tensors({name: tensor.clone() for name, tensor in state.tensors().items()})
    whole, _ = model(tokens[:, 7:9], state)
    assert torch.equal(model(tokens[:, 7:9], stored.detach())[0], whole)
    chosen = torch.tensor([2, 0])
    torch.testing.assert_close(model(tokens[chosen, 7:9], state.rows(chosen))[0], whole[chosen])


def test_signatures_are_equal_exactly_when_the_state_is(model: LanguageModel, tokens: Tensor) -> None:
    twins = tokens[:1].repeat(2, 1)
    _, state = model(twins)
    _, other = model((twins + 1) % 11)
    _, again = model(twins)
    assert state.signature(0) == again.signature(0)
    assert state.signature(0) != other.signature(0)
    assert state.about


def test_every_parameter_learns(model: LanguageModel, tokens: Tensor) -> None:
    model(tokens)[0].logsumexp(-1).sum().backward()
    idle = [name for name, parameter in model.named_parameters() if parameter.grad is None]
    assert not idle


def test_counting_without_memory_agrees_with_the_module(model: LanguageModel) -> None:
    assert parameters_of(model.spec) == count_parameters(model)


@pytest.mark.parametrize("name", SMALL)
def test_the_first_loss_is_near_that_of_chance(name: str, tokens: Tensor) -> None:
    logits, _ = build(SMALL[name])(tokens)
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())
    assert abs(loss.item() - torch.tensor(11.0).log().item()) < 0.5
